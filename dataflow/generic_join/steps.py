"""The steps of GenericJoin: count, propose and intersect.

An extension counts what each relation would propose, lets the one with the fewest proposals
propose, and drops what the others do not support (Ngo et al., GenericJoin; Faucet, section 2). Each
step handles the prefixes of all queries, and gives rows the key by which the next step looks up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meander.dataflow.generic_join.key_runs import KeyRuns, Proposals
from meander.dataflow.generic_join.prefixes import Prefixes, keys_of
from meander.dataflow.generic_join.query import Relation
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import Cursor

NO_RELATION = -1
"""Stands in place of an arrangement for prefixes that a step lets pass."""


@dataclass(frozen=True, slots=True)
class Relations:
    """The relation in which a step looks up the prefixes of each choice; shape (choices,)."""

    arrangements: Int64s
    """0 for edges by their start, 1 for edges by their end, or `NO_RELATION`."""
    places: Int64s
    """The place of the node that is the key."""
    before: Int64s
    """1 where only updates from before the time of the prefix count, else 0."""

    @staticmethod
    def of(relations: Sequence[Relation | None]) -> Relations:
        """Return the relation of each choice.

        >>> Relations.of([Relation(1, True, False), None]).arrangements.tolist()
        [1, -1]
        """
        rows = [
            (NO_RELATION, 0, 0) if one is None else (int(one.backward), one.place, int(one.before))
            for one in relations
        ]
        arrangements, places, before = np.array(rows, np.int64).reshape(-1, 3).T
        return Relations(*map(np.ascontiguousarray, (arrangements, places, before)))

    def keys(self, prefixes: Prefixes) -> Int64s:
        """Return the key of each prefix. Those that pass have any one."""
        return prefixes.at(self.places[prefixes.choices])

    def lookups(self, batch: Batch, prefixes: Prefixes) -> Iterator[KeyLookup]:
        """Yield what is looked up in each arrangement, without the prefixes that pass."""
        which = self.arrangements[prefixes.choices]
        keys, limits = keys_of(batch), prefixes.times + 1 - self.before[prefixes.choices]
        for arrangement in (0, 1):
            rows = np.flatnonzero(which == arrangement)
            if len(rows) == len(which):
                yield KeyLookup(arrangement, rows, keys, limits)
            elif len(rows):
                yield KeyLookup(arrangement, rows, keys[rows], limits[rows])


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Rows that a step looks up in one arrangement; all columns have the shape (n,)."""

    arrangement: int
    rows: Int64s
    """The rows of the batch."""
    keys: Int64s
    limits: Int64s
    """The outer times below which updates count."""


@dataclass(frozen=True, slots=True)
class Found:
    """The prefixes that a step found, and the row of which each is a result; `rows` (n,)."""

    batch: Batch
    rows: Int64s

    @staticmethod
    def of(prefixes: Prefixes, rows: Int64s, following: Relations) -> Found:
        """Return prefixes with the keys of the step that follows."""
        return Found(prefixes.batch(following.keys(prefixes)), rows)


@dataclass(frozen=True, slots=True)
class Count:
    """The count of what one relation proposes. A prefix keeps the least count so far."""

    number: int
    """The place of the relation in its extension; the first one has 0."""
    width: int
    """The choices per query."""
    relations: Relations
    next: Relations

    def __call__(self, batch: Batch, cursors: Sequence[Cursor]) -> Found:
        """Return the prefixes that may have an extension."""
        prefixes = Prefixes.of(batch, counted=self.number > 0)
        choices, fewest = prefixes.choices.copy(), prefixes.proposals
        fewest = np.full(len(prefixes), np.iinfo(np.int64).max) if fewest is None else fewest.copy()
        for one in self.relations.lookups(batch, prefixes):
            counts = KeyRuns.of(one.keys).counts(cursors[one.arrangement], one.limits)
            fewer = counts < fewest[one.rows]
            rows = one.rows[fewer]
            fewest[rows] = counts[fewer]
            choices[rows] += self.number - choices[rows] % self.width
        counted = replace(prefixes, choices=choices, proposals=fewest)
        left = np.flatnonzero(fewest)
        return Found.of(counted.take(left), left, self.next)


@dataclass(frozen=True, slots=True)
class Propose:
    """The extension of prefixes by what the chosen relation proposes."""

    relations: Relations
    next: Relations
    distinct: bool
    """Whether a node may be bound once only."""

    def __call__(self, batch: Batch, cursors: Sequence[Cursor]) -> Found:
        """Return the extended prefixes."""
        prefixes = Prefixes.of(batch, counted=True)
        parts = list[Proposals]()
        for one in self.relations.lookups(batch, prefixes):
            found = KeyRuns.of(one.keys).proposals(cursors[one.arrangement], one.limits)
            parts.append(replace(found, rows=one.rows[found.rows]))
        found = Proposals.concat(parts)
        extended, rows = prefixes.extended(found.rows, found.values, found.diffs), found.rows
        if self.distinct and not (new := extended.is_new).all():
            left = np.flatnonzero(new)
            extended, rows = extended.take(left), rows[left]
        return Found.of(extended, rows, self.next)


@dataclass(frozen=True, slots=True)
class Intersect:
    """The choice of the prefixes whose last node one relation supports."""

    relations: Relations
    next: Relations

    def __call__(self, batch: Batch, cursors: Sequence[Cursor]) -> Found:
        """Return the supported prefixes; their diffs are products."""
        prefixes = Prefixes.of(batch, counted=False)
        support = np.ones(len(prefixes), np.int64)
        for one in self.relations.lookups(batch, prefixes):
            runs, wanted = KeyRuns.of(one.keys), prefixes.nodes[-1][one.rows]
            support[one.rows] = runs.support(cursors[one.arrangement], one.limits, wanted)
        left = np.flatnonzero(support)
        supported = prefixes.take(left)
        supported = replace(supported, diffs=supported.diffs * support[left])
        return Found.of(supported, left, self.next)
