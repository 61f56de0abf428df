"""Who reads which source partition, as the coordinator knows it, and who is to read it next.

Guarantees that one partition changes hands once at a time, and that one which has come to a topic
is given to one worker, once, however many notice it. An order has the least time that is not
forsworn, and is carried out when nothing at that time can come to the sources any more. Cost: one
look at a frontier per order under way and turn; one pass over all partitions while one is nobody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import Refused
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.coordinator.closed_times import ClosedTimes
from meander.dataflow.interfaces import Partition
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.state.keys.ids import WorkerId, member_name

Place = tuple[int, Partition]
"""A source's number, and one of its partitions."""

FIRST_OFFSET = 0
"""Where a new partition begins, wherever the flow did: all that it holds has come since then."""


@dataclass(frozen=True, slots=True)
class PartitionTransfer:
    """An order under way."""

    id: str
    """The command's; '' of a partition that is new."""
    order: ReassignPartition
    demand: Capability
    """So that a partition without records comes to its time."""


class PartitionAssignment:
    """The readers of all partitions."""

    def __init__(
        self,
        plan: Plan,
        workers: Iterable[WorkerId],
        progress: Progress,
        forswearing: ClosedTimes,
        decisions: PendingDecisions,
        tell: Callable[[ReassignPartition], None],
        mark: int,
    ) -> None:
        self._progress, self._forswearing = progress, forswearing
        self._decisions, self._tell, self._mark = decisions, tell, mark
        self._numbers = {source.name: plan.origin(source) for source in plan.sources}
        self._inputs = {plan.origin(s): plan.ports[s.name].inputs[0] for s in plan.sources}
        self._readers: dict[Place, WorkerId] = {}
        self._under_way: dict[Place, PartitionTransfer] = {}
        self._silent = {number: set(workers) for number in self._inputs}
        """Who has yet to say what it reads from the flow's start on, by source."""
        self._totals: dict[tuple[WorkerId, int], int] = {}
        """How many partitions a worker knows a source to have."""
        self._unread: list[Place] = []
        """Those among them that have come to their topic and are nobody's."""

    def noted(self, worker: WorkerId, event: Mapping[str, object]) -> None:
        """A worker says what it reads from its start on, and how many partitions there are."""
        number = self._numbers[str(event["source"])]
        partitions, total = event["partitions"], event["total"]
        assert isinstance(partitions, list)
        assert isinstance(total, int | None)
        self._silent[number].discard(worker)
        self._readers |= {(number, Partition(partition)): worker for partition in partitions}
        self._totals[worker, number] = total or 0
        # Before all have spoken, what nobody is known to read may be theirs.
        if not self._silent[number]:
            most = max(total for (_, of), total in self._totals.items() if of == number)
            places = [(number, Partition(p)) for p in range(most)]
            known = {*self._readers, *self._under_way, *self._unread}
            self._unread += [place for place in places if place not in known]

    @property
    def known(self) -> bool:
        """Whether all have said what they read from the flow's start on."""
        return not any(self._silent.values())

    def begin_new(self, staying: Sequence[WorkerId]) -> None:
        """Each partition that has come to its topic is read by who reads the fewest of these.

        The order waits until that one knows of it: its client would have to find out first, and the
        flow's frontier would stand meanwhile. On replay a partition of which nothing was known
        before the mark begins behind that.
        """
        if self._forswearing.least is None:
            self._unread.clear()
        for place in [*self._unread]:
            number, partition = place
            target = self._reader_to_be(place, staying)
            if partition < self._totals.get((target, number), 0):
                self._unread.remove(place)
                time = max(self._forswearing.open_time(), self._mark)
                self._begin("", place, target, time, FIRST_OFFSET)

    def unread(self, staying: Sequence[WorkerId]) -> dict[Place, WorkerId]:
        """The partitions that nobody reads yet, and who of these is to, once it knows of them."""
        return {place: self._reader_to_be(place, staying) for place in self._unread}

    def _reader_to_be(self, place: Place, staying: Sequence[WorkerId]) -> WorkerId:
        held = Counter(worker for worker, other in self._shares() if other[0] == place[0])
        return min(staying, key=lambda worker: (held[worker], worker))

    def _shares(self) -> Iterable[tuple[WorkerId, Place]]:
        """Who reads which partition once all orders are carried out."""
        readers = self._readers | {p: one.order.target for p, one in self._under_way.items()}
        return ((worker, place) for place, worker in readers.items())

    def of(self, worker: WorkerId) -> list[Place]:
        """What a worker reads that is not on its way to another."""
        return [
            place
            for place, reader in self._readers.items()
            if reader == worker and place not in self._under_way
        ]

    def coming_to(self, worker: WorkerId) -> bool:
        """Whether a partition is on its way to a worker."""
        return any(one.order.target == worker for one in self._under_way.values())

    def going_from(self, worker: WorkerId) -> set[str]:
        """The ids of the orders by which a worker gives partitions away."""
        return {one.id for p, one in self._under_way.items() if self._readers.get(p) == worker}

    def place(self, source: str, partition: int) -> Place:
        """Of a partition. Raises Refused for one that the flow does not read."""
        place = self._numbers.get(source, -1), Partition(partition)
        if place not in self._readers and place not in self._under_way:
            raise Refused(f"partition {partition} of source {source!r} is read by nobody")
        return place

    def begin(self, id: str, place: Place, target: WorkerId, time: int) -> None:
        """A partition changes hands. Raises Refused while it does already."""
        if place in self._under_way:
            other = self._under_way[place]
            by = f" by {other.id!r}" if other.id else ""
            raise Refused(
                f"partition {place[1]} is on its way to {member_name(other.order.target)}{by}:"
                " wait for that"
            )
        self._begin(id, place, target, time)

    def _begin(
        self, id: str, place: Place, target: WorkerId, time: int, offset: int | None = None
    ) -> None:
        order = ReassignPartition(place[0], place[1], time, target, offset)
        self._under_way[place] = PartitionTransfer(id, order, self._forswearing.demand(time))
        self._decisions.take(order, partial(self._tell, order))

    def finish(self) -> list[PartitionTransfer]:
        """The orders that have been carried out since the last call."""
        done = {
            place: handing
            for place, handing in self._under_way.items()
            if not self._progress.frontier(self._inputs[place[0]]).less_equal(handing.order.time)
        }
        for place, handing in done.items():
            del self._under_way[place]
            self._readers[place] = handing.order.target
            handing.demand.drop()
        return list(done.values())

    @property
    def under_way(self) -> list[tuple[PartitionTransfer, WorkerId | None]]:
        """The orders under way, and who, if anyone, reads on until each is carried out."""
        return [(handing, self._readers.get(place)) for place, handing in self._under_way.items()]

    @property
    def changing(self) -> bool:
        """Whether a partition is on its way to a reader, or has none."""
        return bool(self._under_way or self._unread)

    @property
    def running(self) -> set[str]:
        """The ids of the orders under way."""
        return {handing.id for handing in self._under_way.values()}

    @property
    def times(self) -> list[int]:
        """Those that orders under way wait for."""
        return [one.order.time for one in self._under_way.values()]
