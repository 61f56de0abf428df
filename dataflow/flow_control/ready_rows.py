"""Rows of closed times in the total order, from which the batcher cuts batches.

Guarantees that rows of a stream leave in the total order, and updates of a collection in the order
of time. A row that counts more than a batch leaves alone. A time is cut only where it alone exceeds
a batch, as each cut makes one more message of each batch behind it. Cost: one sort per set of rows
that a frontier has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import nested_time
from meander.state.times.time import Time

Weigh = Callable[[Batch], Int64s]
"""From rows to what each counts in a batch, shape (n,)."""


def each_one(rows: Batch) -> Int64s:
    """Return 1 for each row."""
    return np.ones(len(rows), np.int64)


class ReadyRows:
    """A queue of rows in the total order. Each run in it has equal iterations."""

    def __init__(
        self, by_time: bool, note_taken: Callable[[Int64s], None], weigh: Weigh = each_one
    ) -> None:
        """`by_time` sorts rows by their time alone, as updates of a collection add up in any
        order. `note_taken` gets the arrivals of rows that leave the queue."""
        self._note_taken, self._weigh = note_taken, weigh
        self._sorted = _sorted_by_time if by_time else Rows.sorted
        self._runs, self._totals = deque[Rows](), deque[Int64s]()
        """The runs, and what their first rows count together, for each number of rows."""
        self._taken = 0
        """The rows of the first run that have left."""
        self._weights = 0

    @property
    def size(self) -> int:
        """Return about the bytes of the rows."""
        if not self._taken:
            return self._weights
        first = self._runs[0]
        return self._weights - first.batch.weight * self._taken // len(first)

    def add(self, passed: list[Rows]) -> None:
        """Add rows that a frontier has passed, behind those that it had passed before."""
        for run in self._in_order(passed):
            self._runs.append(run.measured())
            self._totals.append(np.cumsum(self._weigh(run.batch)))
            self._weights += self._runs[-1].batch.weight

    def take(self, count: int) -> list[Rows]:
        """Remove and return the first rows that count `count` together, or the first one alone."""
        taken = list[Rows]()
        while count > 0 and self._runs:
            first, start, totals = self._runs[0], self._taken, self._totals[0]
            before = int(totals[start - 1]) if start else 0
            end = int(np.searchsorted(totals, before + count, side="right"))
            self._taken = _whole_times(first.batch.times, start, end, bool(taken))
            if self._taken == start:
                if taken:
                    break
                self._taken = start + 1
            count -= int(totals[self._taken - 1]) - before
            taken.append(first.between(start, self._taken))
            self._note_taken(taken[-1].arrivals)
            if self._taken == len(first):
                self._weights -= first.batch.weight
                self._runs.popleft()
                self._totals.popleft()
                self._taken = 0
        return taken

    def count(self, rows: Rows) -> int:
        """Return what rows count together in a batch."""
        return int(self._weigh(rows.batch).sum())

    def least_times(self) -> Iterator[Time]:
        """Yield the first two times of each run, and so the least ones."""
        start = self._taken
        for run in self._runs:
            times = run.batch.times
            after = int(np.searchsorted(times, times[start], "right"))
            for at in (start, after) if after < len(times) else (start,):
                yield nested_time(int(times[at]), run.iterations)
            start = 0

    def __iter__(self) -> Iterator[Rows]:
        for n, run in enumerate(self._runs):
            yield run.split_at(self._taken)[1] if n == 0 and self._taken else run

    def __len__(self) -> int:
        return sum(map(len, self._runs)) - self._taken

    def _in_order(self, passed: list[Rows]) -> Iterator[Rows]:
        """Yield runs of equal iterations, in the order of outer time, then iterations."""
        runs = [*map(self._sorted, Rows.by_iterations(passed))]
        if len(runs) < 2:
            yield from runs
            return
        owners = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
        merged = owners[np.lexsort((owners, np.concatenate([run.batch.times for run in runs])))]
        taken = [0] * len(runs)
        for owner, some in groupby(merged.tolist()):
            start = taken[owner]
            taken[owner] += len([*some])
            yield runs[owner].between(start, taken[owner])


def _whole_times(times: Int64s, start: int, end: int, others: bool) -> int:
    """Return an end at which no time is cut, where rows from `start` to `end` or other rows leave.

    >>> times = np.array([1, 1, 2, 2, 2])
    >>> _whole_times(times, 0, 4, False), _whole_times(times, 2, 4, False)
    (2, 4)
    """
    if not start < end < len(times):
        return end
    whole = int(np.searchsorted(times, times[end]))
    return max(whole, start) if whole > start or others else end


def _sorted_by_time(rows: Rows) -> Rows:
    times = rows.batch.times
    if (times[1:] >= times[:-1]).all():
        return rows
    return rows.take(np.argsort(times, kind="stable"))
