"""The spill buffer: records that wait in memory, and on disk beyond a limit.

Guarantees that passed records leave as from memory alone: in the total order once sorted, or in the
order of arrival per partition. While passed records lie on disk, those in memory go there too, and
all are read in slices. Cost: one check where the disk holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from meander.dataflow.operators.buffer.rows import PendingRows, Rows
from meander.dataflow.operators.buffer.spill import SLICE_BYTES, SLICE_ROWS, DiskRows
from meander.dataflow.records.loop_times import Iterations, nested_time, outer_time, passed_frontier
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time


class SpillBuffer:
    """A spill buffer that holds records until a frontier passes them."""

    def __init__(self, open_disk: Callable[[Iterations], DiskRows]) -> None:
        """`open_disk` opens the disk for records of some iterations."""
        self._memory, self._open_disk = PendingRows(), open_disk
        self._disk: dict[Iterations, DiskRows] = {}

    def add(self, rows: Rows) -> None:
        """Add waiting records."""
        self._memory.add(rows)

    @property
    def size(self) -> int:
        """Return about the bytes that wait in memory."""
        return self._memory.size

    @property
    def empty(self) -> bool:
        """Return whether no records wait."""
        return not self._disk and self._memory.least is None

    @property
    def spilled(self) -> bool:
        """Return whether records wait on disk."""
        return bool(self._disk)

    @property
    def least(self) -> int | None:
        """Return the least outer time of waiting records, or None."""
        disk = (time for time, _ in self._disk_times())
        memory = self._memory.least
        return min(disk if memory is None else (memory, *disk), default=None)

    @property
    def pending_times(self) -> Iterator[Time]:
        """Yield the times of waiting records, or lower bounds of them."""
        yield from self._memory.pending_times
        yield from (nested_time(time, iterations) for time, iterations in self._disk_times())

    def rows(self) -> Iterator[Rows]:
        """Return all waiting records as of the call, oldest first. They stay in the buffer."""
        disk = [one.rows() for one in self._disk.values()]
        return chain(chain.from_iterable(disk), [rows.isolated() for rows in self._memory.rows])

    def pop_passed(self, frontier: Antichain) -> tuple[list[Rows], bool]:
        """Remove and return the records that the frontier has passed, or the first slice of them.
        Return too whether another call may return more at the same frontier."""
        if not self._disk:
            return self._memory.pop_passed(frontier), False
        firsts = sorted(self._disk_times())
        if passed_frontier(frontier, firsts[0][1]).less_equal(firsts[0][0]):
            return self._memory.pop_passed(frontier), False
        time, iterations = firsts[0]
        earlier = self._memory.pop_passed(Antichain.of(nested_time(time, iterations)))
        if earlier:
            return earlier, True
        if self._spill_passed(self._memory.pop_passed(frontier)):
            return [], True
        ends = [Antichain.of(nested_time(*first)) for first in firsts[1:2]]
        times = (time for end in (frontier, *ends) for time in passed_frontier(end, iterations))
        return [self._pop_from_disk(iterations, min(map(outer_time, times), default=None))], True

    def spill_some(self) -> int:
        """Move the oldest slice in memory to disk. Return about its bytes, or 0."""
        oldest = self._memory.pop_oldest(SLICE_ROWS, SLICE_BYTES)
        if oldest is None:
            return 0
        self._spill(oldest)
        return oldest.batch.weight

    def spill_past(self, limit: int) -> None:
        """Move the oldest slices to disk while more than `limit` bytes wait in memory."""
        over = self.size - limit
        while over > 0 and (moved := self.spill_some()):
            over -= moved

    def _disk_times(self) -> Iterator[tuple[int, Iterations]]:
        for iterations, disk in self._disk.items():
            assert disk.least is not None
            yield disk.least, iterations

    def _spill_passed(self, passed: list[Rows]) -> bool:
        """Move a slice of these records to disk, and the others back to memory. Return whether
        there were any."""
        room = SLICE_ROWS
        for rows in passed:
            now, later = rows.split_at(room)
            room -= len(now)
            if len(now):
                self._spill(now)
            self._memory.add(later)
        return bool(passed)

    def _spill(self, rows: Rows) -> None:
        disk = self._disk.get(rows.iterations) or self._open_disk(rows.iterations)
        disk.write(rows)
        if disk.least is not None:
            self._disk[rows.iterations] = disk

    def _pop_from_disk(self, iterations: Iterations, before: int | None) -> Rows:
        disk = self._disk[iterations]
        rows = disk.pop_first(before)
        if disk.least is None:
            del self._disk[iterations]
        return rows
