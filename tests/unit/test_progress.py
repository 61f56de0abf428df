"""I1 by brute force: whatever members do and in whatever order updates come, no frontier passes
what can still result from a message or capability that exists; and in the end all are empty.

A world is some members with real ports on a graph; a script, found by hypothesis, says who does
what and what is delivered next. Every bug that a progress protocol is prone to is planted once, to
see that the world notices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dataflow.capability import Capability, CapabilityError
from dataflow.graph import Edge, Graph, Location, Node, Summary
from dataflow.migrate.moves import Moves
from dataflow.operators.base import InputPort, Message, OutputPort
from dataflow.progress import Progress
from dataflow.protocols import Frame
from dataflow.wire import ProgressFrame, decode
from state.antichain import minimal
from state.ids import WorkerId
from state.time import MIN_TIME, Time

PAYLOAD = Moves("any", 0, WorkerId(0), ())
Pointstamp = tuple[Location, Time]
Script = list[tuple[int, int, int, int]]
"""What happens, to which member, which of its things, and how."""


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
    """A body whose output comes back a round later; times are (outer, round)."""
    graph = Graph()
    source = graph.node("source", 0, 1)
    body = graph.node("body", 2, 1)
    leave = graph.node("leave", 1, 1)
    graph.edge(source.outputs[0], body.inputs[0])
    graph.edge(body.outputs[0], leave.inputs[0])
    graph.edge(body.outputs[0], body.inputs[1], (0, 1))
    return graph


@dataclass(frozen=True)
class Planted:
    """A progress protocol with or without a bug."""

    progress: type[Progress] = Progress
    mints_late: bool = False
    uses_dropped: bool = False


SOUND = Planted()


@dataclass
class Member:
    me: WorkerId
    progress: Progress
    inputs: dict[Location, InputPort] = field(default_factory=dict)
    outputs: dict[Location, OutputPort] = field(default_factory=dict)
    capabilities: list[Capability] = field(default_factory=list)
    dropped: list[Capability] = field(default_factory=list)


class Link:
    """One member's end of all links: what it sends waits in the world."""

    def __init__(self, world: World, me: WorkerId) -> None:
        self._world, self._me = world, me

    def send(self, peer: WorkerId, frame: Frame) -> None:
        self._world.updates.setdefault((self._me, peer), deque()).append(frame)

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        return []


