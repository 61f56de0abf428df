"""Prefixes: rows that bind some nodes of a pattern, as columns on edges.

The columns of a batch are: the key by which the row is sent, the query with the chosen relation,
the nodes in the order of their query, and the diff. Between a count and a propose step the number
of proposals comes before the nodes. Guarantees that all rows of an edge bind equally many nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from meander.dataflow.operators.collection.updates import batch_of, owned
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Bools, Int64s
from meander.state.encoding.value_columns import ValueColumns


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Prefixes of equally many nodes; all columns have the shape (n,)."""

    times: Int64s
    """The outer times."""
    choices: Int64s
    """The query times the choices per query, plus the relation that proposes."""
    nodes: tuple[Int64s, ...]
    diffs: Int64s
    proposals: Int64s | None = None
    """How many nodes the chosen relation proposes at most, where that is counted."""

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def of(batch: Batch, counted: bool) -> Prefixes:
        """Return the prefixes of a batch."""
        assert isinstance(batch.values, ValueColumns), "prefixes have typed columns"
        _, choices, *nodes, diffs = map(owned, cast(tuple[Int64s, ...], batch.values.columns))
        proposals = nodes.pop(0) if counted else None
        return Prefixes(batch.times, choices, tuple(nodes), diffs, proposals)

    def batch(self, keys: Int64s) -> Batch:
        """Return the prefixes as a batch, which is sent by `keys`.

        >>> one, two = np.array([1]), np.array([2])
        >>> prefixes = Prefixes(np.array([5]), one, (one, two), one)
        >>> [*prefixes.batch(two).values]
        [(2, 1, 1, 2, 1)]
        """
        counted = () if self.proposals is None else (self.proposals,)
        return batch_of(self.times, keys, self.choices, *counted, *self.nodes, self.diffs)

    def take(self, rows: Int64s) -> Prefixes:
        """Return rows by number, in the given order."""
        return Prefixes(
            self.times[rows],
            self.choices[rows],
            tuple(column[rows] for column in self.nodes),
            self.diffs[rows],
            None if self.proposals is None else self.proposals[rows],
        )

    def extended(self, rows: Int64s, nodes: Int64s, diffs: Int64s) -> Prefixes:
        """Return prefixes of some rows with one node more; their diffs are products."""
        some = replace(self, proposals=None).take(rows)
        return replace(some, nodes=(*some.nodes, nodes), diffs=some.diffs * diffs)

    @property
    def is_new(self) -> Bools:
        """Return which rows do not bind their last node twice, shape (n,)."""
        *earlier, last = self.nodes
        new: Bools = np.logical_and.reduce([last != one for one in earlier])
        return new

    def at(self, places: Int64s) -> Int64s:
        """Return the node of each row at a place of its prefix, shape (n,)."""
        if len(places) and (places == places[0]).all():
            return self.nodes[int(places[0])]
        found = self.nodes[0]
        for place, column in enumerate(self.nodes[1:], 1):
            found = np.where(places == place, column, found)
        return found


def keys_of(batch: Batch) -> Int64s:
    """Return the keys by which the prefixes of a batch are sent, shape (n,)."""
    return _column(batch, 0)


def proposals_of(batch: Batch) -> Int64s:
    """Return how many nodes each counted prefix of a batch proposes at most."""
    return _column(batch, 2)


def _column(batch: Batch, number: int) -> Int64s:
    assert isinstance(batch.values, ValueColumns), "prefixes have typed columns"
    return owned(cast(Int64s, batch.values.columns[number]))
