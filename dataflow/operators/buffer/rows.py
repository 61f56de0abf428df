"""Records that wait for a stateful operator: from several inputs, in one total order.

`Rows` is a batch with the input and the arrival of each record, and the iterations of all. Records
wait in the batches of their arrival until the frontier has passed their time. They are then sorted
once by (time, iterations, origin, partition, offset, index, input, bytes of the value). An operator
may ask for its inputs first: then the input comes right behind the iterations. Cost: O(n log n) per
set of ready records, and one check of each batch per advance of the frontier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meander.dataflow.metrics.operator_latency import MICROS
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import Iterations, nested_time, passed_frontier
from meander.state.encoding import codec
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

ARRIVED = 56
"""The bits of a tag for the arrival, in microseconds of the worker's clock. The bits above number
the input. One column costs half of two, on disk too."""
_WHEN = (1 << ARRIVED) - 1
NO_ROWS: Int64s = np.zeros(0, np.int64)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows with equal iterations, and a tag of each for its input and arrival, shape
    (n,)."""

    batch: Batch
    tags: Int64s
    iterations: Iterations = ()

    @staticmethod
    def of(
        batch: Batch, input_number: int, iterations: Iterations = (), arrived_at: float = 0.0
    ) -> Rows:
        """Return the records of one input that arrived at one time of the worker's clock, in
        seconds."""
        tag = input_number << ARRIVED | int(arrived_at * MICROS)
        return Rows(batch, np.full(len(batch), tag, np.int64), iterations)

    @staticmethod
    def concat(batches: list[Rows]) -> Rows:
        """Return all records in order. All have equal iterations."""
        if len(batches) == 1:
            return batches[0]
        tags = np.concatenate([r.tags for r in batches])
        return Rows(Batch.concat([r.batch for r in batches]), tags, batches[0].iterations)

    @staticmethod
    def by_iterations(batches: Iterable[Rows]) -> Iterator[Rows]:
        """Yield all records of equal iterations together, in the order of these."""
        iterations = attrgetter("iterations")
        for _, some in groupby(sorted(batches, key=iterations), iterations):
            yield Rows.concat([*some])

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def inputs(self) -> Int64s:
        """Return the number of the input of each record, shape (n,)."""
        return self.tags >> ARRIVED

    @property
    def arrivals(self) -> Int64s:
        """Return the arrival of each record in microseconds of the worker's clock, shape (n,)."""
        return self.tags & _WHEN

    @property
    def least(self) -> int:
        """Return the least outer time of the records. Not for an empty batch."""
        return int(self.batch.times.min())

    @property
    def least_time(self) -> Time:
        """Return the least outer time with the iterations."""
        return nested_time(self.least, self.iterations)

    def take(self, rows: Int64s) -> Rows:
        """Return rows by number, in the given order."""
        return Rows(self.batch.take(rows), self.tags[rows], self.iterations)

    def between(self, first: int, end: int) -> Rows:
        """Return consecutive rows, without a copy of their columns; the same object for all."""
        if first == 0 and end >= len(self):
            return self
        return Rows(self.batch.between(first, end), self.tags[first:end], self.iterations)

    def split_at(self, at: int) -> tuple[Rows, Rows]:
        """Return the first `at` rows, and the others."""
        if at >= len(self):
            return self, self.take(NO_ROWS)
        return self.between(0, at), self.between(at, len(self))

    def measured(self) -> Rows:
        """Return the same rows with a known size."""
        return self if self.batch.size else replace(self, batch=self.batch.measured())

    def isolated(self) -> Rows:
        """Return the same rows with copies of the values."""
        return replace(self, batch=self.batch.isolated())

    def split(self, chosen: Mask) -> tuple[Rows, Rows]:
        """Return the rows of a mask, and the others."""
        return self.take(np.flatnonzero(chosen)), self.take(np.flatnonzero(~chosen))

    def sorted(self, inputs_first: bool = False) -> Rows:
        """Return the rows in the total order of design 2, or with `inputs_first` at each time those
        of the first input before those of the next one."""
        b = self.batch
        place = b.indexes, b.offsets, b.partitions, b.origins
        columns = (*place, self.inputs, b.times) if inputs_first else (self.inputs, *place, b.times)
        order = np.lexsort(columns)
        ordered = self.take(order)
        return ordered._with_ties_broken([column[order] for column in columns])

    def _with_ties_broken(self, columns: list[Int64s]) -> Rows:
        same = np.ones(max(len(self) - 1, 0), np.bool_)
        for column in columns:
            same &= column[1:] == column[:-1]
        if not same.any():
            return self
        order = np.arange(len(self))
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        for start, end in zip(starts, [*starts[1:], len(self)], strict=True):
            if end - start > 1:
                rows = range(start, end)
                order[start:end] = sorted(rows, key=lambda i: codec.encode(self.batch.values[i]))
        return self.take(order)


