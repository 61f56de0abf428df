"""Graphs for tests: shapes by name, and random ones with loops in nested scopes."""

from __future__ import annotations

import random

from meander.dataflow.graph.graph import ROOT, Edge, Graph, Location, Scope
from meander.state.times.time import Time, less_equal

DEEPEST = 3


def chain() -> Graph:
    """One source whose records come to the last operator by two ways; outer times."""
    graph = Graph()
    source = graph.node("source", 0, 1)
    first = graph.node("first", 1, 1)
    second = graph.node("second", 2, 1)
    graph.edge(source.outputs[0], first.inputs[0])
    graph.edge(first.outputs[0], second.inputs[0])
    graph.edge(source.outputs[0], second.inputs[1])
    return graph


def loop() -> Graph:
    """A body whose output comes back a round later; its times are (outer, round)."""
    graph = Graph()
    inside = Scope("loop", ROOT)
    source = graph.node("source", 0, 1)
    body = graph.node("body", 2, 1, inside)
    leave = graph.node("leave", 1, 1)
    graph.edge(source.outputs[0], body.inputs[0])
    graph.edge(body.outputs[0], leave.inputs[0])
    graph.feedback(body.outputs[0], body.inputs[1])
    return graph


def some_graph(rng: random.Random) -> Graph:
    """A source, then operators in a row with forks and joins, some of them whole loops."""
    graph = Graph()
    ends = [graph.node("source", 0, 1).outputs[0]]
    _row(graph, ROOT, ends, rng)
    return graph


def _row(
    graph: Graph, scope: Scope, ends: list[Location], rng: random.Random, most: int = 3
) -> None:
    """Put operators behind the outputs `ends`, to which theirs are added."""
    for _ in range(rng.randint(1, most)):
        if scope.depth < DEEPEST and rng.random() < 0.4:
            ends.append(_loop(graph, scope, ends, rng, most))
            continue
        node = graph.node(f"n{graph.locations}", rng.randint(1, 2), rng.randint(1, 2), scope)
        for at in node.inputs:
            for end in rng.sample(ends, rng.randint(1, len(ends))):
                graph.edge(end, at)
        ends.extend(node.outputs)


def _loop(
    graph: Graph, around: Scope, ends: list[Location], rng: random.Random, most: int
) -> Location:
    scope = Scope(f"loop{graph.locations}", around)
    head = graph.node(f"head{graph.locations}", 2, 1, scope)
    graph.edge(rng.choice(ends), head.inputs[0])
    inner = [head.outputs[0]]
    _row(graph, scope, inner, rng, most)
    graph.feedback(rng.choice(inner), head.inputs[1])
    leave = graph.node(f"leave{graph.locations}", 1, 1, around)
    graph.edge(rng.choice(inner), leave.inputs[0])
    return leave.outputs[0]


def handed_graph(rng: random.Random) -> Graph:
    """The same, whose source changes hands: what a control source orders, `hand` carries out, and
    who gets its parcel reads on."""
    graph = Graph()
    source = graph.node("source", 1, 1)
    hand = graph.node("hand", 1, 1)
    control = graph.node("control", 0, 1)
    graph.edge(control.outputs[0], hand.inputs[0], credit=False)
    graph.edge(hand.outputs[0], source.inputs[0], credit=False)
    _row(graph, ROOT, [source.outputs[0]], rng, most=rng.choice((1, 1, 1, 1, 2, 2, 3)))
    return graph


class Walks:
    """What can result on a graph, found by walking it, told from the scopes alone; each walk that
    has been gone is remembered."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._onward: list[list[tuple[Location, Edge | None]]] = [
            [] for _ in range(graph.locations)
        ]
        for node in graph.nodes:
            for at in node.inputs:
                self._onward[at].extend((there, None) for there in node.outputs)
        for edge in graph.edges:
            self._onward[edge.source].append((edge.target, edge))
        self._known: dict[tuple[Location, Time], dict[Location, list[Time]]] = {}

    def results(self, start: Location, time: Time) -> dict[Location, list[Time]]:
        """The least that can result from a time at a location, everywhere."""
        known = self._known.get((start, time))
        if known is None:
            known = self._known[start, time] = self._walk(start, time)
        return known

    def _walk(self, start: Location, time: Time) -> dict[Location, list[Time]]:
        found: dict[Location, list[Time]] = {}
        work = [(start, time)]
        while work:
            here, now = work.pop()
            known = found.setdefault(here, [])
            if not any(less_equal(earlier, now) for earlier in known):
                found[here] = [earlier for earlier in known if not less_equal(now, earlier)] + [now]
                for there, edge in self._onward[here]:
                    work.append((there, _over(self.graph, edge, now) if edge else now))
        return found


def walked(graph: Graph, start: Location, time: Time) -> set[tuple[Location, Time]]:
    """The least that can result from a time at a location, everywhere."""
    found = Walks(graph).results(start, time)
    return {(at, least) for at, times in found.items() for least in times}


def _over(graph: Graph, edge: Edge, time: Time) -> Time:
    path = (time,) if isinstance(time, int) else time
    before, after = graph.scopes[edge.source].depth, graph.scopes[edge.target].depth
    if after > before:
        path = (*path, *[0] * (after - before))
    elif after < before:
        path = path[:-1]
    elif any(edge.summary.kept):
        path = (*path[:-1], path[-1] + 1)
    return path if len(path) > 1 else path[0]
