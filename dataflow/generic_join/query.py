"""Queries: a pattern of edges between nodes, and the orders in which a join binds its nodes.

Guarantees one delta query per edge of the pattern. A change of the edge seeds it. It sees the
changes of earlier edges at its own time, and those of later edges before its time alone, so the
queries together give each change of the matches once (Ngo et al.'s GenericJoin, kept up to date as
in differential dataflow's worst-case-optimal joins). Cost: once per start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meander.schemas.errors import SetupError

_ARROW = re.compile(r"\s*([A-Za-z_]\w*)\s*->\s*([A-Za-z_]\w*)\s*")


@dataclass(frozen=True, slots=True)
class PatternEdge:
    """An edge of a pattern, between two nodes by their number."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Relation:
    """An edge of a pattern between a bound node and the one that an extension binds."""

    place: int
    """The place of the bound node in the prefix."""
    backward: bool
    """Whether the edge leads to the bound node."""
    before: bool
    """Whether the query sees only changes of it from before its own time."""


@dataclass(frozen=True, slots=True)
class DeltaQuery:
    """A query that the changes of one edge of the pattern seed.

    The first two places of a prefix are the start and the end of that edge, and each extension
    binds the next place.
    """

    order: tuple[int, ...]
    """The nodes of the pattern in the order in which they are bound."""
    checks: tuple[Relation, ...]
    """The relations between the first two places."""
    extensions: tuple[tuple[Relation, ...], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """The nodes and edges of a pattern.

    >>> query = parse("a->b, b->c, a->c")
    >>> query.names, [(edge.start, edge.end) for edge in query.edges]
    (('a', 'b', 'c'), [(0, 1), (1, 2), (0, 2)])
    """

    names: tuple[str, ...]
    edges: tuple[PatternEdge, ...]

    def deltas(self) -> list[DeltaQuery]:
        """Return the delta query of each edge.

        >>> [query.order for query in parse("a->b, b->c, a->c").deltas()]
        [(0, 1, 2), (1, 2, 0), (0, 2, 1)]
        """
        return [self._delta(number) for number in range(len(self.edges))]

    def _delta(self, seed: int) -> DeltaQuery:
        edge = self.edges[seed]
        order, extensions = [edge.start, edge.end], list[tuple[Relation, ...]]()
        checks = tuple(self._relations(seed, order[:1], edge.end))
        while len(order) < len(self.names):
            free = (node for node in range(len(self.names)) if node not in order)
            # A node with many relations to bound ones has the fewest extensions.
            node = max(free, key=lambda one: len([*self._relations(seed, order, one)]))
            # Where all edges come at one time, these propose nothing, and end the query there.
            relations = sorted(self._relations(seed, order, node), key=lambda one: not one.before)
            extensions.append(tuple(relations))
            order.append(node)
        return DeltaQuery(tuple(order), checks, tuple(extensions))

    def _relations(self, seed: int, bound: list[int], node: int) -> Iterator[Relation]:
        """Yield the relations between bound nodes and another one, without the seed."""
        for number, edge in enumerate(self.edges):
            if number == seed:
                continue
            if edge.end == node and edge.start in bound:
                yield Relation(bound.index(edge.start), False, number > seed)
            elif edge.start == node and edge.end in bound:
                yield Relation(bound.index(edge.end), True, number > seed)


def parse(text: str) -> Query:
    """Return the query of a pattern such as "a->b, b->c". Raises SetupError for anything else."""
    names, edges = dict[str, int](), list[PatternEdge]()
    subject = f"pattern {text!r}"
    for part in text.split(","):
        found = _ARROW.fullmatch(part)
        if found is None:
            raise SetupError(subject, f"{part.strip()!r} is no edge", 'write edges as "a->b, b->c"')
        start, end = (names.setdefault(name, len(names)) for name in found.groups())
        if start == end:
            raise SetupError(subject, f"its edge {part.strip()} leads from a node to itself",
                             "name two nodes, and filter the edges before the pattern")  # fmt: skip
        if (edge := PatternEdge(start, end)) in edges:
            raise SetupError(subject, f"it has the edge {part.strip()} twice", "name it once")
        edges.append(edge)
    query = Query(tuple(names), tuple(edges))
    if apart := _apart(query):
        raise SetupError(subject, f"no path leads from node {query.names[0]} to node {apart}",
                         "connect all nodes, or use two patterns")  # fmt: skip
    return query


def _apart(query: Query) -> str | None:
    """Return a node that no path in any direction connects with the first one, or None."""
    reached = {0}
    while True:
        ends = {(edge.start, edge.end) for edge in query.edges}
        more = {node for pair in ends if reached & {*pair} for node in pair}
        if more <= reached:
            break
        reached |= more
    return next((name for n, name in enumerate(query.names) if n not in reached), None)
