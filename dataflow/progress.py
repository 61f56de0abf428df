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

from collections.abc import Iterable, Sequence

from dataflow.graph import Graph, Location
from dataflow.protocols import Links
from dataflow.wire import Change, encode_progress
from state.antichain import Antichain, MutableAntichain
from state.ids import WorkerId
from state.time import MIN_TIME, Time


class ChangeBatch:
    """Changes of counts, summed up; what cancels out vanishes.

    >>> changes = ChangeBatch()
    >>> changes.add(Location(1), 5, 1); changes.add(Location(1), 5, -1); changes.take()
    []
    """

    __slots__ = ("_deltas",)

    def __init__(self) -> None:
        self._deltas: dict[tuple[Location, Time], int] = {}

    def add(self, location: Location, time: Time, delta: int) -> None:
        """Add to the count of a pointstamp."""
        pointstamp = (location, time)
        total = self._deltas.get(pointstamp, 0) + delta
        if total:
            self._deltas[pointstamp] = total
        else:
            del self._deltas[pointstamp]

    def take(self) -> list[Change]:
        """What has gathered since the last call."""
        taken = [(location, time, delta) for (location, time), delta in self._deltas.items()]
        self._deltas.clear()
        return taken


class Tracker:
    """Counts per location, and the frontiers that follow from them."""

    def __init__(self, graph: Graph) -> None:
        self._counts = [MutableAntichain() for _ in range(graph.locations)]
        self._reach = graph.reach
        self._reached: list[list[Location]] = [[] for _ in range(graph.locations)]
        for target, sources in graph.reach.items():
            for source in sources:
                self._reached[source].append(target)
        self._frontiers: list[Antichain | None] = [Antichain()] * graph.locations

    def update(self, changes: Iterable[Change]) -> None:
        """Apply one atomic update."""
        for location, time, delta in changes:
            if self._counts[location].update(time, delta):
                for target in self._reached[location]:
                    self._frontiers[target] = None

    def frontier(self, location: Location) -> Antichain:
        """A lower bound of the times that may still arrive at (or leave from) a location."""
        known = self._frontiers[location]
        if known is None:
            known = Antichain.of(*(time for time, _ in self.bounding(location)))
            self._frontiers[location] = known
        return known

    def bounding(self, location: Location) -> list[tuple[Time, Location]]:
        """The least pointstamps of every place that leads there, as times of that location."""
        return [
            (summary.advance(time), source)
            for source, summaries in self._reach[location].items()
            for time in self._counts[source].frontier
            for summary in summaries
        ]

    def held(self, location: Location) -> MutableAntichain:
        """The pointstamps at this very location."""
        return self._counts[location]

    def settled(self) -> bool:
        """Whether nothing is outstanding anywhere, nor any update owed."""
        return all(counts.settled() for counts in self._counts)


class Progress:
    """One member's part in progress tracking: its changes out, everyone's changes in."""

    def __init__(
        self, graph: Graph, me: WorkerId, members: Sequence[WorkerId], links: Links
    ) -> None:
        self.changes = ChangeBatch()
        self._peers = [member for member in members if member != me]
        self._links = links
        self._tracker = Tracker(graph)
        self._unopened = set(members)
        self._me = me
        self._bottoms = [Antichain.of(scope.bottom) for scope in graph.scopes]

    @property
    def ready(self) -> bool:
        """Whether the openings of all members have come."""
        return not self._unopened

    def flush(self) -> bool:
        """Apply and broadcast the changes of one step; the first flush is the opening."""
        changes = self.changes.take()
        opening = self._me in self._unopened
        if not changes and not opening:
            return False
        self._tracker.update(changes)
        self._unopened.discard(self._me)
        frame = encode_progress(changes)
        for peer in self._peers:
            self._links.send(peer, frame)
        return True

    def receive(self, sender: WorkerId, changes: Iterable[Change]) -> None:
        """Apply a peer's update; the first of each peer is its opening."""
        self._tracker.update(changes)
        self._unopened.discard(sender)

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
        times = [t for at in locations for t in self._tracker.held(at).frontier]
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


def outer(time: Time) -> int:
    """The outer coordinate of a time.

    >>> outer(7), outer((7, 3))
    (7, 7)
    """
    return time if isinstance(time, int) else time[0]
