"""The membership: the coordinator announces members that join or leave a running computation.

Guarantees that a joining member computes no frontier before it has the opening of every member
named to it. Guarantees that a leaving member ends only once its contribution lies before a base
that every member has, but for withdrawn instructions, which the coordinator absorbs. Invariant:
news use the links of progress, in order with the coordinator's updates. A base states the frontiers
that the coordinator knows: no pointstamp before it can come again. All that was counted before it
adds up to nothing within the updates from which it follows (I1). Cost: one frame per member and
base, O(locations); an opening is as large as the outstanding pointstamps.
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
    """A list of members, held by the coordinator."""

    def __init__(self, graph: Graph, progress: Progress, links: Links) -> None:
        self._progress, self._links = progress, links
        self._graph = graph
        self._leaving: set[WorkerId] = set()

    @property
    def leaving(self) -> bool:
        """Whether a member waits to leave, so bases should come soon."""
        return bool(self._leaving)

    def admit(self, member: WorkerId, checkpoint: int) -> None:
        """Let a member join, whose links stand; `checkpoint` is the number of the last checkpoint.

        Raise `MeanderError` while the computation has not opened, or for a present member.
        """
        if not self._progress.ready:
            raise MeanderError(
                member_name(member), "the flow has not opened yet", "wait until it has"
            )
        if member in self._progress.peers or member == COORDINATOR:
            raise MeanderError(member_name(member), "it is already a member", "choose another id")
        others = (COORDINATOR, *self._progress.peers)
        self._links.send(member, encode_member("welcome", others, checkpoint=checkpoint))
        self._progress.send_frame(encode_member("joins", (member,)))
        self._progress.open_to(member)

    def send_exit(self, member: WorkerId, time: int) -> None:
        """Tell a member to leave: no message of `time` or later will be addressed to it."""
        if member not in self._progress.peers:
            raise MeanderError(member_name(member), "it is not a member", "name a member")
        self._leaving.add(member)
        self._links.send(member, encode_member("leave", time=time))

    def announce(self) -> None:
        """Announce a new base from the coordinator's frontiers; call this after a flush."""
        if self._progress.ready:
            bounds = tuple(map(self._bound, map(Location, range(self._graph.locations))))
            base = Base(self._progress.base.number + 1, bounds, self._progress.cut)
            self._progress.advance_base(base)
            self._progress.send_base(base)

    def _bound(self, at: Location) -> Antichain:
        """Return the bound of a base at a location.

        A member announces times on an announcement port out of nothing, so no frontier bounds that
        port. Each member removes its own announcements, so they add up to nothing by themselves.
        """
        if at in self._graph.announcement_ports:
            return Antichain.of(self._graph.scopes[at].bottom)
        return self._progress.frontier(at)

    def receive(self, sender: WorkerId, news: MemberFrame) -> None:
        """Announce to all members, the sender too, that the sender has left."""
        if news.news != "leaves" or sender not in self._leaving:
            raise MeanderError(member_name(sender), f"it sent invalid news of members: {news}")
        self._leaving.remove(sender)
        self._progress.absorb(news.rest)
        self._progress.send_frame(encode_member("left", (sender,), rest=news.rest))
        self._progress.remove_peer(sender, news.rest)
