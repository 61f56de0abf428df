"""What can result where: path summaries against paths walked one by one (I1)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.graph.graph import ROOT, Edge, Graph, Location, Scope
from meander.dataflow.graph.path_summary import Summary, least
from meander.schemas.errors import SetupError
from meander.state.times.antichain import minimal
from meander.state.times.time import Time, less_equal
from tests.support.progress.graphs import chain, loop, some_graph, walked

INNER = Scope("inner", Scope("outer", ROOT))


def some_time(rng: random.Random, depth: int) -> Time:
    path = tuple(rng.randint(0, 5) for _ in range(depth))
    return path if depth > 1 else path[0]


@pytest.mark.parametrize("seed", range(60))
def test_reach_holds_the_least_of_all_paths(seed: int) -> None:
    """I1: a location missed, or a summary too great, would let a frontier pass what may come."""
    rng = random.Random(seed)
    graph = (chain(), loop())[seed] if seed < 2 else some_graph(rng)
    for start in map(Location, range(graph.locations)):
        time = some_time(rng, graph.scopes[start].depth)
        ends = walked(graph, start, time)
        for target in map(Location, range(graph.locations)):
            known = graph.reach[target].get(start, ())
            told = set(minimal(summary.results_in(time) for summary in known))
            assert told == {least for here, least in ends if here == target}


def test_a_feedback_edge_leads_back_a_round_later_and_no_path_is_kept_twice() -> None:
    graph = loop()
    source, body, leave = graph.nodes
    entry, back = body.inputs
    assert graph.reach[entry] == {
        entry: (Summary((0, 0)),),
        source.outputs[0]: (Summary((0,), (0,)),),
    }
    assert graph.reach[back][entry] == (Summary((0, 1)),)
    assert graph.reach[leave.inputs[0]][entry] == (Summary((0,)),)


def test_a_loop_in_a_loop_starts_its_iterations_at_zero() -> None:
    graph = Graph()
    assert INNER.parent is not None
    head = graph.node("head", 1, 1, INNER.parent)
    body = graph.node("body", 2, 1, INNER)
    tail = graph.node("tail", 1, 1, INNER.parent)
    graph.edge(head.outputs[0], body.inputs[0])
    graph.feedback(body.outputs[0], body.inputs[1])
    graph.edge(body.outputs[0], tail.inputs[0])
    graph.feedback(tail.outputs[0], head.inputs[0])
    out = body.outputs[0]
    assert set(graph.reach[out][out]) == {Summary((0, 0, 0)), Summary((0, 1), (0,))}


def test_a_source_is_not_reached_by_what_it_reaches() -> None:
    graph = Graph()
    source, sink = graph.node("source", 0, 1), graph.node("sink", 1, 0)
    graph.edge(source.outputs[0], sink.inputs[0])
    here = Summary((0,))
    assert graph.reach[source.outputs[0]] == {source.outputs[0]: (here,)}
    assert graph.edges == [Edge(graph.edges[0].id, source.outputs[0], sink.inputs[0], here)]


def test_a_cycle_without_a_feedback_edge_around_all_of_it_is_refused() -> None:
    """I7: leaving a loop and coming back begins at round 0, which is no later."""
    graph = Graph()
    inside = Scope("loop", ROOT)
    outer, inner = graph.node("outer", 1, 1), graph.node("inner", 2, 1, inside)
    graph.edge(outer.outputs[0], inner.inputs[0])
    graph.feedback(inner.outputs[0], inner.inputs[1])
    assert graph.reach
    closed = Graph()
    outer, inner = closed.node("outer", 1, 1), closed.node("inner", 2, 1, inside)
    closed.edge(outer.outputs[0], inner.inputs[0])
    closed.feedback(inner.outputs[0], inner.inputs[1])
    closed.edge(inner.outputs[0], outer.inputs[0])
    with pytest.raises(SetupError, match="operator 'outer': it is on a cycle whose times do not"):
        assert closed.reach


def test_an_edge_into_scopes_begins_at_round_0_of_each() -> None:
    graph = Graph()
    root, deep = graph.node("root", 0, 1), graph.node("deep", 1, 0, INNER)
    assert graph.edge(root.outputs[0], deep.inputs[0]).summary.results_in(5) == (5, 0, 0)


def test_edges_lead_out_of_scopes_one_by_one() -> None:
    graph = Graph()
    root, deep = graph.node("root", 1, 1), graph.node("deep", 1, 1, INNER)
    beside = graph.node("beside", 1, 1, Scope("beside", INNER.parent))
    for source, target in ((deep, root), (deep, beside), (beside, deep)):
        with pytest.raises(SetupError, match="they do not touch; lead it through the scopes"):
            graph.edge(source.outputs[0], target.inputs[0])
    for node in (root, deep):
        with pytest.raises(SetupError, match="it does not stay in a nested scope"):
            graph.feedback(node.outputs[0], root.inputs[0])


# -- summaries

SUMMARIES = st.builds(
    Summary,
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
)
TIMES = st.tuples(*[st.integers(0, 5)] * 4)


def path(time: Time) -> tuple[int, ...]:
    return time if isinstance(time, tuple) else (time,)


@given(first=SUMMARIES, second=SUMMARIES, time=TIMES)
def test_two_paths_in_a_row_do_what_one_does_after_the_other(
    first: Summary, second: Summary, time: tuple[int, ...]
) -> None:
    between = path(first.results_in(time))
    if len(between) >= len(second.kept):
        assert first.followed_by(second).results_in(time) == second.results_in(
            first.results_in(time)
        )


@given(left=SUMMARIES, right=SUMMARIES, times=st.lists(TIMES, min_size=1))
def test_what_is_less_makes_less_of_every_time(
    left: Summary, right: Summary, times: list[tuple[int, ...]]
) -> None:
    if left.less_equal(right):
        assert all(less_equal(left.results_in(time), right.results_in(time)) for time in times)


@given(left=SUMMARIES, right=SUMMARIES)
def test_what_is_not_less_makes_more_of_some_time(left: Summary, right: Summary) -> None:
    """So none is kept that another stands for: all that matters is decided by 0 and by many."""
    deep = len(left.kept) + len(left.appended) == len(right.kept) + len(right.appended)
    if deep and not left.less_equal(right):
        far = [tuple(9 * (n == m) for n in range(4)) for m in range(4)]
        tried = [(0, 0, 0, 0), (9, 9, 9, 9), *far]
        assert not all(less_equal(left.results_in(time), right.results_in(time)) for time in tried)


@given(many=st.lists(SUMMARIES, max_size=6))
def test_the_least_stand_for_all_and_for_nothing_twice(many: list[Summary]) -> None:
    kept = least(many)
    assert all(any(one.less_equal(other) for one in kept) for other in many)
    assert not any(a.less_equal(b) for a in kept for b in kept if a is not b)


@pytest.mark.parametrize("time", [5, (5, 1)])
def test_a_time_of_a_shallower_scope_is_refused(time: Time) -> None:
    with pytest.raises(TypeError, match="does not fit"):
        Summary((0, 0, 1)).results_in(time)
