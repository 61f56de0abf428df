"""Members who join and leave a world, take partitions over from each other, and a coordinator."""

from __future__ import annotations

import random
from typing import cast

from meander.dataflow.graph.graph import Graph
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.membership import Membership
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.wire import CheckpointFrame, CreditFrame, DataFrame, MemberFrame
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.state.times.time import MIN_TIME, Time
from tests.support.progress.graphs import Walks
from tests.support.progress.world import PAYLOAD, SOUND, Action, Link, Member, Planted, World, heard

MOST = 8
"""Workers that ever take part."""


class ChangingWorld(World):
    """A world with a coordinator, whose members come and go."""

    def __init__(
        self,
        graph: Graph,
        workers: int,
        planted: Planted = SOUND,
        walks: Walks | None = None,
    ) -> None:
        super().__init__(graph, 0, planted, walks)
        everyone = [COORDINATOR, *map(WorkerId, range(workers))]
        self.members = [self._member_among(me, everyone) for me in everyone]
        self.roster = Membership(graph, self.members[0].progress, Link(self, COORDINATOR))
        self.parts_at: dict[WorkerId, int] = {}
        self.latest = 0
        self.named = workers
        self.joined = self.left = self.handed = 0
        self.ports = {node.name: node for node in graph.nodes}
        if "control" in self.ports:
            control = self.members[0].outputs[self.ports["control"].outputs[0]]
            self.members[0].capabilities.append(control.open(MIN_TIME))

    # -- what can happen besides

    def join(self, member: Member, which: int, how: int) -> None:
        if self.named < MOST and self.members[0].progress.ready:
            me = WorkerId(self.named)
            self.named += 1
            newcomer = self.planted.progress.joining(self.graph, me, Link(self, me))
            self.members.append(self._equipped(me, newcomer))
            self._coordinator_flushes()
            self.roster.admit(me, checkpoint=0)
            self.joined += 1

    def part(self, member: Member, which: int, how: int) -> None:
        staying = [m for m in self.members[1:] if m.me not in self.parts_at]
        if len(staying) > 1:
            leaver = staying[which % len(staying)]
            # Nothing so late is outstanding anywhere, nor will be addressed to it from now on.
            self.parts_at[leaver.me] = self.latest + 1
            self.roster.send_exit(leaver.me, self.latest + 1)

    def announce(self, member: Member, which: int, how: int) -> None:
        self._coordinator_flushes()
        self.roster.announce()

    def _coordinator_flushes(self) -> None:
        self.flush(self.members[0], 0, 0)
        self.check(self.members[0])

    def order(self, member: Member, which: int, how: int) -> None:
        """The coordinator orders that somebody's source changes hands."""
        coordinator = self.members[0]
        for capability in self._held(coordinator, "control")[:1]:
            time = self.later(capability.time, how)
            there = [m for m in self._may_get(outer_time(time)) if self._held(m, "source")]
            if there:
                self._ship(coordinator, capability, time, there[which % len(there)])

    def move_partition(self, member: Member, which: int, how: int) -> None:
        """Who has come to the time of an order lets go of its source; the parcel goes to another,
        who may go on from there (see `dataflow.migration.partition_migrator`)."""
        readers = [m for m in self.members if self._held(m, "source") and self._ordered(m)]
        if not readers:
            return
        reader = readers[which % len(readers)]
        source, order = self._held(reader, "source")[0], self._held(reader, "hand")[0]
        source.downgrade(max(source.time, order.time, key=outer_time))
        there = self._may_get(outer_time(source.time))
        if there:
            self._ship(reader, order, source.time, there[(which + how) % len(there)])
            for capability in (source, order):
                reader.capabilities.remove(capability)
                capability.drop()
            self.handed += 1

    def _ordered(self, member: Member) -> bool:
        """Whether it holds an order, perhaps one that it takes now."""
        if "hand" in self.ports:
            (orders,), (parcels,) = self.ports["hand"].inputs, self.ports["hand"].outputs
            for message in member.inputs[orders].drain():
                member.capabilities.append(member.outputs[parcels].mint(message))
        return bool(self._held(member, "hand"))

    def _held(self, member: Member, name: str) -> list[Capability]:
        outputs = self.ports[name].outputs if name in self.ports else ()
        return [capability for capability in member.capabilities if capability.location in outputs]

    def advance(self, member: Member, which: int, how: int) -> None:
        """Move on with all that is held, so that frontiers move too."""
        for capability in member.capabilities:
            capability.downgrade(self.later(capability.time, how))

    def forswear(self, member: Member, which: int, how: int) -> None:
        self.advance(self.members[0], which, how)

    def send(self, member: Member, which: int, how: int) -> None:
        if member.capabilities:
            capability = member.capabilities[which % len(member.capabilities)]
            time = self.later(capability.time, how)
            there = self._may_get(outer_time(time))
            if there:
                self._ship(member, capability, time, there[(which + how) % len(there)])

    def _ship(self, member: Member, capability: Capability, time: Time, to: Member) -> None:
        self.latest = max(self.latest, outer_time(time))
        member.outputs[capability.location].send(capability, time, PAYLOAD, to.me)

    def _may_get(self, time: int) -> list[Member]:
        """Who is not leaving before a time."""
        return [m for m in self.members if time < self.parts_at.get(m.me, time + 1)]

    def take(self, member: Member, which: int, how: int) -> None:
        if member.progress.welcome:
            super().take(member, which, how)

    def flush(self, member: Member, which: int, how: int) -> None:
        if member.progress.welcome:
            super().flush(member, which, how)

    def hear(self, member: Member, sender: WorkerId, frame: list[bytes]) -> None:
        update = heard(frame[0])
        if member.me == COORDINATOR and isinstance(update, MemberFrame):
            self.roster.receive(sender, update)
        else:
            assert not isinstance(update, DataFrame | CreditFrame | CheckpointFrame)
            member.progress.receive(sender, update)
        if member.progress.ended:
            self._end(member)

    def _end(self, member: Member) -> None:
        assert not member.capabilities, "who leaves holds nothing (I1)"
        assert not any(port.waiting for port in member.inputs.values()), "nothing waits for it (I1)"
        coming = [lane for (_, to), lane in self.data.items() if to == member.me and lane]
        assert not coming, "nothing is on its way to it (I1)"
        self.members.remove(member)
        self.left += 1

    def under_way(self) -> bool:
        """Whether an update is, to anyone who still listens."""
        listening = {member.me for member in self.members}
        return any(lane for (_, to), lane in self.updates.items() if to in listening)

    ACTIONS = cast(
        tuple[Action, ...],
        (
            send, send, World.hold, World.downgrade, World.drop, take, take, take, flush, flush,
            World.bring_update, World.bring_update, World.bring_update, World.bring_data,
            World.bring_data, join, part, announce, announce, order,
            move_partition, advance, forswear,
        ),
    )  # fmt: skip

    def come_to_an_end(self, order: random.Random | None = None) -> None:
        """Whoever was told to leave has left; a last base, and no trace is left of anything."""
        order = order or random.Random(0)
        self.look()
        self.wind_down(order)
        self.announce(self.members[0], 0, 0)
        self.wind_down(order)
        assert not self.roster.leaving, "who was to leave has left (I7)"
        assert not {m.me for m in self.members} & self.parts_at.keys()
        names = {m.me for m in self.members}
        for member in self.members:
            progress = member.progress
            assert {member.me, *progress.peers} == names
            assert progress.is_quiescent(), "nothing is owed (I7)"
            assert not progress.contribution, "no trace is left (I7)"
            assert not any(map(progress.frontier, self._locations)), "all is over (I7)"
