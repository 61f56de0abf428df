"""What can result where: path summaries against paths walked one by one (I1)."""

from __future__ import annotations

import random

import pytest

from dataflow.graph import Edge, Graph, Location, Summary, advance
from state.antichain import minimal
from state.time import less_equal

Nested = tuple[int, int]


def walked(graph: Graph, start: Location, time: Nested, most: int = 10) -> set[tuple[int, Nested]]:
    """Every location and time at the end of a path of some steps from a time at a location."""
    ends: set[tuple[Location, Nested]] = {(start, time)}
    found = set(ends)
    for _ in range(most):
        ends = {
            (there, after(at, summary))
            for here, at in ends
            for there, summary in _steps(graph, here)
        }
        found |= ends
    return {(int(here), at) for here, at in found}


def _steps(graph: Graph, here: Location) -> list[tuple[Location, Summary]]:
    inside = [(out, 0) for n in graph.nodes if here in n.inputs for out in n.outputs]
    return [*inside, *((e.target, e.summary) for e in graph.edges if e.source == here)]


def after(time: Nested, summary: Summary) -> Nested:
    """A nested time after one step."""
    if summary == 0:
        return time
    assert isinstance(summary, tuple)
    return (time[0] + summary[0], time[1] + summary[1])


def loop() -> Graph:
    """source -> enter(2 inputs) -> body -> leave, and back from body with a round more."""
    graph = Graph()
    source = graph.node("source", 0, 1)
    enter = graph.node("enter", 2, 1)
    body = graph.node("body", 1, 2)
    leave = graph.node("leave", 1, 0)
    graph.edge(source.outputs[0], enter.inputs[0])
    graph.edge(enter.outputs[0], body.inputs[0])
    graph.edge(body.outputs[0], enter.inputs[1], (0, 1))
    graph.edge(body.outputs[1], leave.inputs[0])
    return graph


def some_graph(rng: random.Random) -> Graph:
    graph = Graph()
    nodes = [graph.node(f"n{i}", rng.randint(0, 2), rng.randint(0, 2)) for i in range(5)]
    outputs = [(i, out) for i, node in enumerate(nodes) for out in node.outputs]
    for target, node in enumerate(nodes):
        for port in node.inputs:
            chosen = [(i, out) for i, out in outputs if rng.random() < 0.4]
            for i, out in chosen:
                # Whoever goes back goes round by round, so that no cycle adds nothing.
                forward = i < target
                graph.edge(out, port, 0 if forward else rng.choice([(0, 1), (0, 2), (1, 0)]))
    return graph


@pytest.mark.parametrize("seed", range(30))
def test_reach_holds_the_least_of_all_paths(seed: int) -> None:
    """I1: a location missed, or a summary too great, would let a frontier pass what may come."""
    graph = loop() if seed == 0 else some_graph(random.Random(seed))
    for start in map(Location, range(graph.locations)):
        ends = walked(graph, start, (3, 4))
        for target in map(Location, range(graph.locations)):
            known = graph.reach[target].get(start, ())
            least = minimal(time for here, time in ends if here == target)
            assert {advance((3, 4), s) for s in known} == set(least)


def test_a_feedback_edge_leads_back_a_round_later_and_no_path_is_kept_twice() -> None:
    graph = loop()
    enter = graph.nodes[1]
    reach = graph.reach[enter.inputs[0]]
    assert reach == {enter.inputs[0]: (0,), graph.nodes[0].outputs[0]: (0,)}
    reach = graph.reach[enter.inputs[1]]
    assert reach[enter.inputs[1]] == (0,)
    assert reach[enter.inputs[0]] == ((0, 1),)


def test_incomparable_paths_are_both_kept() -> None:
    graph = Graph()
    node, end = graph.node("n", 0, 2), graph.node("end", 2, 0)
    for summary in [(0, 2), (1, 0), (1, 3)]:
        graph.edge(node.outputs[0], end.inputs[0], summary)
    assert set(graph.reach[end.inputs[0]][node.outputs[0]]) == {(0, 2), (1, 0)}


def test_a_source_is_not_reached_by_what_it_reaches() -> None:
    graph = Graph()
    source, sink = graph.node("source", 0, 1), graph.node("sink", 1, 0)
    graph.edge(source.outputs[0], sink.inputs[0])
    assert graph.reach[source.outputs[0]] == {source.outputs[0]: (0,)}
    assert graph.edges == [Edge(graph.edges[0].id, source.outputs[0], sink.inputs[0])]


@pytest.mark.parametrize(("time", "summary"), [(5, (0, 1)), ((5, 1), 3)])
def test_a_summary_of_another_scope_is_refused(time: object, summary: object) -> None:
    with pytest.raises(TypeError, match="does not fit"):
        advance(time, summary)  # type: ignore[arg-type]


@pytest.mark.parametrize("summary", [0, (0, 1), (2, 0), (1, 1)])
def test_a_path_never_leads_back_in_time(summary: Summary) -> None:
    """I1: progress rests on results that are not before their causes."""
    assert less_equal((3, 4), advance((3, 4), summary))
