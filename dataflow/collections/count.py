"""Counts in total order: how many values each key has, kept up to date without the values.

Guarantees what `reduce.count` gives outside of loops. There the output before a time tells the
count, so an update needs no earlier input (differential dataflow, `CountTotal`). Invariant: the
output rows of a key, value times diff, add up to its count. Cost: two rows of output per changed
key and time, and no rows of input.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.reduce import (
    PIECE_KEYS,
    NegativeCount,
    Shown,
    first_rows,
    slices_by_keys,
)
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of, keys_of
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
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
        upper, made = description.upper, [Updates.of([], DEPTH)]
        hashes = hashes_of(changes.keys)
        order = np.lexsort((changes.times[:, 0], hashes))
        hashes, changes = hashes[order], changes.take(order)
        for some in slices_by_keys(hashes, PIECE_KEYS):
            piece = self._counted(hashes[some], changes.take(some), upper)
            made.append(piece)
            if len(piece):
                yield piece
        self.output.insert(layer_of(Updates.concat(made), description))
        self.previous.advance(upper)

    def _counted(self, hashes: UInt64s, changes: Updates, upper: Antichain) -> Updates:
        """Return the output for changes in the order of hashes and times."""
        times, new_key = changes.times[:, 0], first_rows(hashes)
        new_time = new_key.copy()
        new_time[1:] |= times[1:] != times[:-1]
        at = np.flatnonzero(new_time)
        keys = np.flatnonzero(new_key[at])
        counts = self._before(hashes[at[keys]], upper)
        sums = np.cumsum(np.add.reduceat(changes.diffs, at))
        base = np.zeros(len(keys), np.int64)
        base[1:] = sums[keys[1:] - 1]
        after = sums + np.repeat(counts - base, np.diff(np.append(keys, len(at))))
        self._check(after, at, changes)
        before = np.empty_like(after)
        before[1:], before[keys] = after[:-1], counts
        removed = np.flatnonzero((before != after) & (before != 0))
        added = np.flatnonzero((before != after) & (after != 0))
        rows = np.concatenate([removed, added])
        return Updates(
            keys_of(hashes[at[rows]]),
            np.concatenate([before[removed], after[added]]),
            changes.times[at[rows]],
            np.repeat(np.array([-1, 1]), [len(removed), len(added)]),
        )

    def _before(self, hashes: UInt64s, upper: Antichain) -> Int64s:
        """Return the counts of sorted distinct hashes after the steps so far."""
        rows = self.previous.gather(hashes, upper)
        counts = np.zeros(len(hashes), np.int64)
        np.add.at(counts, rows.query, rows.values * rows.diffs)
        return counts

    def _check(self, counts: Int64s, at: Int64s, changes: Updates) -> None:
        negative = np.flatnonzero(counts < 0)
        if len(negative):
            row = at[negative[0]]
            key, _ = self._shown(int(changes.keys[row]), int(changes.values[row]))
            time = int(changes.times[row, 0])
            raise NegativeCount.of_key(self._name, key, time, int(counts[negative[0]]))
