"""Counts in total order: how many values each key has, kept up to date without the values.

Guarantees what `reduce.count` gives outside of loops. There the output before a time tells the
count, so an update needs no earlier input (differential dataflow, `CountTotal`). Invariant: the
output rows of a key, value times diff, add up to its count, and each row of a time comes once.
Cost: two rows of output per changed key and time, and no rows of input.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meander.dataflow.collections import count_kernels as kernels
from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.reduce import PIECE_KEYS, NegativeCount, Shown
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of, keys_of, sorted_rows
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.times.antichain import Antichain

DEPTH = 1
"""The coordinates of a time in total order."""


class TotalCount:
    """The number of values of each key of one collection, on one worker."""

    def __init__(self, name: str, shown: Shown) -> None:
        self._name, self._shown = name, shown
        self.output = Arrangement(DEPTH)
        self.previous = self.output.reader(DEPTH)
        """The output of the steps so far."""

    def step(self, changes: Updates, description: LayerDescription) -> Iterator[Updates]:
        """Yield the output's updates for the next input, in any order. The output trace holds them
        once all are taken. Raise NegativeCount."""
        upper, made = description.upper, list[UpdateChunk]()
        hashes, times = hashes_of(changes.keys), np.ascontiguousarray(changes.times[:, 0])
        order = sorted_rows(hashes, times)
        keys, offsets, rows, sums = kernels.moments(hashes, times, changes.diffs, order)
        for first in range(0, len(keys), PIECE_KEYS):
            some = keys[first : first + PIECE_KEYS]
            counts, bounds = self._before(some, upper), offsets[first : first + len(some) + 1]
            key, moment, values, diffs, wrong, count = kernels.recounted(bounds, sums, counts)
            if count < 0:
                raise self._error(changes, int(rows[wrong]), count)
            if len(key):
                when = changes.times[rows[moment]]
                chunk = UpdateChunk.sorted(Updates(keys_of(some[key]), values, when, diffs))
                made.append(chunk)
                yield chunk.updates()
        self.output.insert(Layer((*UpdateChunk.joined(made),), description))
        self.previous.advance(upper)

    def _before(self, hashes: UInt64s, upper: Antichain) -> Int64s:
        """Return the counts of sorted distinct hashes after the steps so far."""
        rows = self.previous.gather(hashes, upper)
        return kernels.add_up(rows.query, rows.values, rows.diffs, len(hashes))

    def _error(self, changes: Updates, row: int, count: int) -> NegativeCount:
        key, _ = self._shown(int(changes.keys[row]), int(changes.values[row]))
        return NegativeCount.of_key(self._name, key, int(changes.times[row, 0]), count)
