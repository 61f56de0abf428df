"""Records that wait for a stateful operator: from several inputs, in one total order.

`Rows` is a batch that knows which input each record came by. Records wait in the batches they came
in until their time has passed, then they are sorted once by (time, origin, partition, offset,
index, input, bytes of the value). Cost: O(n log n) per record set that becomes ready, and a look at
each waiting batch per advance of the frontier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dataflow.batch import Batch, Int64s
from state import codec
from state.antichain import Antichain

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rows:
    """Records and the number of the input each came by, shape (n,)."""

    batch: Batch
    sides: Int64s

    @staticmethod
    def of(batch: Batch, side: int) -> Rows:
        """All of one input."""
        return Rows(batch, np.full(len(batch), side, np.int64))

    @staticmethod
    def concat(many: list[Rows]) -> Rows:
        """All records, in order."""
        if len(many) == 1:
            return many[0]
        return Rows(Batch.concat([r.batch for r in many]), np.concatenate([r.sides for r in many]))

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def least(self) -> int:
        """The least time of the records; there is at least one."""
        return int(self.batch.times.min())

    def take(self, rows: Int64s) -> Rows:
        """The named rows, in the order named."""
        return Rows(self.batch.take(rows), self.sides[rows])

    def measured(self) -> Rows:
        """The same with the batch's size known."""
        return self if self.batch.size else replace(self, batch=self.batch.measured())

    def split(self, chosen: Mask) -> tuple[Rows, Rows]:
        """Those for which the mask holds, and the others."""
        return self.take(np.flatnonzero(chosen)), self.take(np.flatnonzero(~chosen))

    def sorted(self) -> Rows:
        """In the total order of design 2."""
        b = self.batch
        columns = (self.sides, b.indexes, b.offsets, b.partitions, b.origins, b.times)
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


class Waiting:
    """Records whose time has not passed yet."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, Rows]] = []

    def add(self, rows: Rows) -> None:
        """Let some records wait."""
        if len(rows):
            self._batches.append((rows.least, rows))

    @property
    def size(self) -> int:
        """About how many bytes wait."""
        self._batches = [(least, rows.measured()) for least, rows in self._batches]
        return sum(rows.batch.size for _, rows in self._batches)

    @property
    def least(self) -> int | None:
        """The least time that waits."""
        return min((least for least, _ in self._batches), default=None)

    def passed(self, frontier: Antichain) -> list[Rows]:
        """Take what the frontier has passed, in order of arrival."""
        ready, kept = [], []
        for least, rows in self._batches:
            if frontier.less_equal(least):
                kept.append((least, rows))
                continue
            beyond = later(rows.batch.times, frontier)
            if beyond.any():
                rest, rows = rows.split(beyond)
                kept.append((rest.least, rest))
            ready.append(rows)
        self._batches = kept
        return ready


def later(times: Int64s, frontier: Antichain) -> Mask:
    """Which outer times a frontier has not passed, shape (n,).

    >>> later(np.array([3, 4, 5]), Antichain.of(4)).tolist()
    [False, True, True]
    """
    verdict = np.zeros(len(times), np.bool_)
    for element in frontier:
        assert isinstance(element, int)
        verdict |= times >= element
    return verdict
