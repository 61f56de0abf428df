"""The graph: operators with ports in nested scopes, edges, and path summaries between locations.

Every member builds the same graph, so a location (a port of an operator) has one number everywhere.
The pointstamps of all members at one location add up. `reach` maps each location to every location
that can result in it, with the least summaries of the paths between.

Invariant: no path leads back to its start at the same time or an earlier one. Cost: computed once,
O(locations x edges).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from meander.dataflow.graph.path_summary import Summary, least
from meander.schemas.errors import SetupError
from meander.state.times.time import MIN_TIME, Time

Location = NewType("Location", int)
EdgeId = NewType("EdgeId", int)


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope that nests a part of a graph. Its times have one more coordinate than those of its
    parent."""

    name: str
    parent: Scope | None = None

    @property
    def depth(self) -> int:
        """Return the number of coordinates of its times.

        >>> ROOT.depth, Scope("loop", ROOT).depth
        (1, 2)
        """
        return 1 if self.parent is None else self.parent.depth + 1

    def within(self, other: Scope) -> bool:
        """Return whether this scope is another one, or nested in it at any depth.

        >>> loop = Scope("loop", ROOT)
        >>> loop.within(ROOT), loop.within(loop), ROOT.within(loop)
        (True, True, False)
        """
        return self == other or (self.parent is not None and self.parent.within(other))

    @property
    def bottom(self) -> Time:
        """Return its least time.

        >>> ROOT.bottom, Scope("loop", ROOT).bottom
        (0, (0, 0))
        """
        return MIN_TIME if self.parent is None else (MIN_TIME, *(0,) * (self.depth - 1))


ROOT = Scope("root")


@dataclass(frozen=True, slots=True)
class Node:
    """An operator that has ports at locations. All inputs lead to all outputs by the identity."""

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]
    scope: Scope
    held: Location | None = None
    """The location between inputs and outputs at which it holds times for the wall clock."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge that connects an output to an input."""

    id: EdgeId
    source: Location
    target: Location
    summary: Summary
    credit: bool = True
    """Whether the sender waits while the reader consumes no message. False on a cycle, where all
    operators would wait for each other, and for small messages of the control plane."""


