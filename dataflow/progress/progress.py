"""Progress tracking: what may still arrive where (Naiad; timely dataflow `progress/`).

Guarantees I1: no record comes before a reported frontier. Every member counts pointstamps
(location, time): messages at the input they travel to, capabilities at their output. The changes
of one scheduling step are applied and broadcast as one atomic update over FIFO links, and a
frontier is what could result from positive counts along path summaries. Invariant: a +1 is in the
same update as the capability (or consumed message) that permits it, or in a later one, but before
that is given up. Nobody computes a frontier before every member's opening has come.
Cost: per update O(changes), per changed location O(locations it reaches).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import ROOT, Graph, Location
from meander.dataflow.graph.path_summary import Summary
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.progress.broadcast import ProgressBroadcast
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.dataflow.records.loop_times import outer
from meander.dataflow.wire import (
    Base,
    Change,
    HeardFrame,
    MemberFrame,
    OpeningFrame,
    ProgressFrame,
    ProgressUpdate,
    encode_base,
    encode_member,
    encode_opening,
)
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.times.antichain import NOTHING, Antichain, MutableAntichain, minimal
from meander.state.times.time import MIN_TIME, Time


class Tracker:
    """Counts per location, and the frontiers that follow from them."""

    def __init__(self, graph: Graph) -> None:
        self._counts = [MutableAntichain() for _ in range(graph.locations)]
        self._reach = graph.reach
        self._reached: list[list[Location]] = [[] for _ in range(graph.locations)]
        for target, sources in graph.reach.items():
            for source in sources:
                self._reached[source].append(target)
        self._nested = any(scope != ROOT for scope in graph.scopes)
        self._leading = {
            target: [(source, _changing(graph, source, target)) for source in sources]
            for target, sources in graph.reach.items()
        }
        """To each location, from where, and by which summaries; () where none changes a time."""
        self._frontiers: list[Antichain | None] = [NOTHING] * graph.locations

    def update(self, changes: Iterable[Change]) -> None:
        """Apply one atomic update."""
        for location, time, delta in changes:
            if self._counts[location].update(time, delta):
                for target in self._reached[location]:
                    self._frontiers[target] = None

    def forget(self, base: Base) -> None:
        """Drop all counts before a base."""
        for location, bound in enumerate(base.bounds):
            if self._counts[location].forget(bound):
                for target in self._reached[location]:
                    self._frontiers[target] = None

    def frontier(self, location: Location) -> Antichain:
        """A lower bound of the times that may still arrive at (or leave from) a location."""
        known = self._frontiers[location]
        if known is None:
            known = self._frontiers[location] = self._bound(location)
        return known

    def bounding(self, location: Location) -> list[tuple[Time, Location]]:
        """The least pointstamps of every place that leads there, as times of that location."""
        return [
            (summary.advance(time), source)
            for source, summaries in self._reach[location].items()
            for time in self._counts[source].frontier.times
            for summary in summaries
        ]

    def _bound(self, location: Location) -> Antichain:
        if self._nested:
            return Antichain(minimal(self._advanced(location)))
        # Where no scope is nested all paths are the identity and all times in one order.
        leading = [self._counts[source].frontier.times for source in self._reach[location]]
        return Antichain(min(filter(None, leading), default=()))

    def _advanced(self, location: Location) -> set[Time]:
        """What the least pointstamps make of the times there."""
        found, counts = set[Time](), self._counts
        for source, summaries in self._leading[location]:
            if not (times := counts[source].frontier.times):
                continue
            if not summaries:
                found.update(times)
                continue
            found.update(summary.advance(time) for summary in summaries for time in times)
        return found

    def held(self, location: Location) -> MutableAntichain:
        """The pointstamps at this very location."""
        return self._counts[location]

    def bounds(self, locations: Iterable[Location]) -> list[Time]:
        """The least pointstamps at these very locations."""
        counts = self._counts
        return [time for at in locations for time in counts[at].frontier.times]

    def settled(self) -> bool:
        """Whether nothing is outstanding anywhere, nor any update owed."""
        return all(counts.settled() for counts in self._counts)


def _changing(graph: Graph, source: Location, target: Location) -> tuple[Summary, ...]:
    """The summaries of the paths between two locations, where they change times."""
    depth, summaries = graph.scopes[source].depth, graph.reach[target][source]
    identical = graph.scopes[target].depth == depth
    return () if identical and summaries == (Summary.between(depth, depth),) else summaries


class Progress:
    """One member's part in progress tracking: its changes out, everyone's changes in.

    Members may come and go (`progress.membership` is the coordinator's part of that). Each keeps
    its contribution, all that its own updates add up to, to open with it to whoever joins later,
    and forgets what lies before the newest base: over all members that adds up to nothing. So a
    newcomer ignores what lies before the newest base that an opening left out; but it computes no
    frontier before it has heard of all that this base follows from, or it would pass what came
    into being by updates that it has not seen.
    """

    def __init__(
        self, graph: Graph, me: WorkerId, members: Sequence[WorkerId], links: Links
    ) -> None:
        self.changes = ChangeBatch()
        self.rulings: list[TimestampOverride] = []
        """What this member's sources have ruled in this step: told with its changes."""
        self.base = Base(0, tuple(Antichain.of(scope.bottom) for scope in graph.scopes))
        """Nothing before it is outstanding anywhere."""
        self.contribution: dict[tuple[Location, Time], int] = {}
        """What all of its own updates add up to from the base on."""
        self.ended = False
        """Whether this member has left the computation."""
        self._me, self._links = me, links
        self._updates = ProgressBroadcast(links)
        for member in members:
            if member != me:
                self._updates.meet(member)
        self._tracker = Tracker(graph)
        self._welcome = True
        self._unopened = set(members)
        self._unheard: set[WorkerId] = set()
        """Those who were gone before their opening came."""
        self._parts_at: int | None = None
        self._received: Counter[WorkerId] = Counter()
        self._floor: Base | None = None
        self._bottoms, self._boards = self.base.bounds, graph.boards

    @classmethod
    def newcomer(cls, graph: Graph, me: WorkerId, links: Links) -> Self:
        """Of a member that joins a running computation: it must not act before it is `welcome`."""
        progress = cls(graph, me, [], links)
        progress._welcome = False
        return progress

    @property
    def welcome(self) -> bool:
        """Whether it knows who the others are."""
        return self._welcome

    @property
    def ready(self) -> bool:
        """Whether the openings of all members have come."""
        return self._welcome and not self._unopened and self._floor is None

    @property
    def cut(self) -> tuple[tuple[WorkerId, int], ...]:
        """How many updates of each member its frontiers follow from."""
        heard = ((member, self._received[member]) for member in self.peers)
        return ((self._me, self._updates.sent), *heard)

    @property
    def peers(self) -> Sequence[WorkerId]:
        """The other members, as far as it has been told."""
        return self._updates.peers

    def heard(self, member: WorkerId) -> bool:
        """Whether a member has opened."""
        return member in self._received

    def flush(self) -> bool:
        """Apply and broadcast the changes of one step; the first flush is the opening."""
        changes, rulings = self.changes.take(), self.rulings
        opening = self._me in self._unopened
        if not changes and not rulings and not opening:
            return False
        self._tracker.update(changes)
        self._contribute(changes)
        self._unopened.discard(self._me)
        self._updates.tell(changes, rulings)
        self.rulings = []
        return True

    def tell_all(self, frame: Frame) -> None:
        """Send a frame to every other member, in order with the updates."""
        self._updates.tell_all(frame)

    def tell_base(self, base: Base) -> None:
        """Send a base to every other member; of several the last is enough."""
        self._updates.tell_base(encode_base(base))

    def take(self, sender: WorkerId, update: ProgressUpdate) -> None:
        """Act on what a peer says. Raises MeanderError for news that are none."""
        if sender in self._unheard:
            return
        match update:
            case ProgressFrame(updates=0):
                pass  # rulings alone, which a peer tells a newcomer before it opens
            case ProgressFrame(changes, updates):
                self.receive(sender, changes, updates)
            case HeardFrame(updates):
                self._updates.heard(sender, updates)
                self._part()
            case Base():
                self.rise(update)
            case OpeningFrame() if sender in self._received:
                raise MeanderError(member_name(sender), "it opened a second time, or late (I1)")
            case OpeningFrame(base, sent, changes):
                self._received[sender] = sent - 1
                self.receive(sender, changes)
                self._ignore_before(base)
            case MemberFrame():
                self._hear(sender, update)

    def _hear(self, sender: WorkerId, news: MemberFrame) -> None:
        match news:
            case MemberFrame("welcome", members):
                self._welcome = True
                for member in members:
                    self._meet(member)
                # Some may have been quicker to open than the coordinator to name them.
                self._unopened.update(m for m in members if m not in self._received)
                self._reach_floor()
            case MemberFrame("joins", (member,)) if member not in (self._me, *self.peers):
                self.open_to(member)
            case MemberFrame("parts", _, time):
                self._parts_at = time
                self._part()
            case MemberFrame("gone", (member,)) if member in (self._me, *self.peers):
                self.forget(member)
            case _:
                raise MeanderError(member_name(sender), f"its news of members are none: {news}")

    def receive(self, sender: WorkerId, changes: Iterable[Change], updates: int = 1) -> None:
        """Apply a peer's update, or so many in one; the first of each peer is its opening."""
        self._tracker.update(changes)
        self._received[sender] += updates
        self._updates.taken(sender, self._received[sender])
        self._unopened.discard(sender)
        self._reach_floor()

    def rise(self, base: Base) -> None:
        """Forget what lies before a later base."""
        if base.number <= self.base.number:
            return
        self.base = base
        self.contribution = {
            (location, time): count
            for (location, time), count in self.contribution.items()
            if not base.before(location, time)
        }
        self._part()

    def open_to(self, member: WorkerId) -> None:
        """From now on a newcomer hears of all changes; first of those so far."""
        self._meet(member)
        net = [(at, time, count) for (at, time), count in self.contribution.items()]
        self._links.send(member, encode_opening(self.base, self._updates.sent, net))

    def _meet(self, member: WorkerId) -> None:
        self._updates.meet(member)
        # It may have been quicker to speak than the coordinator to name it.
        self._updates.taken(member, self._received[member])

    def forget(self, member: WorkerId) -> None:
        """A member has left: all that it contributed lies before the base."""
        if member == self._me:
            self.ended = True
        else:
            self._updates.part(member)
            if member in self._unopened:
                self._unopened.remove(member)
                # What it said may still come, but what that adds up with is forgotten by then.
                self._unheard.add(member)
                self._ignore_before(self.base)

    def frontier(self, location: Location) -> Antichain:
        """What may still arrive at a location, from anywhere in the computation."""
        return self._tracker.frontier(location) if self.ready else self._bottoms[location]

    def bounding(self, location: Location) -> list[tuple[Time, Location]]:
        """What the frontier of a location follows from, and where that is held."""
        return self._tracker.bounding(location) if self.ready else []

    def least(self, locations: Iterable[Location]) -> Time | None:
        """The least outer time held at these very locations; None when none is held there."""
        if not self.ready:
            return MIN_TIME
        times = self._tracker.bounds(locations)
        return min(times, key=outer) if times else None

    def furthest(self, locations: Iterable[Location]) -> int | None:
        """The greatest outer time held at these very locations; None when none is."""
        if not self.ready:
            return None
        times = [outer(t) for at in locations for t in self._tracker.held(at).positive()]
        return max(times, default=None)

    def settled(self) -> bool:
        """Whether the whole computation is over."""
        return self.ready and self._tracker.settled()

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
        # What others contributed, who are gone, lies before it as a whole.
        if all(
            self._received[member] >= sent for member, sent in floor.cut if member in self.peers
        ):
            self._tracker.forget(floor)
            self._floor = None

    def _part(self) -> None:
        """Say so once nothing can come any more and nothing is owed."""
        if self._parts_at is None or self.contribution or self._updates.behind:
            return
        bounds = (b for at, b in enumerate(self.base.bounds) if at not in self._boards)
        if all(outer(t) >= self._parts_at for bound in bounds for t in bound):
            self._parts_at = None
            self._links.send(COORDINATOR, encode_member("parted"))
