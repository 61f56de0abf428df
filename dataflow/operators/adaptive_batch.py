"""How many records an operator hands to a user's functions in one turn.

Guarantees that a turn becomes neither long because functions are slow, nor large because they give
much: an operator takes as many records as took `SECONDS` and gave `BYTES` last time, one at least,
and twice as many as then at most. So a function that sleeps delays what else a worker does by one
call. Cost: two looks at the clock per slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from meander.dataflow.interfaces import Clock

SECONDS: Final = 0.005
"""About what a slice takes."""
BYTES: Final = 4 << 20
"""About what the outputs of a slice weigh."""
FIRST: Final = 16
"""Records of the first: nobody knows yet how slow the functions are."""


class AdaptiveBatch:
    """Those of one operator; none has more than `most` records.

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
        """How many the next one has at most."""

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """A slice of so many, for as long as it takes."""
        began = self._clock.monotonic()
        yield
        self.took(rows, self._clock.monotonic() - began)

    def took(self, rows: int, seconds: float) -> None:
        """So many have been handed out, in so many seconds."""
        given, self._given = self._given, 0
        if not rows:
            return
        light = max(1, rows * BYTES // given) if given else self._most
        if seconds <= 0:
            self.rows = min(light, self._most)
            return
        fitting = min(light, max(1, int(rows * SECONDS / seconds)))
        # A slice with less than was allowed says little of how many more would fit.
        known = max(self.rows, 2 * rows)
        self.rows = min(fitting, known, self._most) if fitting > self.rows else fitting

    def gave(self, weight: int) -> None:
        """The slice under way has outputs of so many bytes."""
        self._given += weight
