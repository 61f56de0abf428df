"""Members join and leave a running computation, and every frontier stays safe (I1); in the end all
are empty (I7), and nobody keeps a trace of what is over.

A script, found by hypothesis, says who does what, who comes and goes, and what is delivered next:
updates, news of members and data in any order that the links allow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from dataflow.graph import Graph, Location
from dataflow.membership import Roster
from dataflow.progress import Progress, outer
from dataflow.wire import DataFrame, MemberFrame, TakenFrame, decode, encode_member
from state.ids import COORDINATOR, WorkerId
from tests.graphs import some_graph
from tests.progress_world import PAYLOAD, SOUND, Link, Member, Planted, World

MOST = 8
"""Workers that ever take part."""


class Changing(World):
    """A world with a coordinator, whose members come and go."""

    def __init__(self, graph: Graph, workers: int, planted: Planted = SOUND) -> None:
        super().__init__(graph, 0, planted)
        everyone = [COORDINATOR, *map(WorkerId, range(workers))]
        self.members = [self._member_among(me, everyone) for me in everyone]
        self.roster = Roster(graph, self.members[0].progress, Link(self, COORDINATOR))
        self.parts_at: dict[WorkerId, int] = {}
        self.latest = 0
        self.named = workers

    # -- what can happen besides

    def join(self, member: Member, which: int, how: int) -> None:
        if self.named < MOST:
            me = WorkerId(self.named)
            self.named += 1
            newcomer = self.planted.progress.newcomer(self.graph, me, Link(self, me))
            self.members.append(self._equipped(me, newcomer))
            self.members[0].progress.flush()
            self.roster.admit(me)

    def part(self, member: Member, which: int, how: int) -> None:
        staying = [m for m in self.members[1:] if m.me not in self.parts_at]
        if len(staying) > 1:
            leaver = staying[which % len(staying)]
            # Nothing so late is outstanding anywhere, nor will be addressed to it from now on.
            self.parts_at[leaver.me] = self.latest + 1
            self.roster.dismiss(leaver.me, self.latest + 1)

    def announce(self, member: Member, which: int, how: int) -> None:
        self.members[0].progress.flush()
        self.roster.announce()

    def send(self, member: Member, which: int, how: int) -> None:
        if member.capabilities:
            capability = member.capabilities[which % len(member.capabilities)]
            time = self.later(capability.time, how)
            there = [m.me for m in self.members if self._may_get(m.me, outer(time))]
            if there:
                self.latest = max(self.latest, outer(time))
                port = member.outputs[capability.location]
                port.send(capability, time, PAYLOAD, there[(which + how) % len(there)])

    def _may_get(self, me: WorkerId, time: int) -> bool:
        return time < self.parts_at.get(me, time + 1)

    def take(self, member: Member, which: int, how: int) -> None:
        if member.progress.welcome:
            super().take(member, which, how)

    def flush(self, member: Member, which: int, how: int) -> None:
        if member.progress.welcome:
            super().flush(member, which, how)

    def hear(self, member: Member, sender: WorkerId, frame: list[bytes]) -> None:
        update = decode(frame)
        if member.me == COORDINATOR and isinstance(update, MemberFrame):
            self.roster.take(sender, update)
        else:
            assert not isinstance(update, DataFrame | TakenFrame)
            member.progress.take(sender, update)
        if member.progress.ended:
            self._end(member)

    def _end(self, member: Member) -> None:
        assert not member.capabilities, "who leaves holds nothing"
        assert not any(port._queue for port in member.inputs.values()), "and nothing waits for it"
        assert not any(lane for (_, to), lane in self.data.items() if to == member.me)
        self.members.remove(member)

    def bring_all_updates(self) -> None:
        while self.under_way():
            for member in list(self.members):
                self.bring_update(member, 0, 99)

    def under_way(self) -> bool:
        """Whether an update is, to anyone who still listens."""
        listening = {member.me for member in self.members}
        return any(lane for (_, to), lane in self.updates.items() if to in listening)

    ACTIONS = cast(
        tuple[Callable[[World, Member, int, int], None], ...],
        (
            send, send, World.hold, World.downgrade, World.drop, take, take, take, flush, flush,
            World.bring_update, World.bring_update, World.bring_update, World.bring_data,
            World.bring_data, join, part, announce, announce,
        ),
    )  # fmt: skip

    def come_to_an_end(self) -> None:
        """Whoever was told to leave has left; a last base, and no trace is left of anything."""
        while any(self.outstanding()) or self.under_way():
            for member in list(self.members):
                for capability in member.capabilities:
                    capability.drop()
                member.capabilities.clear()
                self.bring_data(member, 0, 0)
                self.take(member, 0, 0)
                self.flush(member, 0, 0)
            self.bring_all_updates()
        self.announce(self.members[0], 0, 0)
        self.bring_all_updates()
        assert not self.roster.parting
        assert not {m.me for m in self.members} & self.parts_at.keys()
        names = {m.me for m in self.members}
        for member in self.members:
            progress = member.progress
            assert {member.me, *progress.peers} == names
            assert progress.settled()
            assert not progress.contribution
            assert not any(progress.frontier(Location(at)) for at in range(self.graph.locations))


SCRIPTS = st.lists(
    st.tuples(
        st.integers(0, len(Changing.ACTIONS) - 1),
        st.integers(0, 9),
        st.integers(0, 11),
        st.integers(0, 3),
    ),
    min_size=60,
    max_size=160,
)


# One leaves, and only an older base, which follows from its updates, is known when the next joins.
AFTER_A_LEAVER = [
    (15, 0, 0, 0), *[(0, 2, 0, 0)] * 3, (4, 1, 0, 0), (8, 1, 0, 0), (10, 0, 0, 0), (16, 0, 0, 0),
    *[(0, 0, 0, 1)] * 6, (3, 0, 0, 1), *[(0, 0, 0, 0)] * 30, (10, 1, 0, 1), (17, 0, 0, 0),
    (10, 1, 0, 1), (10, 0, 0, 0), (15, 0, 0, 0),
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@example(seed=0, workers=1, script=AFTER_A_LEAVER)
@given(seed=st.integers(0, 1 << 32), workers=st.integers(1, 3), script=SCRIPTS)
def test_frontiers_stay_safe_while_members_come_and_go(
    seed: int, workers: int, script: list[tuple[int, int, int, int]]
) -> None:
    world = Changing(some_graph(random.Random(seed)), workers)
    world.open_all()
    world.play(script)
    world.come_to_an_end()


# -- planted bugs


class OpensWithNothing(Progress):
    """A newcomer hears of what happens from now on only."""

    def open_to(self, member: WorkerId) -> None:
        known, self.contribution = self.contribution, {}
        super().open_to(member)
        self.contribution = known


class WaitsForNobody(Progress):
    """A newcomer computes frontiers before it has all openings."""

    @property
    def ready(self) -> bool:
        return self.welcome and self._me not in self._unopened


class LeavesAtOnce(Progress):
    """A leaver does not wait until all that it has contributed is over."""

    def _part(self) -> None:
        if self._parts_at is not None:
            self._parts_at = None
            self._links.send(COORDINATOR, encode_member("parted"))


class OpensTwice(Progress):
    """What a newcomer is told at its opening it is told once more with the next update."""

    def open_to(self, member: WorkerId) -> None:
        super().open_to(member)
        for (at, time), count in self.contribution.items():
            self.changes.add(at, time, count)


@pytest.mark.parametrize("progress", [OpensWithNothing, WaitsForNobody, LeavesAtOnce, OpensTwice])
def test_a_planted_bug_is_noticed(progress: type[Progress]) -> None:
    @settings(max_examples=2_000, deadline=None, phases=[Phase.generate], database=None)
    @given(seed=st.integers(0, 1 << 32), workers=st.integers(1, 3), script=SCRIPTS)
    def run(seed: int, workers: int, script: list[tuple[int, int, int, int]]) -> None:
        world = Changing(some_graph(random.Random(seed)), workers, Planted(progress))
        world.open_all()
        world.play(script)
        world.come_to_an_end()

    with pytest.raises((AssertionError, KeyError, IndexError)):
        run()
