"""Buffered updates: rows that wait for their entries in the store, in the order of their bins.

Guarantees that each row leaves once: with its bin, or with all. Invariant: a run of rows is sorted
by bin, and has at most half the rows of the run before it. Cost: a row is sorted when a bin is
asked for, and again with each run that joins its own; then a bin costs one search per run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin

Bins = npt.NDArray[np.uint16]
"""Numbers of bins, narrow enough for a sort without comparisons."""


@dataclass(slots=True)
class _Run:
    """Rows sorted by bin; `bins` has the shape (n,)."""

    bins: Bins
    updates: Updates
    taken: set[Bin] = field(default_factory=set)
    """The bins that have left."""

    @staticmethod
    def of(updates: Updates, space: BinSpace) -> _Run:
        bins = space.bins_of(hashes_of(updates.keys)).astype(np.uint16)
        order = np.argsort(bins, kind="stable")
        return _Run(bins[order], updates.take(order))

    def take(self, bin: Bin) -> Updates:
        """Take the rows of a bin, once."""
        first, last = np.searchsorted(self.bins, np.array([bin, bin + 1]))
        if first == last or bin in self.taken:
            return self.updates.take(slice(0))
        self.taken.add(bin)
        return self.updates.take(slice(first, last))

    @property
    def left(self) -> Updates:
        """Return the rows that have not left."""
        if not self.taken:
            return self.updates
        kept = ~np.isin(self.bins, np.array([*self.taken], np.uint16))
        return self.updates.take(np.flatnonzero(kept))


class BufferedUpdates:
    """The buffered updates of one arrangement.

    >>> space = BinSpace(1)
    >>> buffered, (bin,) = BufferedUpdates(space), space.bins_of(hashes_of(np.array([7])))
    >>> buffered.add(Updates.of([(7, 1, (0,), 1), (9, 1, (0,), 1), (7, 2, (4,), 1)]))
    >>> buffered.take(bin).values.tolist(), len(buffered)
    ([1, 2], 1)
    """

    def __init__(self, space: BinSpace) -> None:
        self._space = space
        self._new: list[Updates] = []
        self._runs: list[_Run] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, updates: Updates) -> None:
        """Add rows in any order."""
        self._new.append(updates)
        self._rows += len(updates)

    def take(self, bin: Bin) -> Updates:
        """Remove and return the rows of a bin, of a buffer that has had rows."""
        self._sort()
        found = Updates.concat([run.take(bin) for run in self._runs])
        self._rows -= len(found)
        return found

    def take_all(self) -> Iterator[tuple[Bin, Updates]]:
        """Remove all rows, of a buffer that has had rows, and yield them by bin."""
        left = Updates.concat([*(run.left for run in self._runs), *self._new])
        run = _Run.of(left, self._space)
        self._new, self._runs, self._rows = [], [], 0
        starts = np.flatnonzero(np.diff(run.bins, prepend=-1)).tolist()
        for first, last in zip(starts, [*starts[1:], len(run.bins)], strict=True):
            yield Bin(int(run.bins[first])), run.updates.take(slice(first, last))

    def _sort(self) -> None:
        """Let the new rows be a run, which joins those before it that are not twice as long."""
        if not self._new:
            return
        joined = [Updates.concat(self._new)]
        while self._runs and len(self._runs[-1].bins) <= 2 * sum(map(len, joined)):
            joined.append(self._runs.pop().left)
        self._runs.append(_Run.of(Updates.concat(joined[::-1]), self._space))
        self._new = []
