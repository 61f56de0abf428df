"""The numbers of batches: the last coordinate of the rows of one outer time counts its batches.

Guarantees that the rows of one time get greater numbers in each later batch, and that no number
falls behind the one that a row has already, as after a restart. Rows of many times share a batch;
those of all times but the first begin with their own number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time, outer_time
from meander.state.times.time import Time


class BatchNumbers:
    """The numbers of one worker's batches in one scope."""

    def __init__(self) -> None:
        self._last: Time | None = None

    @property
    def last(self) -> Time:
        """Return the last time of the last batch, with its number."""
        assert self._last is not None, "a batch has been numbered"
        return self._last

    def number(self, batch: Iterable[Rows]) -> list[Rows]:
        """Return the rows of the next batch with their numbers. All rows of an element have one."""
        rows = [part for some in batch for part in self.renumbered(some)]
        if rows:
            self._last = nested_time(int(rows[-1].batch.times[-1]), rows[-1].iterations)
        return rows

    def renumbered(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows with the least numbers that they may still get, those of the last time
        first."""
        number = self._next(rows.iterations)
        if number is None:
            yield rows
            return
        again, iterations = rows.batch.times == outer_time(self.last), rows.iterations[:-1]
        if again.all():
            yield replace(rows, iterations=(*iterations, number))
        elif not again.any():
            yield rows
        else:
            first, others = rows.split(again)
            yield from (replace(first, iterations=(*iterations, number)), others)

    def least(self, time: Time) -> Time:
        """Return the least time that rows of a time may still get."""
        outer, iterations = outer_time(time), iterations_of(time)
        number = self._next(iterations)
        if number is None or outer != outer_time(self.last):
            return time
        return nested_time(outer, (*iterations[:-1], number))

    def _next(self, iterations: Iterations) -> int | None:
        """Return the next number at the last time, for rows of some iterations, or None where these
        are not those of the last time."""
        if self._last is None:
            return None
        *outer, last = iterations_of(self._last)
        *own, number = iterations
        return max(last + 1, number) if own == outer else None
