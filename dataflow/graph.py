"""The dataflow graph: operators with ports, edges, and which location can result in which.

Every worker instantiates the same graph, so a location (a port of an operator) has one number
everywhere, and pointstamps of all workers at one location are simply added up. An edge or an
operator's inside carries a path summary: what it adds to a time (0, the identity, everywhere but on
feedback edges). `reach` holds, for each location, every location that can result in it and the
antichain of summaries of the paths between them. Cost: computed once, O(locations x edges).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from state.antichain import minimal
from state.time import Time

Location = NewType("Location", int)
EdgeId = NewType("EdgeId", int)

Summary = Time
"""What a path adds to a time, coordinate by coordinate; 0 adds nothing in any scope."""


def advance(time: Time, summary: Summary) -> Time:
    """The least time that can result over a path.

    >>> advance((5, 1), (0, 1)), advance(7, 0), advance((5, 1), 0)
    ((5, 2), 7, (5, 1))
    """
    if isinstance(summary, int):
        if summary == 0:
            return time
        if isinstance(time, int):
            return time + summary
        raise TypeError(f"summary {summary!r} does not fit the time {time!r}")
    if isinstance(time, int):
        if time == 0:
            return summary
        raise TypeError(f"summary {summary!r} does not fit the time {time!r}")
    return tuple(a + b for a, b in zip(time, summary, strict=True))


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: its ports' locations. All inputs lead to all outputs by the identity."""

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """From an output to an input; `summary` is not 0 on a feedback edge only."""

    id: EdgeId
    source: Location
    target: Location
    summary: Summary = 0


class Graph:
    """Operators and edges, built once and then only read.

    >>> graph = Graph()
    >>> source = graph.node("source", 0, 1)
    >>> sink = graph.node("sink", 1, 0)
    >>> edge = graph.edge(source.outputs[0], sink.inputs[0])
    >>> graph.reach[sink.inputs[0]] == {sink.inputs[0]: (0,), source.outputs[0]: (0,)}
    True
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.locations = 0

    def node(self, name: str, inputs: int, outputs: int) -> Node:
        """Add an operator with so many ports."""
        node = Node(name, self._ports(inputs), self._ports(outputs))
        self.nodes.append(node)
        return node

    def edge(self, source: Location, target: Location, summary: Summary = 0) -> Edge:
        """Connect an output with an input."""
        edge = Edge(EdgeId(len(self.edges)), source, target, summary)
        self.edges.append(edge)
        return edge

    def _ports(self, count: int) -> tuple[Location, ...]:
        first = self.locations
        self.locations += count
        return tuple(Location(first + i) for i in range(count))

    @cached_property
    def reach(self) -> dict[Location, dict[Location, tuple[Summary, ...]]]:
        """For each location, what can result in it: {location: summaries of the paths}."""
        reach: dict[Location, dict[Location, tuple[Summary, ...]]] = {}
        for start in map(Location, range(self.locations)):
            for target, summaries in self._reached_from(start).items():
                reach.setdefault(target, {})[start] = summaries
        return reach

    def _reached_from(self, start: Location) -> dict[Location, tuple[Summary, ...]]:
        steps = self._steps
        found: dict[Location, tuple[Summary, ...]] = {start: (0,)}
        work: list[tuple[Location, Summary]] = [(start, 0)]
        while work:
            here, so_far = work.pop()
            for there, summary in steps.get(here, ()):
                total = advance(so_far, summary)
                known = found.get(there, ())
                after = _with_path(known, total)
                if after != known:
                    found[there] = after
                    work.append((there, total))
        return found

    @cached_property
    def _steps(self) -> dict[Location, list[tuple[Location, Summary]]]:
        steps: dict[Location, list[tuple[Location, Summary]]] = {}
        for node in self.nodes:
            for i in node.inputs:
                steps.setdefault(i, []).extend((o, 0) for o in node.outputs)
        for edge in self.edges:
            steps.setdefault(edge.source, []).append((edge.target, edge.summary))
        return steps


def _with_path(known: tuple[Summary, ...], summary: Summary) -> tuple[Summary, ...]:
    # Summaries only ever add, so the identity is the least of them in any scope.
    if 0 in known:
        return known
    return (0,) if summary == 0 else minimal((*known, summary))
