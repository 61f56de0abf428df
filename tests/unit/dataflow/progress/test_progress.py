"""I1 by brute force: whatever members do and in whatever order updates come, no frontier passes
what can still result from a message or capability that exists; and in the end all are empty.

A script, found by hypothesis, says who does what and what is delivered next. Every bug that a
progress protocol is prone to is planted once, to see that it is noticed.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from meander.dataflow.graph.graph import Graph
from meander.dataflow.progress.capability import Capability, CapabilityError
from meander.dataflow.progress.progress import Progress
from meander.dataflow.simulation.simulator import SimLinks, SimNetwork
from meander.dataflow.wire import Base, MemberFrame, OpeningFrame, ProgressFrame, decode
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME
from tests.support.progress.graphs import chain, loop, some_graph
from tests.support.progress.planted_bugs import (
    DoesNotWaitForOpenings,
    ForgetsADecrement,
    TellsTheDecrementsFirst,
    TellsTheLastFirst,
)
from tests.support.progress.world import Member, Planted, Script, World

SCRIPTS = st.lists(
    st.tuples(
        st.integers(0, len(World.ACTIONS) - 1),
        st.integers(0, 5),
        st.integers(0, 11),
        st.integers(0, 3),
    ),
    min_size=60,
    max_size=120,
)
GRAPHS = pytest.mark.parametrize("graph", [chain(), loop()], ids=["chain", "loop"])


@GRAPHS
@settings(max_examples=60)
@given(members=st.integers(1, 3), opened=st.booleans(), script=SCRIPTS)
def test_no_frontier_passes_what_may_still_come(
    graph: Graph, members: int, opened: bool, script: Script
) -> None:
    world = World(graph, members)
    if opened:
        world.open_all()
    world.play(script)
    world.all_is_told()
    world.come_to_an_end()


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32), members=st.integers(1, 8), script=SCRIPTS)
def test_nor_on_any_graph_with_loops_in_nested_scopes(
    seed: int, members: int, script: Script
) -> None:
    world = World(some_graph(random.Random(seed)), members)
    world.open_all()
    world.play(script)
    world.all_is_told()
    world.come_to_an_end()


# -- planted bugs


def noticed(graph: Graph, planted: Planted) -> None:
    @settings(
        max_examples=1500,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
    )
    @given(script=SCRIPTS)
    def explore(script: Script) -> None:
        world = World(graph, 2, planted)
        if planted.progress is not DoesNotWaitForOpenings:
            world.open_all()
        world.play(script)
        world.come_to_an_end()

    explore()


@GRAPHS
@pytest.mark.parametrize(
    "planted",
    [
        Planted(ForgetsADecrement),
        Planted(TellsTheDecrementsFirst),
        Planted(TellsTheLastFirst),
        Planted(DoesNotWaitForOpenings),
        Planted(mints_late=True),
    ],
    ids=["forgotten", "split", "overtaken", "unopened", "late"],
)
def test_a_planted_bug_is_noticed(graph: Graph, planted: Planted) -> None:
    with pytest.raises(AssertionError):
        noticed(graph, planted)


@GRAPHS
def test_a_capability_used_after_its_release_is_noticed(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: it is refused; and were it not, it would be seen."""
    planted = Planted(uses_dropped=True)
    with pytest.raises(CapabilityError):
        noticed(graph, planted)
    monkeypatch.setattr(Capability, "check", lambda self, time: None)
    with pytest.raises(AssertionError):
        noticed(graph, planted)


# -- single statements


def test_no_member_computes_a_frontier_before_all_openings() -> None:
    """I1: another member may hold anything."""
    world = World(chain(), 3)
    first, *others = world.members
    sink = world.graph.nodes[2].inputs[0]
    for member in world.members:
        member.capabilities.pop().downgrade(9)
        member.progress.flush()
        assert not opened(member)
        assert member.progress.frontier(sink).times == (MIN_TIME,)
        assert member.progress.least([sink]) == MIN_TIME
        assert member.progress.furthest([sink]) == MIN_TIME
    world.bring_update(first, 0, 0)
    assert not opened(first)
    world.bring_update(first, 0, 0)
    world.bring_update(first, 1, 0)
    assert opened(first)
    assert first.progress.frontier(sink).times == (9,)
    assert not any(map(opened, others))


