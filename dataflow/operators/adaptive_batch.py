"""The adaptive batch: how many records an operator passes to user functions in one turn.

Guarantees that slow functions do not make a turn long, and productive ones do not make it large. An
operator takes as many records as last took `SECONDS` and produced `BYTES`. It takes at least one,
and at most twice as many as before. A function that sleeps delays the worker by one call. Cost: two
clock reads per slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from meander.dataflow.interfaces import Clock

SECONDS: Final = 0.005
"""The target duration of a slice."""
BYTES: Final = 4 << 20
"""The target bytes of the outputs of a slice."""
FIRST: Final = 16
"""Records of the first slice, before the speed of the functions is known."""


class AdaptiveBatch:
    """An adaptive batch that sets the size of one operator's slices, of at most `most` records.

    >>> from meander.dataflow.simulation.simulator import SimClock
    >>> slices = AdaptiveBatch(clock := SimClock(), most=1000)
    >>> with slices.of(16): clock.advance(0.001)
    >>> slices.rows
    32
    >>> with slices.of(32): clock.advance(0.16)
    >>> slices.rows
    1
    >>> with slices.of(1): slices.gave(BYTES // 4)
    >>> slices.rows
    4
    """

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock, self._most, self._given = clock, most, 0
        self.rows = min(FIRST, most)
        """The most records of the next slice."""

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """Measure a slice of `rows` records while its body runs."""
        began = self._clock.monotonic()
        yield
        self.took(rows, self._clock.monotonic() - began)

    def took(self, rows: int, seconds: float) -> None:
        """Adapt to a slice of `rows` records that took `seconds`."""
        given, self._given = self._given, 0
        if not rows:
            return
        light = max(1, rows * BYTES // given) if given else self._most
        if seconds <= 0:
            self.rows = min(light, self._most)
            return
        fitting = min(light, max(1, int(rows * SECONDS / seconds)))
        # A slice below the limit does not show how many more records would fit.
        known = max(self.rows, 2 * rows)
        self.rows = min(fitting, known, self._most) if fitting > self.rows else fitting

    def gave(self, weight: int) -> None:
        """Count bytes of the outputs of the current slice."""
        self._given += weight
