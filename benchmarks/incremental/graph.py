"""A random graph that changes: each edge follows from its number, so any part of it is made anew.

Change 2n adds an edge, and change 2n + 1 removes the oldest one, so the graph keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meander.state.collections.columns import Int64s
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates

ROOTS = 5
"""The roots of a search. A single one of a sparse graph may lose its last edge."""
ROOT = -1
"""The key of an update that adds a root."""
Row = tuple[int, int, int]


class Records(Protocol):
    """Changes of a collection, as records of a source."""

    def __len__(self) -> int: ...

    def rows(self) -> Sequence[object]:
        """Return the records."""

    def share(self, one: int, of: int) -> Records:
        """Return each record that one of several workers reads."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of any types, row by row."""

    changes: Sequence[object]

    def __len__(self) -> int:
        return len(self.changes)

    def rows(self) -> Sequence[object]:
        """Return the changes."""
        return self.changes

    def share(self, one: int, of: int) -> RowChanges:
        """Return each change that one of several workers reads."""
        return RowChanges(self.changes[one::of])


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a collection; all columns have the shape (n,)."""

    keys: Int64s
    values: Int64s
    diffs: Int64s

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self) -> list[Row]:
        """Return the changes as records of a source."""
        columns = self.keys.tolist(), self.values.tolist(), self.diffs.tolist()
        return list(zip(*columns, strict=True))

    def share(self, one: int, of: int) -> Changes:
        """Return each change that one of several workers reads."""
        return Changes(self.keys[one::of], self.values[one::of], self.diffs[one::of])

    def updates(self, times: Int64s) -> Updates:
        """Return the changes as updates at outer times, shape (n,)."""
        return Updates(self.keys, self.values, times[:, None], self.diffs)


class ChangingGraph(Protocol):
    """A graph that is loaded, and then changes."""

    @property
    def edges(self) -> int:
        """Return the number of edges at first."""

    def initial(self, first: int, count: int) -> Records:
        """Return the additions of some of the first edges."""

    def changes(self, first: int, count: int) -> Records:
        """Return changes that follow the first edges."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph with so many nodes and, at any time, edges."""

    nodes: int
    edges: int

    def edge(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the sources and targets of edges.

        >>> sources, targets = Graph(10, 20).edge(np.arange(20))
        >>> sources.min() >= 0, targets.max() < 10
        (np.True_, np.True_)
        """
        mixed, half = hashes_of(numbers), np.uint64(32)
        nodes, low = np.uint64(self.nodes), np.uint64((1 << 32) - 1)
        sources, targets = ((mixed >> half) * nodes) >> half, ((mixed & low) * nodes) >> half
        return sources.astype(np.int64), targets.astype(np.int64)

    def initial(self, first: int, count: int) -> Changes:
        """Return the additions of some of the first edges."""
        sources, targets = self.edge(np.arange(first, min(first + count, self.edges)))
        return Changes(sources, targets, np.ones(len(sources), np.int64))

    def changes(self, first: int, count: int) -> Changes:
        """Return changes that follow the first edges.

        >>> Graph(10, 20).changes(0, 4).diffs.tolist()
        [1, -1, 1, -1]
        """
        numbers = np.arange(first, first + count)
        removals = numbers % 2
        columns = self.edge(np.where(removals, numbers // 2, self.edges + numbers // 2))
        return Changes(*columns, 1 - 2 * removals)

    def after(self, changes: int) -> tuple[Int64s, Int64s]:
        """Return the sources and targets of all edges after so many changes."""
        first, last = changes // 2, self.edges + (changes + 1) // 2
        return self.edge(np.arange(first, last))

    @property
    def roots(self) -> Changes:
        """Return the additions of the roots."""
        roots = np.arange(ROOTS, dtype=np.int64) * (self.nodes // ROOTS)
        return Changes(np.full(ROOTS, ROOT), roots, np.ones(ROOTS, np.int64))
