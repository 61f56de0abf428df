"""The join plan: the steps that the prefixes of all delta queries of a pattern take together.

Guarantees that each step knows its relation for every choice, which is a query with the relation
that proposes, and the relation of the step behind it, by whose key prefixes are sent. Cost: once
per start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from meander.dataflow.generic_join.query import DeltaQuery, Query, Relation
from meander.dataflow.generic_join.steps import Count, Intersect, Propose, Relations

Find = Callable[[DeltaQuery, int], Relation | None]
"""From a query and the number of the relation that proposes to the relation of a step."""


@dataclass(frozen=True, slots=True)
class Extension:
    """The steps that bind one more node."""

    counts: tuple[Count, ...]
    propose: Propose
    intersects: tuple[Intersect, ...]


class JoinPlan:
    """The steps of a query.

    >>> from meander.dataflow.generic_join.query import parse
    >>> plan = JoinPlan(parse("a->b, b->c, a->c"), distinct=True)
    >>> [(len(one.counts), len(one.intersects)) for one in plan.extensions]
    [(2, 1)]
    """

    def __init__(self, query: Query, distinct: bool) -> None:
        self.queries, self.distinct = query.deltas(), distinct
        relations = [some for one in self.queries for some in one.extensions]
        self.width = max([1, *map(len, relations)])
        """The choices per query."""
        self.extensions, after = list[Extension](), self._relations(_none)
        for number in reversed(range(len(query.names) - 2)):
            self.extensions.insert(0, self._extension(number, after))
            after = self.extensions[0].counts[0].relations
        most = max(len(one.checks) for one in self.queries)
        checked = [self._relations(partial(_checked, number=n)) for n in range(most)]
        self.checks = self._intersects(checked, after)
        """The steps that check the first two nodes."""
        self.first = checked[0] if checked else after
        """The relations by whose keys seeds are sent."""

    @property
    def reads_backward(self) -> bool:
        """Return whether a step needs the edges by their end."""
        relations = [(*one.checks, *sum(one.extensions, ())) for one in self.queries]
        return any(one.backward for some in relations for one in some)

    def _extension(self, number: int, after: Relations) -> Extension:
        """Return the steps of an extension before the step of other relations."""
        most = max(len(one.extensions[number]) for one in self.queries)
        counted = [self._relations(partial(_nth, step=number, number=n)) for n in range(most)]
        chosen = self._relations(partial(_chosen, step=number))
        others = [self._relations(partial(_other, step=number, number=n)) for n in range(most - 1)]
        following = (*counted[1:], chosen)
        return Extension(
            tuple(
                Count(n, self.width, *pair)
                for n, pair in enumerate(zip(counted, following, strict=True))
            ),
            Propose(chosen, others[0] if others else after, self.distinct),
            self._intersects(others, after),
        )

    def _intersects(self, relations: list[Relations], after: Relations) -> tuple[Intersect, ...]:
        following = (*relations[1:], after)
        return tuple(Intersect(*pair) for pair in zip(relations, following, strict=False))

    def _relations(self, find: Find) -> Relations:
        choices = product(self.queries, range(self.width))
        return Relations.of([find(query, choice) for query, choice in choices])


def _none(query: DeltaQuery, choice: int) -> None:
    """Return no relation, as behind the last step."""


def _checked(query: DeltaQuery, choice: int, number: int) -> Relation | None:
    return _at(query.checks, number)


def _nth(query: DeltaQuery, choice: int, step: int, number: int) -> Relation | None:
    return _at(query.extensions[step], number)


def _chosen(query: DeltaQuery, choice: int, step: int) -> Relation | None:
    return _at(query.extensions[step], choice)


def _other(query: DeltaQuery, choice: int, step: int, number: int) -> Relation | None:
    """Return a relation by its number among those that do not propose."""
    relations = query.extensions[step]
    return _at([*relations[:choice], *relations[choice + 1 :]], number)


def _at(relations: Sequence[Relation], number: int) -> Relation | None:
    return relations[number] if number < len(relations) else None
