"""Members with real ports on a graph, who do and hear what a script says, and the truth about what
is outstanding: an oracle for frontiers (I1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from dataflow.capability import Capability
from dataflow.graph import Edge, Graph, Location, Node
from dataflow.migrate.moves import Moves
from dataflow.operators.base import InputPort, Message, OutputPort
from dataflow.progress import Progress
from dataflow.protocols import Frame
from dataflow.wire import ProgressFrame, decode
from state.antichain import minimal
from state.ids import WorkerId
from state.time import Time
from tests.graphs import walked

PAYLOAD = Moves("any", 0, WorkerId(0), ())
Pointstamp = tuple[Location, Time]
Script = list[tuple[int, int, int, int]]
"""What happens, to which member, which of its things, and how."""


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
    """One member's end of all links, and its ways: what it sends waits in the world."""

    def __init__(self, world: World, me: WorkerId) -> None:
        self._world, self._me = world, me

    def send(self, peer: WorkerId, frame: Frame) -> None:
        self._world.updates.setdefault((self._me, peer), deque()).append(frame)

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        return []

    def deliver(self, edge: Edge, to: WorkerId, message: Message) -> None:
        self._world.data.setdefault((self._me, to), deque()).append((edge.target, message))

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        return False


class World:
    """Members, links, and the truth about what is outstanding."""

    def __init__(self, graph: Graph, members: int, planted: Planted = SOUND) -> None:
        self.graph, self.planted = graph, planted
        self.known: dict[Pointstamp, set[Pointstamp]] = {}
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
                member.inputs[at] = InputPort(at, progress)
            for at in node.outputs:
                edges = [edge for edge in self.graph.edges if edge.source == at]
                member.outputs[at] = OutputPort(at, edges, progress, me, Link(self, me))
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
            self.known[pointstamp] = walked(self.graph, *pointstamp)
        return self.known[pointstamp]

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
                self.hear(member, lane[0], self.updates[lane].popleft())
                self.check(member)

    def hear(self, member: Member, sender: WorkerId, frame: Frame) -> None:
        update = decode(frame)
        assert isinstance(update, ProgressFrame)
        member.progress.receive(sender, update.changes)

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
        return (*time[:-1], time[-1] + 1) if how % 2 else (time[0] + how // 2, *time[1:])

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