class World:
    """Members, links, and the truth about what is outstanding."""

    def __init__(self, graph: Graph, members: int, planted: Planted = SOUND) -> None:
        self.graph, self.planted = graph, planted
        self.known: dict[Pointstamp, set[Pointstamp]] = {}
        self.nested = any(edge.summary != 0 for edge in graph.edges)
        self.updates: dict[tuple[WorkerId, WorkerId], deque[Frame]] = {}
        self.data: dict[tuple[WorkerId, WorkerId], deque[tuple[Location, Message]]] = {}
        self.members = [self._member(WorkerId(m), members) for m in range(members)]

    def _member(self, me: WorkerId, members: int) -> Member:
        everyone = [WorkerId(m) for m in range(members)]
        progress = self.planted.progress(self.graph, me, everyone, Link(self, me))
        member = Member(me, progress)

        def deliver(edge: Edge, to: WorkerId, message: Message) -> None:
            self.data.setdefault((me, to), deque()).append((edge.target, message))

        for node in self.graph.nodes:
            for at in node.inputs:
                member.inputs[at] = InputPort(at, progress)
            for at in node.outputs:
                edges = [edge for edge in self.graph.edges if edge.source == at]
                member.outputs[at] = OutputPort(at, edges, progress, me, deliver)
        source = self.graph.nodes[0].outputs[0]
        start: Time = (MIN_TIME, 0) if self.nested else MIN_TIME
        member.capabilities.append(member.outputs[source].open(start))
        return member

    # -- the truth

    def outstanding(self) -> Iterator[Pointstamp]:
        for member in self.members:
            yield from ((c.location, c.time) for c in member.capabilities)
            for at, port in member.inputs.items():
                yield from ((at, message.time) for message in port._queue)
        for lane in self.data.values():
            yield from ((at, message.time) for at, message in lane)

    def results(self, pointstamp: Pointstamp) -> set[Pointstamp]:
        """The least that can result from it at each location, path by path."""
        if pointstamp not in self.known:
            found, ends = {pointstamp}, {pointstamp}
            for _ in range(2 * self.graph.locations):
                ends = {step for end in ends for step in self._steps(end)}
                found |= ends
            self.known[pointstamp] = least(found)
        return self.known[pointstamp]

    def _steps(self, pointstamp: Pointstamp) -> Iterator[Pointstamp]:
        here, time = pointstamp
        for node in self.graph.nodes:
            if here in node.inputs:
                yield from ((there, time) for there in node.outputs)
        for edge in self.graph.edges:
            if edge.source == here:
                yield edge.target, plus(time, edge.summary)

    def check(self, member: Member) -> None:
        """I1."""
        if not member.progress.ready:
            return
        for pointstamp in set(self.outstanding()):
            for at, time in self.results(pointstamp):
                frontier = member.progress.frontier(at)
                assert frontier.less_equal(time), f"{pointstamp} may lead to {time} at {at}"

    # -- what can happen

    def open_all(self) -> None:
        for member in self.members:
            member.progress.flush()
        self.bring_all_updates()

    def play(self, script: Script) -> None:
        for kind, who, which, how in script:
            member = self.members[who % len(self.members)]
            self.ACTIONS[kind](self, member, which, how)
            self.check(member)

    def send(self, member: Member, which: int, how: int) -> None:
        usable = [*member.capabilities, *(member.dropped if self.planted.uses_dropped else ())]
        if usable:
            capability = usable[which % len(usable)]
            to = self.members[(which + how) % len(self.members)].me
            port = member.outputs[capability.location]
            port.send(capability, self.later(capability.time, how), PAYLOAD, to)

    def hold(self, member: Member, which: int, how: int) -> None:
        if member.capabilities:
            capability = member.capabilities[which % len(member.capabilities)]
            member.capabilities.append(capability.delayed(self.later(capability.time, how)))

    def downgrade(self, member: Member, which: int, how: int) -> None:
        if member.capabilities:
            capability = member.capabilities[which % len(member.capabilities)]
            capability.downgrade(self.later(capability.time, how))

    def drop(self, member: Member, which: int, how: int) -> None:
        if member.capabilities:
            capability = member.capabilities.pop(which % len(member.capabilities))
            capability.drop()
            member.dropped.append(capability)

    def take(self, member: Member, which: int, how: int) -> None:
        waiting = [at for at, port in member.inputs.items() if port._queue]
        if not waiting:
            return
        at = waiting[which % len(waiting)]
        messages = list(member.inputs[at].drain())
        if self.planted.mints_late:
            member.progress.flush()
        for message in messages:
            for out in self._node(at).outputs:
                if how:
                    member.capabilities.append(member.outputs[out].mint(message))

    def flush(self, member: Member, which: int, how: int) -> None:
        member.progress.flush()

    def bring_update(self, member: Member, which: int, how: int) -> None:
        lanes = [lane for lane in self.updates if lane[1] == member.me and self.updates[lane]]
        if lanes:
            lane = lanes[which % len(lanes)]
            for _ in range(min(1 + how, len(self.updates[lane]))):
                update = decode(self.updates[lane].popleft())
                assert isinstance(update, ProgressFrame)
                member.progress.receive(lane[0], update.changes)
                self.check(member)

    def bring_data(self, member: Member, which: int, how: int) -> None:
        lanes = [lane for lane in self.data if lane[1] == member.me and self.data[lane]]
        if lanes:
            at, message = self.data[lanes[which % len(lanes)]].popleft()
            # What the engine itself checks of every frame.
            if member.progress.ready:
                assert member.inputs[at].frontier.less_equal(message.time)
            member.inputs[at].put(message)

    ACTIONS: tuple[Callable[[World, Member, int, int], None], ...] = (
        send, send, hold, downgrade, drop, take, take, flush, flush, bring_update, bring_update,
        bring_update, bring_data, bring_data,
    )  # fmt: skip

    # -- and at last

    def all_is_told(self) -> None:
        """Everyone tells everyone everything: now frontiers are not only safe but exact."""
        for member in self.members:
            member.progress.flush()
        self.bring_all_updates()
        truth = least({r for p in set(self.outstanding()) for r in self.results(p)})
        for member in self.members:
            for at in map(Location, range(self.graph.locations)):
                expected = {time for there, time in truth if there == at}
                assert set(member.progress.frontier(at)) == expected

    def come_to_an_end(self) -> None:
        """I7: when nothing is held any more, everyone knows."""
        for member in self.members:
            for capability in member.capabilities:
                capability.drop()
            member.capabilities.clear()
            member.progress.flush()
        while any(True for _ in self.outstanding()):
            for member in self.members:
                self.bring_data(member, 0, 0)
                self.take(member, 0, 0)
                member.progress.flush()
        self.bring_all_updates()
        for member in self.members:
            assert member.progress.settled()
            assert not any(
                member.progress.frontier(Location(at)) for at in range(self.graph.locations)
            )

    def bring_all_updates(self) -> None:
        while any(self.updates.values()):
            for member in self.members:
                self.bring_update(member, 0, 99)

    # -- helpers

    def later(self, time: Time, how: int) -> Time:
        if isinstance(time, int):
            return time + how
        return (time[0] + how // 2, time[1] + how % 2)

    def _node(self, at: Location) -> Node:
        return next(node for node in self.graph.nodes if at in node.inputs)


def least(pointstamps: set[Pointstamp]) -> set[Pointstamp]:
    """The minimal times at each location."""
    places = {at for at, _ in pointstamps}
    return {
        (at, time)
        for at in places
        for time in minimal(t for there, t in pointstamps if there == at)
    }


def plus(time: Time, summary: Summary) -> Time:
    if summary == 0:
        return time
    assert isinstance(time, tuple) and isinstance(summary, tuple)
    return tuple(a + b for a, b in zip(time, summary, strict=True))


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


# -- planted bugs


class ForgetsADecrement(Progress):
    def flush(self) -> bool:
        changes = self.changes.take()
        first = next((change for change in changes if change[2] < 0), None)
        for change in changes:
            if change != first:
                self.changes.add(*change)
        return super().flush()


class TellsTheDecrementsFirst(Progress):
    def flush(self) -> bool:
        if self._me in self._unopened:
            return super().flush()
        changes = self.changes.take()
        told = []
        for chosen in ([c for c in changes if c[2] < 0], [c for c in changes if c[2] > 0]):
            for change in chosen:
                self.changes.add(*change)
            told.append(super().flush())
        return any(told)


class DoesNotWaitForOpenings(Progress):
    @property
    def ready(self) -> bool:
        return True


class TellsTheLastFirst(Progress):
    """Links that are not FIFO: an update overtakes those before it."""

    def flush(self) -> bool:
        flushed = super().flush()
        assert isinstance(self._links, Link)
        for lane, frames in self._links._world.updates.items():
            if flushed and lane[0] == self._me and self.ready:
                frames.appendleft(frames.pop())
        return flushed


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


def test_nobody_computes_a_frontier_before_all_openings() -> None:
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
        assert member.progress.furthest([sink]) is None
    world.bring_update(first, 0, 0)
    assert not opened(first)
    world.bring_update(first, 0, 0)
    world.bring_update(first, 1, 0)
    assert opened(first)
    assert first.progress.frontier(sink).times == (9,)
    assert not any(map(opened, others))


def opened(member: Member) -> bool:
    return member.progress.ready


def test_an_opening_is_told_even_when_it_holds_nothing() -> None:
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
    third.progress.receive(receiver.me, update.changes)
    assert any(not counts.settled() for counts in third.progress._tracker._counts)
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
