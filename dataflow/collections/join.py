"""Joins: pairs of values of equal keys in two arrangements, kept up to date.

Guarantees that the output holds each pair of updates of the two sides once: the join of their
times, the product of their diffs (differential dataflow). A batch of one side meets the rows of the
other side before it. Invariant: the reader of a side follows the input frontier. The output leaves
in pieces, also within a key. Cost: one seek per key of a batch, then the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from meander.dataflow.collections import kernels
from meander.dataflow.collections.arrangement import Arrangement, ArrangementReader
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import PIECE_ROWS, CursorRows
from meander.state.collections.kernels import by_value, hashes_of, keys_of
from meander.state.collections.layer import Layer, Updates
from meander.state.times.antichain import Antichain

Function = Callable[..., tuple[Any, Any]]
"""From columns of keys, left values and right values to keys and values of the output."""


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a join: an arrangement of the join itself, or one of another operator."""

    arrangement: Arrangement
    reader: ArrangementReader
    is_shared: bool

    @staticmethod
    def own(depth: int) -> Side:
        """Return an empty arrangement of the join itself."""
        arrangement = Arrangement(depth)
        return Side(arrangement, arrangement.reader(depth), False)

    @staticmethod
    def shared(arrangement: Arrangement, depth: int) -> Side:
        """Return an arrangement that another operator fills."""
        return Side(arrangement, arrangement.reader(depth), True)

    def insert(self, batch: Layer) -> None:
        """Add a batch, unless the other operator has added it."""
        if not self.is_shared:
            self.arrangement.insert(batch)


class IncrementalJoin:
    """The join of two arrangements on one worker."""

    def __init__(self, left: Side, right: Side, function: Function) -> None:
        self._function, self._left, self._right = function, left, right

    def step(self, left: Layer, right: Layer) -> Iterator[Updates]:
        """Yield the output of the next batches of both sides, of one interval of times. Once all
        output is taken, the arrangements hold them."""
        lower, upper = left.description.lower, left.description.upper
        yield from self._pairs(left, self._right, lower, False)
        self._left.insert(left)
        yield from self._pairs(right, self._left, upper, True)
        self._right.insert(right)
        for side in (self._left, self._right):
            side.reader.advance(upper)

    def _pairs(
        self, batch: Layer, other: Side, before: Antichain, swapped: bool
    ) -> Iterator[Updates]:
        for updates in batch.updates():
            hashes = hashes_of(updates.keys)
            distinct, query = np.unique(hashes, return_inverse=True)
            order, offsets = by_value(query, updates.values, len(distinct))
            keys = keys_of(distinct)
            for rows in other.reader.pieces(distinct, before):
                yield from self._paired(keys, updates, order, offsets, rows, swapped)

    def _paired(
        self,
        keys: Int64s,
        updates: Updates,
        order: Int64s,
        offsets: Int64s,
        rows: CursorRows,
        swapped: bool,
    ) -> Iterator[Updates]:
        row, skip, left = 0, 0, kernels.count_pairs(offsets, rows.query)
        while left:
            room = min(left, PIECE_ROWS)
            query, ones, others = (np.empty(room, np.int64) for _ in range(3))
            times, diffs = np.empty((room, updates.depth), np.int64), np.empty(room, np.int64)
            row, skip, written = kernels.pair(
                order, offsets, updates.values, updates.times, updates.diffs,
                rows.query, rows.values, rows.times, rows.diffs,
                row, skip, query, ones, others, times, diffs,
            )  # fmt: skip
            left -= written
            sides = (others, ones) if swapped else (ones, others)
            yield Updates(*self._function(keys[query], *sides), times, diffs)