class Graph:
    """A graph that connects operators by edges. The plan builds it once.

    >>> graph = Graph()
    >>> source = graph.node("source", 0, 1)
    >>> sink = graph.node("sink", 1, 0)
    >>> edge = graph.edge(source.outputs[0], sink.inputs[0])
    >>> graph.reach[sink.inputs[0]][source.outputs[0]]
    (Summary(kept=(0,), appended=()),)
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.scopes: list[Scope] = []
        """The scope of each location."""
        self.announcement_ports: set[Location] = set()
        """Outputs without edges at which an operator may announce any time. No frontier depends on
        them."""

    @property
    def locations(self) -> int:
        """Return the number of locations."""
        return len(self.scopes)

    def has(self, location: Location, time: Time) -> bool:
        """Return whether a location exists, and a time fits its scope.

        >>> graph = Graph()
        >>> (at,) = graph.node("source", 0, 1).outputs
        >>> graph.has(at, 7), graph.has(at, (7, 0)), graph.has(Location(at + 1), 7)
        (True, False, False)
        """
        if location >= len(self.scopes):
            return False
        depth = 1 if isinstance(time, int) else len(time)
        return depth == self.scopes[location].depth

    def node(
        self, name: str, inputs: int, outputs: int, scope: Scope = ROOT, *, holds: bool = False
    ) -> Node:
        """Add an operator with a number of ports, and return it. One that `holds` times for the
        wall clock has a location for them."""
        node = Node(
            name, self._ports(inputs, scope), self._ports(outputs, scope), scope,
            self._ports(1, scope)[0] if holds else None,
        )  # fmt: skip
        self.nodes.append(node)
        return node

    def edge(self, source: Location, target: Location, credit: bool = True) -> Edge:
        """Connect an output with an input of the same scope, of a scope within it, or of the scope
        around it.

        Raises SetupError for any other scope.
        """
        inner, there = self.scopes[source], self.scopes[target]
        if not there.within(inner) and inner.parent != there:
            raise SetupError(
                f"an edge from scope {inner.name!r} to {there.name!r}",
                "they do not touch",
                "lead it through the scopes between, one by one",
            )
        return self._connect(source, target, Summary.between(inner.depth, there.depth), credit)

    def feedback(self, source: Location, target: Location) -> Edge:
        """Add a feedback edge from an output to an input of its own nested scope, without credit.
        It adds one iteration.

        Raises SetupError outside of a nested scope.
        """
        scope = self.scopes[source]
        if scope != self.scopes[target] or scope.parent is None:
            raise SetupError(
                f"a feedback edge in scope {scope.name!r}",
                "it does not stay in a nested scope, so there is no round to count",
                "let it begin and end in the same nested scope",
            )
        return self._connect(source, target, Summary.feedback(scope.depth), credit=False)

    def _connect(self, source: Location, target: Location, summary: Summary, credit: bool) -> Edge:
        edge = Edge(EdgeId(len(self.edges)), source, target, summary, credit)
        self.edges.append(edge)
        return edge

    def _ports(self, count: int, scope: Scope) -> tuple[Location, ...]:
        first = self.locations
        self.scopes.extend([scope] * count)
        return tuple(Location(first + i) for i in range(count))

    def ends(self, scope: Scope) -> list[Location]:
        """Return the outputs in a scope, or nested in it, at which records leave it or the graph.

        >>> graph, loop = Graph(), Scope("loop", ROOT)
        >>> first, last = graph.node("first", 1, 1, loop), graph.node("last", 1, 1)
        >>> edge = graph.edge(first.outputs[0], last.inputs[0])
        >>> graph.ends(loop) == [*first.outputs], graph.ends(ROOT) == [*last.outputs]
        (True, True)
        """
        read = {edge.source for edge in self.edges} | self.announcement_ports
        left = {e.source for e in self.edges if not self.scopes[e.target].within(scope)}
        outputs = (at for node in self.nodes for at in node.outputs)
        inside = (at for at in outputs if self.scopes[at].within(scope))
        return [at for at in inside if at in left or at not in read]

    @cached_property
    def reach(self) -> dict[Location, dict[Location, tuple[Summary, ...]]]:
        """Return the summaries of the paths to each location, by location and start of the path.

        Raises SetupError for a cycle that increases none of the coordinates that it keeps.
        """
        reach: dict[Location, dict[Location, tuple[Summary, ...]]] = {}
        for start in map(Location, range(self.locations)):
            for target, summaries in self._reached_from(start).items():
                reach.setdefault(target, {})[start] = summaries
        return reach

    def reached_without(self, start: Location, excluded: Collection[Location]) -> set[Location]:
        """Return the locations that paths from `start` reach without the locations `excluded`.
        `start` is among them unless it is excluded.

        >>> graph = Graph()
        >>> first, last = graph.node("first", 0, 1), graph.node("last", 1, 1)
        >>> edge = graph.edge(first.outputs[0], last.inputs[0])
        >>> start = first.outputs[0]
        >>> graph.reached_without(start, ()), graph.reached_without(start, [1])
        ({0, 1, 2}, {0})
        """
        pending, found = [start], set[Location]()
        while pending:
            at = pending.pop()
            if at not in found and at not in excluded:
                found.add(at)
                pending += [there for there, _ in self._steps.get(at, ())]
        return found

    def _reached_from(self, start: Location) -> dict[Location, tuple[Summary, ...]]:
        steps = self._steps
        found: dict[Location, tuple[Summary, ...]] = {start: (self._identity(start),)}
        work = [(start, self._identity(start))]
        while work:
            at, so_far = work.pop()
            for there, summary in steps.get(at, ()):
                total = so_far.followed_by(summary)
                if there == start and not any(total.kept):
                    raise self._endless(start)
                known = found.get(there, ())
                after = least((*known, total))
                if after != known:
                    found[there] = after
                    work.append((there, total))
        return found

    def _identity(self, location: Location) -> Summary:
        depth = self.scopes[location].depth
        return Summary.between(depth, depth)

    def _endless(self, location: Location) -> SetupError:
        name = next(n.name for n in self.nodes if location in (*n.inputs, *n.outputs))
        return SetupError(
            f"operator {name!r}",
            "it is on a cycle whose times do not grow, so no frontier could ever pass it",
            "close the cycle with a feedback edge of the scope that holds all of it",
        )

    @cached_property
    def _steps(self) -> dict[Location, list[tuple[Location, Summary]]]:
        steps: dict[Location, list[tuple[Location, Summary]]] = {}
        for node in self.nodes:
            for i in node.inputs:
                inside = self._identity(i)
                steps.setdefault(i, []).extend((o, inside) for o in node.outputs)
                if node.held is not None:
                    steps[i].append((node.held, inside))
            if node.held is not None:
                inside = self._identity(node.held)
                steps[node.held] = [(o, inside) for o in node.outputs]
        for edge in self.edges:
            steps.setdefault(edge.source, []).append((edge.target, edge.summary))
        return steps
