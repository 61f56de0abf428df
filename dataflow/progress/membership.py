"""Who takes part: the coordinator names those who join a running computation, and those who leave.

Guarantees that a newcomer computes no frontier before it has the opening of everyone named to it,
and that a leaver ends only when all it ever contributed lies before a base that everyone has.
Invariant: news go out over the links of progress, in order with the coordinator's own updates. A
base is what the coordinator knows of all frontiers: nothing before it can ever come again, and the
updates from which that follows hold all that was ever counted there, which adds up to nothing (I1).
Cost: one frame per member and base, O(locations); openings are as large as what is outstanding.
"""

from __future__ import annotations

from meander.dataflow.graph.graph import Graph, Location
from meander.dataflow.interfaces import Links
from meander.dataflow.progress.progress import Progress
from meander.dataflow.wire import Base, MemberFrame, encode_member
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.times.antichain import Antichain


class Membership:
    """The coordinator's list of members."""

    def __init__(self, graph: Graph, progress: Progress, links: Links) -> None:
        self._progress, self._links = progress, links
        self._graph = graph
        self._parting: set[WorkerId] = set()

    @property
    def parting(self) -> bool:
        """Whether somebody waits to leave: then bases are wanted soon."""
        return bool(self._parting)

    def admit(self, member: WorkerId, checkpoint: int) -> None:
        """A newcomer takes part from now on; its links must stand. So far so many checkpoints have
        been begun.

        Raises MeanderError while the computation itself is still opening, or for a member.
        """
        if not self._progress.ready:
            raise MeanderError(member_name(member), "the flow has not opened yet", "wait for that")
        if member in self._progress.peers or member == COORDINATOR:
            raise MeanderError(member_name(member), "it takes part already", "choose another id")
        others = (COORDINATOR, *self._progress.peers)
        self._links.send(member, encode_member("welcome", others, checkpoint=checkpoint))
        self._progress.tell_all(encode_member("joins", (member,)))
        self._progress.open_to(member)

    def dismiss(self, member: WorkerId, time: int) -> None:
        """A member is to leave; nothing of `time` or later will be addressed to it any more."""
        if member not in self._progress.peers:
            raise MeanderError(member_name(member), "it takes no part", "name a member")
        self._parting.add(member)
        self._links.send(member, encode_member("parts", time=time))

    def announce(self) -> None:
        """A new base, as of the coordinator's frontiers; after a flush."""
        if self._progress.ready:
            bounds = tuple(map(self._bound, map(Location, range(self._graph.locations))))
            base = Base(self._progress.base.number + 1, bounds, self._progress.cut)
            self._progress.rise(base)
            self._progress.tell_base(base)

    def _bound(self, at: Location) -> Antichain:
        """What is announced on a board comes out of nothing, so no frontier there bounds it; but
        each member takes down what it has put up, so that adds up to nothing by itself."""
        if at in self._graph.boards:
            return Antichain.of(self._graph.scopes[at].bottom)
        return self._progress.frontier(at)

    def take(self, sender: WorkerId, news: MemberFrame) -> None:
        """A member has nothing left: tell everyone, itself too, that it is gone."""
        if news.news != "parted" or sender not in self._parting:
            raise MeanderError(member_name(sender), f"its news of members are none: {news}")
        self._parting.remove(sender)
        self._progress.tell_all(encode_member("gone", (sender,)))
        self._progress.forget(sender)