def opened(member: Member) -> bool:
    return member.progress.ready


def test_an_empty_opening_is_sent() -> None:
    """I7: otherwise everyone would wait for it."""
    world = World(chain(), 2)
    world.members[1].capabilities.pop().drop()
    assert all(member.progress.flush() for member in world.members)
    assert not any(member.progress.flush() for member in world.members)
    world.bring_all_updates()
    assert all(member.progress.ready for member in world.members)


def test_an_answer_may_be_heard_before_its_question() -> None:
    """I1: the count at the question's place is negative meanwhile, and frees nothing."""
    world = World(chain(), 3)
    world.open_all()
    asks, answers, listens = world.members
    first = world.graph.nodes[1]
    for member in (answers, listens):
        member.capabilities.pop().drop()
        member.progress.flush()
    world.bring_all_updates()
    world.send(asks, 0, 1)
    world.drop(asks, 0, 0)
    asks.progress.flush()
    (lane,) = [lane for lane in world.data if world.data[lane]]
    receiver = world.members[lane[1]]
    third = next(m for m in world.members if m not in (asks, receiver))
    while world.data[lane]:
        world.bring_data(receiver, 0, 0)
    for _ in range(2):
        world.take(receiver, 0, 1)
    receiver.progress.flush()
    update = decode(world.updates[receiver.me, third.me].popleft())
    assert isinstance(update, ProgressFrame)
    third.progress.apply(receiver.me, update.changes)
    assert any(not counts.is_empty() for counts in third.progress._tracker._counts)
    world.check(third)
    assert third.progress.frontier(first.inputs[0]).times == (MIN_TIME,)
    world.all_is_told()
    assert third.progress.frontier(first.inputs[0]).times == ()


def test_the_least_and_the_furthest_that_is_held_somewhere() -> None:
    world = World(chain(), 1)
    (member,) = world.members
    source = world.graph.nodes[0].outputs[0]
    other = member.capabilities[0].delayed(7)
    member.progress.flush()
    assert member.progress.least([source]) == MIN_TIME
    assert member.progress.furthest([source]) == 7
    member.capabilities[0].drop()
    other.drop()
    member.progress.flush()
    assert member.progress.least([source]) is None
    assert member.progress.furthest([source]) is None


def test_who_joins_waits_for_all_that_a_base_follows_from_though_one_has_left_unheard() -> None:
    """I1: what the base says of others holds only behind the updates that it follows from."""
    graph = Graph()
    source, sink = graph.node("source", 0, 1), graph.node("sink", 1, 0)
    graph.edge(source.outputs[0], sink.inputs[0])
    stayed, left, me = map(WorkerId, range(3))
    progress = Progress.joining(graph, me, SimLinks(SimNetwork(), me))
    bottom = Base(0, (Antichain.of(0),) * graph.locations)
    progress.receive(COORDINATOR, MemberFrame("welcome", (COORDINATOR, stayed, left)))
    progress.receive(COORDINATOR, OpeningFrame(bottom, 1, []))
    progress.receive(stayed, OpeningFrame(bottom, 2, [(source.outputs[0], 6, 1)]))
    # By its third update, which has not come here, one holds 8 in place of 6.
    cut = ((COORDINATOR, 1), (stayed, 3), (left, 5))
    progress.receive(COORDINATOR, Base(1, (Antichain.of(8),) * graph.locations, cut))
    progress.receive(COORDINATOR, MemberFrame("left", (left,)))
    was_ready = progress.ready
    assert not was_ready
    assert progress.frontier(sink.inputs[0]).less_equal(8)
    progress.apply(stayed, [(source.outputs[0], 8, 1), (source.outputs[0], 6, -1)])
    assert progress.frontier(sink.inputs[0]) == Antichain.of(8)