EMPTY = Rows(
    Batch(NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, [], [], NO_ROWS.view(np.uint64)), NO_ROWS
)
"""No records, with keys."""


def in_order(batches: list[Rows], inputs_first: bool = False) -> list[Rows]:
    """Return records of any iterations in the order of `Rows.sorted`. An element holds one outer
    time and iterations, unless all are in the outer scope."""
    if not any(rows.iterations for rows in batches):
        return [Rows.concat(batches).sorted(inputs_first)]
    groups: dict[tuple[int, Iterations], list[Rows]] = {}
    for rows in batches:
        for time in np.unique(rows.batch.times).tolist():
            chosen = rows.take(np.flatnonzero(rows.batch.times == time))
            groups.setdefault((time, rows.iterations), []).append(chosen)
    return [Rows.concat(groups[place]).sorted(inputs_first) for place in sorted(groups)]


class PendingRows:
    """A queue that holds the records that no frontier has passed."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, Rows]] = []

    def add(self, rows: Rows) -> None:
        """Add waiting records."""
        if len(rows):
            self._batches.append((rows.least, rows))

    @property
    def size(self) -> int:
        """Return about the bytes of waiting records."""
        self._batches = [(least, rows.measured()) for least, rows in self._batches]
        return sum(rows.batch.weight for _, rows in self._batches)

    @property
    def least(self) -> int | None:
        """Return the least outer time of waiting records, or None."""
        return min((least for least, _ in self._batches), default=None)

    @property
    def pending_times(self) -> Iterator[Time]:
        """Return the times of waiting records, or lower bounds of them."""
        return (nested_time(least, rows.iterations) for least, rows in self._batches)

    @property
    def rows(self) -> list[Rows]:
        """Return all waiting records in order of arrival."""
        return [rows for _, rows in self._batches]

    def pop_oldest(self, max_rows: int, max_bytes: int) -> Rows | None:
        """Remove and return the oldest records: at least one, at most `max_rows`, and about
        `max_bytes` bytes. Return None where no record waits."""
        if not self._batches:
            return None
        first = self._batches.pop(0)[1].measured()
        rows, rest = first.split_at(min(max_rows, 1 + max_bytes * len(first) // first.batch.weight))
        if len(rest):
            self._batches.insert(0, (rest.least, rest))
        return rows

    def pop_passed(self, frontier: Antichain) -> list[Rows]:
        """Remove and return the records that the frontier has passed, in order of arrival."""
        ready, kept = [], []
        for least, rows in self._batches:
            passed = passed_frontier(frontier, rows.iterations)
            if passed.less_equal(least):
                kept.append((least, rows))
                continue
            beyond = not_passed(rows.batch.times, passed)
            if beyond.any():
                rest, rows = rows.split(beyond)
                kept.append((rest.least, rest))
            ready.append(rows)
        self._batches = kept
        return ready


def not_passed(times: Int64s, frontier: Antichain) -> Mask:
    """Return a mask of the outer times that a frontier has not passed, shape (n,).

    >>> not_passed(np.array([3, 4, 5]), Antichain.of(4)).tolist()
    [False, True, True]
    """
    if not frontier:
        return np.zeros(len(times), np.bool_)
    (least,) = frontier.times
    assert isinstance(least, int)
    return times >= least
