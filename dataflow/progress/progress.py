"""Progress tracking: which times may still arrive where (Naiad; timely dataflow `progress/`).

Guarantees I1: no record comes before a reported frontier. Every member counts pointstamps
(location, time): messages at their input, capabilities at their output. The changes of one
scheduling step form one atomic update, which the member applies and broadcasts over FIFO links. A
frontier is what positive counts can still lead to along path summaries. Invariant: a +1 comes in
the same update as the capability or consumed message that permits it, or later, but before that one
is given up. No member computes a frontier before every member's opening has come. Cost: per update
O(changes), per changed location O(locations it reaches).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import ROOT, Graph, Location
from meander.dataflow.graph.path_summary import Summary
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.progress.broadcast import ProgressBroadcast
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.wire import (
    Base,
    Change,
    MemberFrame,
    OpeningFrame,
    ProgressAckFrame,
    ProgressFrame,
    ProgressUpdate,
    encode_base,
    encode_member,
    encode_opening,
)
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.times.antichain import EMPTY_ANTICHAIN, Antichain, MutableAntichain, minimal
from meander.state.times.time import MIN_TIME, Time


class Tracker:
    """A tracker of counts per location, and of the frontiers that follow from them."""

    def __init__(self, graph: Graph) -> None:
        self._counts = [MutableAntichain() for _ in range(graph.locations)]
        self._reach = graph.reach
        self._reached: list[list[Location]] = [[] for _ in range(graph.locations)]
        for target, sources in graph.reach.items():
            for source in sources:
                self._reached[source].append(target)
        self._nested = any(scope != ROOT for scope in graph.scopes)
        self._paths = {
            target: [(source, _changing(graph, source, target)) for source in sources]
            for target, sources in graph.reach.items()
        }
        """For each location, its sources and the path summaries from there; () where none changes a
        time."""
        self._frontiers: list[Antichain | None] = [EMPTY_ANTICHAIN] * graph.locations

    def update(self, changes: Iterable[Change]) -> None:
        """Apply one atomic update."""
        for location, time, delta in changes:
            if self._counts[location].update(time, delta):
                for target in self._reached[location]:
                    self._frontiers[target] = None

    def forget(self, base: Base) -> None:
        """Drop all counts before a base."""
        for location, bound in enumerate(base.bounds):
            if self._counts[location].discard_before(bound):
                for target in self._reached[location]:
                    self._frontiers[target] = None

    def frontier(self, location: Location) -> Antichain:
        """Return a lower bound of the times that may still arrive at a location or leave it."""
        known = self._frontiers[location]
        if known is None:
            known = self._frontiers[location] = self._bound(location)
        return known

    def bounding(self, location: Location) -> list[tuple[Time, Location]]:
        """Return the least pointstamps of every location that leads there, as times of that
        location."""
        return [
            (summary.results_in(time), source)
            for source, summaries in self._reach[location].items()
            for time in self._counts[source].frontier.times
            for summary in summaries
        ]

    def _bound(self, location: Location) -> Antichain:
        if self._nested:
            return Antichain(minimal(self._advanced(location)))
        # Without a nested scope all paths are the identity and all times have one order.
        leading = [self._counts[source].frontier.times for source in self._reach[location]]
        return Antichain(min(filter(None, leading), default=()))

    def _advanced(self, location: Location) -> set[Time]:
        """Return the times at a location that the least pointstamps lead to."""
        found, counts = set[Time](), self._counts
        for source, summaries in self._paths[location]:
            if not (times := counts[source].frontier.times):
                continue
            if not summaries:
                found.update(times)
                continue
            found.update(summary.results_in(time) for summary in summaries for time in times)
        return found

    def pointstamps(self, location: Location) -> MutableAntichain:
        """Return the pointstamps at this very location."""
        return self._counts[location]

    def bounds(self, locations: Iterable[Location]) -> list[Time]:
        """Return the least pointstamps at these very locations."""
        counts = self._counts
        return [time for at in locations for time in counts[at].frontier.times]

    def is_quiescent(self) -> bool:
        """Return whether no pointstamp is outstanding anywhere and no update is missing."""
        return all(counts.is_empty() for counts in self._counts)


def _changing(graph: Graph, source: Location, target: Location) -> tuple[Summary, ...]:
    """Return the summaries of the paths between two locations, or () where they change no time."""
    depth, summaries = graph.scopes[source].depth, graph.reach[target][source]
    identical = graph.scopes[target].depth == depth
    return () if identical and summaries == (Summary.between(depth, depth),) else summaries


class Progress:
    """A member's side of progress tracking: it sends its changes and applies those of all members.

    Members may join and leave (`progress.membership` is the coordinator's side). Each member keeps
    its contribution, the sum of its own updates, and opens with it to each member that joins later.
    It forgets all counts before the newest base: over all members these add up to nothing. A
    joining member therefore ignores counts before the newest base that an opening left out. It
    computes no frontier before it has all updates from which this base follows. Otherwise a
    frontier could pass a pointstamp from an update that is still missing.
    """

    def __init__(
        self, graph: Graph, me: WorkerId, members: Sequence[WorkerId], links: Links
    ) -> None:
        self.changes = ChangeBatch()
        self.overrides: list[TimestampOverride] = []
        """The timestamp overrides of this member's sources in this step, sent with its changes."""
        self.base = Base(0, tuple(Antichain.of(scope.bottom) for scope in graph.scopes))
        """A base before which no pointstamp is outstanding."""
        self.contribution: dict[tuple[Location, Time], int] = {}
        """The sum of this member's own updates from the base on."""
        self.ended = False
        """Whether this member has left the computation."""
        self._me, self._links = me, links
        self._broadcast = ProgressBroadcast(links)
        for member in members:
            if member != me:
                self._broadcast.add_peer(member)
        self._tracker = Tracker(graph)
        self._welcome = True
        self._unopened = set(members)
        self._left_unopened: set[WorkerId] = set()
        """The members that left before their opening came."""
        self._leave_at: int | None = None
        self.may_leave: Callable[[], bool] = lambda: True
        """Returns whether this member has no output under way that pointstamps do not count."""
        self._flushed = False
        """Whether this member has taken a turn since it was asked to leave."""
        self._received: Counter[WorkerId] = Counter()
        self._floor: Base | None = None
        self._bottoms, self._announcement_ports = self.base.bounds, graph.announcement_ports

    @classmethod
    def joining(cls, graph: Graph, me: WorkerId, links: Links) -> Self:
        """Create the progress of a member that joins a running computation; it waits until it is
        `welcome`."""
        progress = cls(graph, me, [], links)
        progress._welcome = False
        return progress

    @property
    def welcome(self) -> bool:
        """Whether this member knows the other members."""
        return self._welcome

    @property
    def ready(self) -> bool:
        """Whether the openings of all members have come."""
        return self._welcome and not self._unopened and self._floor is None

    @property
    def cut(self) -> tuple[tuple[WorkerId, int], ...]:
        """The number of updates of each member from which the frontiers follow."""
        received = ((member, self._received[member]) for member in self.peers)
        return ((self._me, self._broadcast.sent), *received)

    @property
    def peers(self) -> Sequence[WorkerId]:
        """The other members that this one knows."""
        return self._broadcast.peers

    def is_open(self, member: WorkerId) -> bool:
        """Return whether a member has opened."""
        return member in self._received

    def flush(self) -> bool:
        """Apply and broadcast the changes of one step, and leave where that is due. The first flush
        is the opening."""
        flushed = self._send_changes()
        self._flushed = True
        self._leave_when_done()
        return flushed

    def _send_changes(self) -> bool:
        changes, overrides = self.changes.drain(), self.overrides
        opening = self._me in self._unopened
        if not changes and not overrides and not opening:
            return False
        self._tracker.update(changes)
        self._contribute(changes)
        self._unopened.discard(self._me)
        self._broadcast.send_update(changes, overrides)
        self.overrides = []
        return True

    def send_frame(self, frame: Frame) -> None:
        """Send a frame to every other member, in order with the updates."""
        self._broadcast.send_frame(frame)

    def send_base(self, base: Base) -> None:
        """Send a base to every other member; a later base replaces an unsent one."""
        self._broadcast.send_base(encode_base(base))

    def receive(self, sender: WorkerId, update: ProgressUpdate) -> None:
        """Handle an update of a peer. Raise `MeanderError` for an invalid one."""
        if sender in self._left_unopened:
            return
        match update:
            case ProgressFrame(updates=0):
                pass  # overrides alone, which a joining member receives before the opening
            case ProgressFrame(changes, updates):
                self.apply(sender, changes, updates)
            case ProgressAckFrame(updates):
                self._broadcast.note_acknowledged(sender, updates)
            case Base():
                self.advance_base(update)
            case OpeningFrame() if sender in self._received:
                raise MeanderError(member_name(sender), "it opened a second time, or late (I1)")
            case OpeningFrame(base, sent, changes):
                self._received[sender] = sent - 1
                self.apply(sender, changes)
                self._ignore_before(base)
            case MemberFrame():
                self._receive_news(sender, update)

    def _receive_news(self, sender: WorkerId, news: MemberFrame) -> None:
        match news:
            case MemberFrame("welcome", members):
                self._welcome = True
                for member in members:
                    self._add_peer(member)
                # Some members may open before the coordinator names them.
                self._unopened.update(m for m in members if m not in self._received)
                self._reach_floor()
            case MemberFrame("joins", (member,)) if member not in (self._me, *self.peers):
                self.open_to(member)
            case MemberFrame("leave", _, time):
                self._leave_at, self._flushed = time, False
            case MemberFrame("left", (member,)) if member in (self._me, *self.peers):
                self.remove_peer(member, news.rest)
            case _:
                raise MeanderError(member_name(sender), f"it sent invalid news of members: {news}")

    def apply(self, sender: WorkerId, changes: Iterable[Change], updates: int = 1) -> None:
        """Apply one or several updates of a peer; the first of each peer is its opening."""
        self._tracker.update(changes)
        self._received[sender] += updates
        self._broadcast.note_received(sender, self._received[sender])
        self._unopened.discard(sender)
        self._reach_floor()

    def advance_base(self, base: Base) -> None:
        """Forget all counts before a later base."""
        if base.number <= self.base.number:
            return
        self.base = base
        self.contribution = {
            (location, time): count
            for (location, time), count in self.contribution.items()
            if not base.before(location, time)
        }

    def open_to(self, member: WorkerId) -> None:
        """Send a joining member the contribution so far, and all later changes."""
        self._add_peer(member)
        net = [(at, time, count) for (at, time), count in self.contribution.items()]
        self._links.send(member, encode_opening(self.base, self._broadcast.sent, net))

    def _add_peer(self, member: WorkerId) -> None:
        self._broadcast.add_peer(member)
        # A member may send updates before the coordinator names it.
        self._broadcast.note_received(member, self._received[member])

    def absorb(self, rest: Iterable[Change]) -> None:
        """Add the rest of a contribution to this member's own, which later members open with."""
        self._contribute(one for one in rest if not self.base.before(*one[:2]))

    def remove_peer(self, member: WorkerId, rest: Iterable[Change]) -> None:
        """Remove a member that has left: its contribution lies before the base, but for `rest`,
        which the coordinator has absorbed."""
        if member == self._me:
            self.ended = True
        else:
            self._broadcast.remove_peer(member)
            if member in self._unopened:
                self._unopened.remove(member)
                # Its updates may still come, but their sum is forgotten by then, or is the rest.
                self._left_unopened.add(member)
                self._tracker.update(rest)
                self._ignore_before(self.base)

    def frontier(self, location: Location) -> Antichain:
        """Return the times that may still arrive at a location from anywhere in the computation."""
        return self._tracker.frontier(location) if self.ready else self._bottoms[location]

    def bounding(self, location: Location) -> list[tuple[Time, Location]]:
        """Return the pointstamps from which the frontier of a location follows, with their
        locations."""
        return self._tracker.bounding(location) if self.ready else []

    def least(self, locations: Iterable[Location]) -> Time | None:
        """Return the least outer time at these very locations; None without a pointstamp there."""
        if not self.ready:
            return MIN_TIME
        times = self._tracker.bounds(locations)
        return min(times, key=outer_time) if times else None

    def furthest(self, locations: Iterable[Location]) -> int | None:
        """Return the greatest outer time at these very locations; None without a pointstamp
        there."""
        if not self.ready:
            return MIN_TIME
        times = [
            outer_time(t) for at in locations for t in self._tracker.pointstamps(at).positive()
        ]
        return max(times, default=None)

    def outstanding(self, location: Location) -> Iterable[Time]:
        """Return the times of pointstamps at this very location."""
        return self._tracker.pointstamps(location).positive()

    def is_quiescent(self) -> bool:
        """Return whether the whole computation is over."""
        return self.ready and self._tracker.is_quiescent()

    def _contribute(self, changes: Iterable[Change]) -> None:
        for location, time, delta in changes:
            total = self.contribution.get((location, time), 0) + delta
            if total:
                self.contribution[location, time] = total
            else:
                del self.contribution[location, time]

    def _ignore_before(self, base: Base) -> None:
        if self._floor is None or base.number > self._floor.number:
            self._floor = base
        self._reach_floor()

    def _reach_floor(self) -> None:
        floor = self._floor
        if floor is None or self._unopened or not self._welcome:
            return
        # The contributions of members that left lie before the base as a whole.
        if all(
            self._received[member] >= sent for member, sent in floor.cut if member in self.peers
        ):
            self._tracker.forget(floor)
            self._floor = None

    def _leave_when_done(self) -> None:
        """Ask to leave once no message can come any more, no own pointstamp is outstanding, and all
        other output is durable: a checkpoint may start once this member has left.

        What stays of the contribution are instructions for later times that were withdrawn. They
        came before the request to leave, so they have been received in the turn since then.
        """
        if self._leave_at is None or not self._flushed or self._broadcast.behind:
            return
        rest = [(at, time, count) for (at, time), count in self.contribution.items()]
        if any(count > 0 or outer_time(time) < self._leave_at for _, time, count in rest):
            return
        bounds = (b for at, b in enumerate(self.base.bounds) if at not in self._announcement_ports)
        passed = all(outer_time(t) >= self._leave_at for bound in bounds for t in bound)
        if passed and self.may_leave():
            self._leave_at = None
            self._links.send(COORDINATOR, encode_member("leaves", rest=rest))
