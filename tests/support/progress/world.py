"""Members with real ports on a graph, who do and hear what a script says, and the truth about what
is outstanding: an oracle for frontiers (I1)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from meander.dataflow.control.reassignment import Moves
from meander.dataflow.graph.graph import Edge, Graph, Location, Node
from meander.dataflow.interfaces import Frame
from meander.dataflow.metrics.operator_latency import OperatorLatency
from meander.dataflow.operators.ports import InputPort, Message, OutputPort
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.dataflow.wire import AnyFrame, Payload, ProgressAckFrame, ProgressFrame, decode
from meander.state.keys.ids import WorkerId
from meander.state.times.antichain import Antichain, minimal
from meander.state.times.time import Time
from tests.support.progress.graphs import Walks

PAYLOAD = Moves("any", 0, WorkerId(0), ())
Pointstamp = tuple[Location, Time]
Step = tuple[int, int, int, int]
"""What happens, to which member, which of its things, and how."""
Script = Sequence[Step]


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
    reported: list[Antichain] = field(default_factory=list)
    """Its frontier at each location, as of its last look."""


Action = Callable[["World", Member, int, int], None]
"""Done by a member, with one of its things, in some way."""


class Link:
    """One member's end of all links, and its ways: what it sends waits in the world."""

    def __init__(self, world: World, me: WorkerId) -> None:
        self._world, self._me = world, me

    def send(self, peer: WorkerId, frame: Frame) -> None:
        self._world.updates.setdefault((self._me, peer), deque()).append(frame)

    def flush(self) -> None:
        """The world brings each frame by itself."""

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        return []

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        message = Message(time, payload)
        self._world.data.setdefault((self._me, to), deque()).append((edge.target, message))

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        return False


@lru_cache(4096)
def heard(part: bytes) -> AnyFrame:
    """What a frame says, which is the same to all who hear it."""
    return decode([part])


