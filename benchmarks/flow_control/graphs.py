"""Random graphs of some nodes and edges, even or skewed, each edge from the smaller node to the
greater one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.incremental.graph import RowChanges
from meander.state.collections.columns import Int64s


@dataclass(frozen=True, slots=True)
class RandomGraph:
    """A graph whose nodes have degrees in proportion to `rank ** -skew`."""

    nodes: int
    edges: int
    skew: float = 0.0

    @property
    def kind(self) -> str:
        """Return what its degrees are like."""
        return "power-law" if self.skew else "even"

    def columns(self) -> Int64s:
        """Return the start and the end of each edge in a random order, shape (edges, 2).

        >>> graph = RandomGraph(100, 300, 0.5)
        >>> edges = graph.columns()
        >>> edges.shape, bool((edges[:, 0] < edges[:, 1]).all()), len({*map(tuple, edges.tolist())})
        ((300, 2), True, 300)
        """
        rng, found = np.random.default_rng(0), np.empty((0, 2), np.int64)
        while len(found) < self.edges:
            ranks = rng.random((2 * self.edges, 2)) ** (1 / (1 - self.skew))
            some = np.sort((ranks * self.nodes).astype(np.int64), axis=1)
            found = np.unique(np.concatenate([found, some[some[:, 0] < some[:, 1]]]), axis=0)
        return rng.permutation(found)[: self.edges]

    def changes(self) -> RowChanges:
        """Return the additions of all edges, as records."""
        return RowChanges([(start, end, 1) for start, end in self.columns().tolist()])
