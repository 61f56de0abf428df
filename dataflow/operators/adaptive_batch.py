"""The adaptive batch: how many records an operator passes to user functions in one turn.

Guarantees that slow functions do not make a turn long, and productive ones do not make it large. A
slice has as many records as last took `SECONDS` and produced `BYTES`. It has at least one record,
and at most twice as many as the last slice. A function that sleeps delays the worker by one call.
Waits for a core do not count: a slice has a cost of its own, so smaller slices would leave less
time for records on a busy machine, not more. Cost: two clock reads per slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from meander.dataflow.interfaces import Clock

SECONDS: Final = 0.01
"""The target duration of a slice."""
BYTES: Final = 4 << 20
"""The target bytes of the outputs of a slice."""
FIRST: Final = 16
"""Records of the first slice, before the speed of the functions is known."""


class AdaptiveBatch:
    """An adaptive batch that sets the size of one operator's slices, of at most `max_rows` records.

    >>> from meander.dataflow.simulation.simulator import SimClock
    >>> batch = AdaptiveBatch(clock := SimClock(), max_rows=1000)
    >>> with batch.measure(16): clock.advance(0.001)
    >>> batch.rows
    32
    >>> with batch.measure(32): clock.advance(0.32)
    >>> batch.rows
    1
    >>> with batch.measure(1): batch.count_output(BYTES // 4)
    >>> batch.rows
    4
    """

    def __init__(self, clock: Clock, max_rows: int) -> None:
        self._clock, self._max_rows, self._output_bytes = clock, max_rows, 0
        self.rows = min(FIRST, max_rows)
        """The most records of the next slice."""

    @contextmanager
    def measure(self, rows: int) -> Iterator[None]:
        """Measure a slice of `rows` records while its body runs."""
        started_at = self._clock.undisturbed()
        yield
        self.adapt(rows, self._clock.undisturbed() - started_at)

    def adapt(self, rows: int, seconds: float) -> None:
        """Adapt to a slice of `rows` records that took `seconds`."""
        output_bytes, self._output_bytes = self._output_bytes, 0
        if not rows:
            return
        by_bytes = max(1, rows * BYTES // output_bytes) if output_bytes else self._max_rows
        if seconds <= 0:
            self.rows = min(by_bytes, self._max_rows)
            return
        fits = min(by_bytes, max(1, int(rows * SECONDS / seconds)))
        # A slice below the limit does not show how many more records would fit.
        known = max(self.rows, 2 * rows)
        self.rows = min(fits, known, self._max_rows) if fits > self.rows else fits

    def count_output(self, weight: int) -> None:
        """Count bytes of the outputs of the current slice."""
        self._output_bytes += weight
