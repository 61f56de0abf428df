"""The spill buffer: records that wait in memory, and on disk beyond a limit.

Guarantees that passed records come out as from memory alone: in the total order once sorted, or in
the order of arrival per partition. While passed records lie on disk, those in memory go there too,
and all are read in slices. Cost: one check where the disk holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from meander.dataflow.operators.buffer.rows import Rows, Waiting
from meander.dataflow.operators.buffer.spill import SLICE_BYTES, SLICE_ROWS, Overflow
from meander.dataflow.records.loop_times import Rounds, at, outer, settled
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


class SpillBuffer:
    """A spill buffer that keeps records until a frontier passes them. `overflow` opens the disk for
    records of some iterations."""

    def __init__(self, overflow: Callable[[Rounds], Overflow]) -> None:
        self._near, self._overflow = Waiting(), overflow
        self._far: dict[Rounds, Overflow] = {}

    def add(self, rows: Rows) -> None:
        """Add waiting records."""
        self._near.add(rows)

    @property
    def size(self) -> int:
        """Return about the bytes that wait in memory."""
        return self._near.size

    @property
    def spilled(self) -> bool:
        """Return whether records wait on disk."""
        return bool(self._far)

    @property
    def least(self) -> int | None:
        """Return the least outer time of waiting records, or None."""
        far = (time for time, _ in self._firsts())
        near = self._near.least
        return min(far if near is None else (near, *far), default=None)

    @property
    def owed(self) -> Iterator[Time]:
        """Yield the times of waiting records, or lower bounds of them."""
        yield from self._near.owed
        yield from (at(time, rounds) for time, rounds in self._firsts())

    def rows(self) -> Iterator[Rows]:
        """Return all waiting records as of the call, oldest first. They stay in the buffer."""
        far = [one.rows() for one in self._far.values()]
        return chain(chain.from_iterable(far), [rows.isolated() for rows in self._near.rows])

    def passed(self, frontier: Antichain) -> tuple[list[Rows], bool]:
        """Remove the records that the frontier has passed, or the first slice of them. Return them,
        and whether another call may return more at the same frontier."""
        if not self._far:
            return self._near.passed(frontier), False
        firsts = sorted(self._firsts())
        if settled(frontier, firsts[0][1]).less_equal(firsts[0][0]):
            return self._near.passed(frontier), False
        time, rounds = firsts[0]
        earlier = self._near.passed(Antichain.of(at(time, rounds)))
        if earlier:
            return earlier, True
        if self._move(self._near.passed(frontier)):
            return [], True
        ends = [Antichain.of(at(*first)) for first in firsts[1:2]]
        until = (time for end in (frontier, *ends) for time in settled(end, rounds))
        return [self._take(rounds, min(map(outer, until), default=None))], True

    def shed(self) -> int:
        """Move some hundred of the oldest records in memory to disk. Return about their bytes, or
        0."""
        oldest = self._near.oldest(SLICE_ROWS, SLICE_BYTES)
        if oldest is None:
            return 0
        self._put(oldest)
        return oldest.batch.weight

    def _firsts(self) -> Iterator[tuple[int, Rounds]]:
        for rounds, far in self._far.items():
            assert far.least is not None
            yield far.least, rounds

    def _move(self, passed: list[Rows]) -> bool:
        """Move some hundred of these records to disk, and keep the others. Return whether there
        were any."""
        room = SLICE_ROWS
        for rows in passed:
            now, later = rows.cut(room)
            room -= len(now)
            if len(now):
                self._put(now)
            self._near.add(later)
        return bool(passed)

    def _put(self, rows: Rows) -> None:
        far = self._far.get(rows.rounds) or self._overflow(rows.rounds)
        far.put(rows)
        if far.least is not None:
            self._far[rows.rounds] = far

    def _take(self, rounds: Rounds, before: int | None) -> Rows:
        far = self._far[rounds]
        rows = far.take(before)
        if far.least is None:
            del self._far[rounds]
        return rows
