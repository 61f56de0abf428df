"""Patterns over changing graphs of some hundred nodes; igraph or a plain join gives the matches.

No partition counts as idle, so the logical times of a run depend on the input alone.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import igraph

from meander import Flow, pattern
from meander.dataflow.generic_join.query import parse
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.times.time import to_millis
from meander.testing import TestFlow

Edge = tuple[int, int]
Match = tuple[int, ...]
"""A node for each name of a pattern, in the order in which the pattern names them."""
Changes = Sequence[tuple[int, tuple[int, int, int]]]
"""Milliseconds, with the start, the end and the diff of an edge."""
Draw = Callable[[random.Random, int], int]
"""Draws one of some nodes, by their number."""
Found = Counter[tuple[int, Match]]
"""The sum of the diffs of each match at each time in milliseconds."""
PARTITIONS = 2
UNBOUND = -1
"""Stands for a node that is not bound."""


def clique(size: int) -> str:
    """Return the pattern of all edges between some nodes, which lead from lower to higher ones.

    >>> clique(3)
    'a->b, a->c, b->c'
    """
    return ", ".join(f"{start}->{end}" for start, end in combinations("abcdefgh"[:size], 2))


def matches_of_cliques(size: int, edges: Counter[Edge]) -> Counter[Match]:
    """Return the cliques of a graph whose edges lead from lower to higher nodes."""
    return Counter(tuple(sorted(one)) for one in _graph(edges, False).cliques(size, size))


def subisomorphisms(text: str, edges: Counter[Edge]) -> Counter[Match]:
    """Return the matches with distinct nodes in a graph without parallel edges."""
    wanted = igraph.Graph([(one.start, one.end) for one in parse(text).edges], directed=True)
    return Counter(map(tuple, _graph(edges, True).get_subisomorphisms_lad(wanted, induced=False)))


def joined(text: str, edges: Counter[Edge]) -> Counter[Match]:
    """Return the matches whose nodes may be equal, by a join of one edge after the other."""
    query = parse(text)
    leaving, entering = defaultdict[int, list[Edge]](list), defaultdict[int, list[Edge]](list)
    for edge in edges:
        leaving[edge[0]].append(edge)
        entering[edge[1]].append(edge)
    found: Counter[Match] = Counter({(UNBOUND,) * len(query.names): 1})
    for wanted in query.edges:
        longer: Counter[Match] = Counter()
        for nodes, count in found.items():
            start, end = nodes[wanted.start], nodes[wanted.end]
            known = leaving[start] if start != UNBOUND else entering[end]
            for edge in edges if start == end == UNBOUND else known:
                if end in (UNBOUND, edge[1]):
                    bound = [*nodes]
                    bound[wanted.start], bound[wanted.end] = edge
                    longer[tuple(bound)] += count * edges[edge]
        found = longer
    return found


def _graph(edges: Counter[Edge], directed: bool) -> Any:
    assert max(edges.values(), default=1) == 1, "igraph takes no parallel edges"
    nodes = max((max(edge) for edge in edges), default=0) + 1
    return igraph.Graph(nodes, [(start, end) for start, end in edges if start != end], directed)


@dataclass(frozen=True)
class PatternFlow:
    """A pattern, the edges that suit it, and its matches in a graph."""

    text: str
    distinct: bool
    expected: Callable[[Counter[Edge]], Counter[Match]]
    edge: Callable[[int, int], Edge] = lambda one, other: (one, other)
    """Returns the edge between two nodes."""
    changes: int = 80
    """The most changes of a run, which takes a second or so."""


def _upward(one: int, other: int) -> Edge:
    return min(one, other), max(one, other)


def _clique_flow(size: int) -> PatternFlow:
    return PatternFlow(
        clique(size), True, lambda edges: matches_of_cliques(size, edges), _upward, 70
    )


def _distinct_flow(text: str) -> PatternFlow:
    return PatternFlow(text, True, lambda edges: subisomorphisms(text, edges))


def _joined_flow(text: str) -> PatternFlow:
    return PatternFlow(text, False, lambda edges: joined(text, edges), changes=40)


CYCLE, DIAMOND, TWO_WAY = "a->b, b->c, c->a", "a->b, a->c, b->d, c->d", "a->b, b->a, b->c"
PATTERN_FLOWS = {
    "3-cliques": _clique_flow(3),
    "4-cliques": _clique_flow(4),
    "cycles": _distinct_flow(CYCLE),
    "diamonds": _distinct_flow(DIAMOND),
    "two-way edges": _distinct_flow(TWO_WAY),
    "diamonds of any nodes": _joined_flow(DIAMOND),
    "two-way edges of any nodes": _joined_flow(TWO_WAY),
}


def random_changes(
    rng: random.Random, flow: PatternFlow, nodes: int, changes: int, skewed: bool
) -> Changes:
    """Return additions of edges, and removals of some that there are, some of them at one time.

    A skewed graph has hubs, and another one a dense part, so it has matches. Without distinct nodes
    an edge may be there twice, and may lead from a node to itself.
    """
    near: Draw = _hub if skewed else partial(_member, rng.sample(range(nodes), 6))
    pace = rng.choice([0.05, 0.4])
    present, found, millis = Counter[Edge](), list[tuple[int, tuple[int, int, int]]](), 1
    while len(found) < changes:
        millis += rng.random() < pace
        if present and rng.random() < 0.2:
            edge, diff = rng.choice(sorted(present)), -1
        else:
            node = near if rng.random() < 0.8 else _any
            edge, diff = flow.edge(node(rng, nodes), node(rng, nodes)), 1
            if flow.distinct and (edge in present or edge[0] == edge[1]):
                continue
        present[edge] += diff
        present = +present
        found.append((millis, (*edge, diff)))
    return found


def _hub(rng: random.Random, nodes: int) -> int:
    """Return a node by a power law."""
    return int(nodes * rng.random() ** 5)


def _any(rng: random.Random, nodes: int) -> int:
    return rng.randrange(nodes)


def _member(dense: Sequence[int], rng: random.Random, _: int) -> int:
    return rng.choice(dense)


class Control(NamedTuple):
    """The flow control of a pattern."""

    batch: int
    in_flight: int


def random_control(rng: random.Random) -> Control:
    """Return flow control of small and of larger batches."""
    return Control(rng.choice([rng.randint(3, 6), rng.randint(7, 50)]), rng.choice([1, 1, 2, 4]))


def run_pattern(
    flow: PatternFlow, changes: Changes, control: Control | None, workers: int, seed: int
) -> Found:
    """Run a pattern over the changes of edges on simulated workers."""
    definition, sink = Flow("pattern", bins=3), ListSink()
    # An edge has one partition, so its removal stays behind its addition.
    lists = [
        [one for one in changes if sum(one[1][:2]) % PARTITIONS == part]
        for part in range(PARTITIONS)
    ]
    source = definition.source(ListSource(lists, SourceOptions(idle_after=1e6)))
    edges = source.collection(lambda change: change)
    one = pattern(flow.text, distinct=flow.distinct)
    batch, in_flight = control or (None, 1)
    one.matches(edges, batch=batch, in_flight=in_flight).changes().sink(sink)
    with TestFlow(definition, workers=workers, seed=seed) as running:
        running.run()
    found = Found()
    for result in sink.results:
        assert isinstance(result.value, dict)
        *nodes, diff = result.value.values()
        place = to_millis(result.time), tuple(nodes)
        assert place not in found, f"a match of a time comes once: {place}"
        found[place] = diff
    return found


def edges_at(changes: Changes, millis: int) -> Counter[Edge]:
    """Return the edges at a time."""
    edges = Counter[Edge]()
    for when, (start, end, diff) in changes:
        edges[start, end] += diff if when <= millis else 0
    return +edges


def matches_at(found: Found, millis: int) -> Counter[Match]:
    """Return the matches at a time."""
    matches = Counter[Match]()
    for (when, nodes), diff in found.items():
        matches[nodes] += diff if when <= millis else 0
    return Counter({nodes: count for nodes, count in matches.items() if count})


def check_times(flow: PatternFlow, changes: Changes, found: Found, times: Iterable[int]) -> int:
    """Check the matches at some times. Return their number."""
    count = 0
    for millis in times:
        expected = flow.expected(edges_at(changes, millis))
        assert matches_at(found, millis) == expected, f"at {millis} ms"
        count += expected.total()
    return count