class World:
    """Members, links, and the truth about what is outstanding."""

    def __init__(
        self,
        graph: Graph,
        members: int,
        planted: Planted = SOUND,
        walks: Walks | None = None,
    ) -> None:
        self.graph, self.planted = graph, planted
        self.walks = walks or Walks(graph)
        self.truth: frozenset[Pointstamp] = frozenset()
        """All that was outstanding at the last look."""
        self.reports = 0
        """Frontiers that were new and held against the truth."""
        self._coming: dict[Location, set[Time]] = {}
        self._locations = [*map(Location, range(graph.locations))]
        self.updates: dict[tuple[WorkerId, WorkerId], deque[Frame]] = {}
        self.data: dict[tuple[WorkerId, WorkerId], deque[tuple[Location, Message]]] = {}
        self.members = [self._member(WorkerId(m), members) for m in range(members)]

    def _member(self, me: WorkerId, members: int) -> Member:
        return self._member_among(me, [WorkerId(m) for m in range(members)])

    def _member_among(self, me: WorkerId, everyone: list[WorkerId]) -> Member:
        """One of the first members, who may hold what nobody has sent."""
        progress = self.planted.progress(self.graph, me, everyone, Link(self, me))
        member = self._equipped(me, progress)
        source = self.graph.nodes[0].outputs[0]
        member.capabilities.append(member.outputs[source].open(self.graph.scopes[source].bottom))
        return member

    def _equipped(self, me: WorkerId, progress: Progress) -> Member:
        member = Member(me, progress)
        for node in self.graph.nodes:
            for at in node.inputs:
                member.inputs[at] = InputPort(at, progress, OperatorLatency())
            for at in node.outputs:
                edges = [edge for edge in self.graph.edges if edge.source == at]
                member.outputs[at] = OutputPort(at, edges, progress, me, Link(self, me))
        member.reported = [progress.frontier(at) for at in self._locations]
        return member

    # -- the truth

    def outstanding(self) -> Iterator[Pointstamp]:
        for member in self.members:
            for capability in member.capabilities:
                yield capability.location, capability.time
            for at, port in member.inputs.items():
                if port.waiting:
                    yield from ((at, message.time) for message in port.waiting)
        for lane in self.data.values():
            for at, message in lane:
                yield at, message.time

    def coming(self, at: Location) -> set[Time]:
        """All times that what is outstanding may lead to at a location."""
        known = self._coming.get(at)
        if known is None:
            known = self._coming[at] = {
                time
                for pointstamp in self.truth
                for time in self.walks.results(*pointstamp).get(at, ())
            }
        return known

    def look(self) -> None:
        """Tell the truth anew from the things themselves. What has come to be outstanding must not
        lead to before what anybody has reported (I1)."""
        truth = frozenset(self.outstanding())
        if truth == self.truth:
            return
        new, self.truth = truth - self.truth, truth
        self._coming.clear()
        for pointstamp in new:
            for at, times in self.walks.results(*pointstamp).items():
                for frontier in {member.reported[at] for member in self.members}:
                    for time in times:
                        assert frontier.less_equal(time), (
                            f"{pointstamp} leads to {time} at {at} (I1)"
                        )

    def hold_against(self, member: Member) -> None:
        """I1: nothing that was outstanding at the last look may lead to before a frontier that a
        member reports now. One that it reported before has been held against all since then."""
        before, now = member.reported, [*map(member.progress.frontier, self._locations)]
        if now == before:
            return
        member.reported = now
        for at, frontier in zip(self._locations, now, strict=True):
            if frontier is not before[at]:
                self.reports += 1
                for time in self.coming(at):
                    assert frontier.less_equal(time), f"{frontier} at {at} is ahead of {time} (I1)"

    def check(self, member: Member) -> None:
        """I1, for all that is outstanding and all that has been reported."""
        self.look()
        self.hold_against(member)

    # -- what can happen

    def open_all(self) -> None:
        self.look()
        self.flush_all()
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
        waiting = [at for at, port in member.inputs.items() if port.waiting]
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
                self.hear(member, lane[0], self.updates[lane].popleft())
                self.hold_against(member)

    def hear(self, member: Member, sender: WorkerId, frame: Frame) -> None:
        update = heard(frame[0])
        assert isinstance(update, ProgressFrame | ProgressAckFrame)
        member.progress.receive(sender, update)

    def bring_data(self, member: Member, which: int, how: int) -> None:
        lanes = [lane for lane in self.data if lane[1] == member.me and self.data[lane]]
        if lanes:
            at, message = self.data[lanes[which % len(lanes)]].popleft()
            # What the engine itself checks of every frame.
            if member.progress.ready:
                frontier = member.inputs[at].frontier
                assert frontier.less_equal(message.time), "a message came behind it (I1)"
            member.inputs[at].put(message)

    ACTIONS: tuple[Action, ...] = (
        send, send, hold, downgrade, drop, take, take, flush, flush, bring_update, bring_update,
        bring_update, bring_data, bring_data,
    )  # fmt: skip

    # -- and at last

    def all_is_told(self) -> None:
        """Everyone tells everyone everything: now frontiers are not only safe but exact."""
        self.flush_all()
        self.bring_all_updates()
        self.look()
        for at in self._locations:
            expected = set(minimal(self.coming(at)))
            for member in self.members:
                assert set(member.progress.frontier(at)) == expected, "all is known (I7)"

    def come_to_an_end(self, order: random.Random | None = None) -> None:
        """I7: when nothing is held any more, everyone knows."""
        self.look()
        self.wind_down(order or random.Random(0))
        for member in self.members:
            assert member.progress.is_quiescent(), "nothing is owed (I7)"
            assert not any(map(member.progress.frontier, self._locations)), "all is over (I7)"

    def take_in(self, member: Member, which: int, how: int) -> None:
        """Take without a wish to send on."""
        self.take(member, which, 0)

    def wind_down(self, order: random.Random) -> None:
        """All give up what they hold, and all that is under way comes, in any order."""
        owed = True
        while owed:
            for member in order.sample(self.members, len(self.members)):
                actions = [*self.left_to_do(member)]
                if actions:
                    action = order.choice(actions)
                    action(self, member, order.randrange(12), order.randrange(4))
                    self.check(member)
            if not self.truth:
                self.flush_all()
            owed = bool(self.truth) or self.under_way()

    def let_go(self, member: Member, which: int, how: int) -> None:
        """Of one thing, or of all."""
        for _ in range(len(member.capabilities) if how % 2 else 1):
            self.drop(member, which, how)

    def left_to_do(self, member: Member) -> Iterator[Action]:
        """What brings a member closer to the end."""
        if member.capabilities:
            yield World.let_go
        if any(port.waiting for port in member.inputs.values()):
            yield World.take_in
        if any(lane for (_, to), lane in self.data.items() if to == member.me):
            yield World.bring_data
        if any(lane for (_, to), lane in self.updates.items() if to == member.me):
            yield from (World.bring_update, World.bring_update)
        if member.progress.changes._deltas:
            yield type(self).flush

    def flush_all(self) -> None:
        for member in self.members:
            self.flush(member, 0, 0)
            self.hold_against(member)

    def under_way(self) -> bool:
        """Whether an update is."""
        return any(self.updates.values())

    def bring_all_updates(self) -> None:
        while self.under_way():
            for member in list(self.members):
                self.bring_update(member, 0, 99)

    # -- helpers

    def later(self, time: Time, how: int) -> Time:
        if isinstance(time, int):
            return time + how
        return (*time[:-1], time[-1] + 1) if how % 2 else (time[0] + how // 2, *time[1:])

    def _node(self, at: Location) -> Node:
        return next(node for node in self.graph.nodes if at in node.inputs)
