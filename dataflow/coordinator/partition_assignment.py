"""The partition assignment: which worker reads which source partition, now and next.

Guarantees that a partition has at most one transfer at a time. Guarantees that a new partition of a
topic is assigned to one worker, once, however many workers report it. An order gets the least time
that is not closed. It is complete once no message of that time can reach the sources any more.
Cost: one frontier query per transfer and turn; one pass over all partitions while one has no
reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reports import PartitionsRead
from meander.dataflow.coordinator.closed_times import ClosedTimes
from meander.dataflow.interfaces import Partition
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.schemas.control import CommandError
from meander.state.keys.ids import WorkerId, member_name

Place = tuple[int, Partition]
"""The number of a source, and one of its partitions."""

FIRST_OFFSET = 0
"""The first offset of a new partition, wherever the flow started: all its records have come
since."""


@dataclass(frozen=True, slots=True)
class PartitionTransfer:
    """A pending order to transfer a partition."""

    id: str
    """The id of the command; '' for a new partition."""
    order: ReassignPartition
    advance_request: Capability
    """Lets a partition without records reach the time of the order."""


class PartitionAssignment:
    """A table of the readers of all partitions, and of pending transfers."""

    def __init__(
        self,
        plan: Plan,
        workers: Iterable[WorkerId],
        progress: Progress,
        closed_times: ClosedTimes,
        decisions: PendingDecisions,
        send: Callable[[ReassignPartition], None],
        replay_end: int,
    ) -> None:
        self._progress, self._closed_times = progress, closed_times
        self._decisions, self._send, self._replay_end = decisions, send, replay_end
        self._numbers = {source.name: plan.origin(source) for source in plan.sources}
        self._inputs = {plan.origin(s): plan.ports[s.name].inputs[0] for s in plan.sources}
        self._readers: dict[Place, WorkerId] = {}
        self._under_way: dict[Place, PartitionTransfer] = {}
        self._unreported = {number: set(workers) for number in self._inputs}
        """The workers that have not reported their first partitions, by source."""
        self._totals: dict[tuple[WorkerId, int], int] = {}
        """The number of partitions that a worker has seen, by worker and source."""
        self._unassigned: list[Place] = []
        """New partitions that have no reader yet."""

    def report(self, worker: WorkerId, report: PartitionsRead) -> None:
        """Handle a worker's report of its first partitions and of the number of partitions."""
        number = self._numbers[report.source]
        self._unreported[number].discard(worker)
        self._readers |= {(number, Partition(one)): worker for one in report.partitions}
        self._totals[worker, number] = report.total or 0
        # A partition without a known reader may belong to a worker that has not reported yet.
        if not self._unreported[number]:
            most = max(total for (_, of), total in self._totals.items() if of == number)
            places = [(number, Partition(p)) for p in range(most)]
            known = {*self._readers, *self._under_way, *self._unassigned}
            self._unassigned += [place for place in places if place not in known]

    @property
    def known(self) -> bool:
        """Whether all workers have reported their first partitions."""
        return not any(self._unreported.values())

    def assign_new(self, active: Sequence[WorkerId]) -> None:
        """Assign each new partition to the active worker that reads the fewest partitions of its
        source.

        The order waits until that worker has seen the partition: its client would have to find it
        first, and the frontier would stall meanwhile. On replay an unknown partition starts behind
        the latest commit marker.
        """
        if self._closed_times.least is None:
            self._unassigned.clear()
        for place in [*self._unassigned]:
            number, partition = place
            target = self._next_reader(place, active)
            if partition < self._totals.get((target, number), 0):
                self._unassigned.remove(place)
                time = max(self._closed_times.next_time(), self._replay_end)
                self._start("", place, target, time, FIRST_OFFSET)

    def unassigned(self, active: Sequence[WorkerId]) -> dict[Place, WorkerId]:
        """Return the partitions without a reader, and the active worker that each will get."""
        return {place: self._next_reader(place, active) for place in self._unassigned}

    def _next_reader(self, place: Place, active: Sequence[WorkerId]) -> WorkerId:
        counts = Counter(
            worker for worker, other in self._planned_readers() if other[0] == place[0]
        )
        return min(active, key=lambda worker: (counts[worker], worker))

    def _planned_readers(self) -> Iterable[tuple[WorkerId, Place]]:
        """Return the readers as they will be after all transfers."""
        readers = self._readers | {p: one.order.target for p, one in self._under_way.items()}
        return ((worker, place) for place, worker in readers.items())

    def read_by(self, worker: WorkerId) -> list[Place]:
        """Return the partitions that a worker reads and that are not in transfer."""
        return [
            place
            for place, reader in self._readers.items()
            if reader == worker and place not in self._under_way
        ]

    def in_transfer(self, place: tuple[str, int]) -> bool:
        """Return whether a partition, given by source and number, is in transfer."""
        source, partition = place
        return (self._numbers.get(source, -1), Partition(partition)) in self._under_way

    def readers(self) -> dict[tuple[str, int], WorkerId]:
        """Return the readers as they will be after all transfers, by source and partition."""
        names = {number: source for source, number in self._numbers.items()}
        return {(names[n], int(p)): worker for worker, (n, p) in self._planned_readers()}

    def has_transfer_to(self, worker: WorkerId) -> bool:
        """Return whether a partition is on its way to a worker."""
        return any(one.order.target == worker for one in self._under_way.values())

    def transfers_from(self, worker: WorkerId) -> set[str]:
        """Return the ids of the transfers away from a worker."""
        return {one.id for p, one in self._under_way.items() if self._readers.get(p) == worker}

    def place(self, source: str, partition: int) -> Place:
        """Return the place of a partition. Raise `CommandError` for a partition that the flow
        does not read."""
        place = self._numbers.get(source, -1), Partition(partition)
        if place not in self._readers and place not in self._under_way:
            raise CommandError(f"partition {partition} of source {source!r} has no reader")
        return place

    def start(self, id: str, place: Place, target: WorkerId, time: int) -> None:
        """Start to transfer a partition. Raise `CommandError` while it is in transfer already."""
        if place in self._under_way:
            other = self._under_way[place]
            by = f" by {other.id!r}" if other.id else ""
            raise CommandError(
                f"partition {place[1]} is on its way to {member_name(other.order.target)}{by}:"
                " wait for that"
            )
        self._start(id, place, target, time)

    def _start(
        self, id: str, place: Place, target: WorkerId, time: int, offset: int | None = None
    ) -> None:
        order = ReassignPartition(place[0], place[1], time, target, offset)
        self._under_way[place] = PartitionTransfer(
            id, order, self._closed_times.request_advance(time)
        )
        self._decisions.add(order, partial(self._send, order))

    def finish(self) -> list[PartitionTransfer]:
        """Return the transfers completed since the last call."""
        done = {
            place: transfer
            for place, transfer in self._under_way.items()
            if not self._progress.frontier(self._inputs[place[0]]).less_equal(transfer.order.time)
        }
        for place, transfer in done.items():
            del self._under_way[place]
            self._readers[place] = transfer.order.target
            transfer.advance_request.drop()
        return list(done.values())

    @property
    def under_way(self) -> list[tuple[PartitionTransfer, WorkerId | None]]:
        """The pending transfers, and the current reader of each partition; None for a new one."""
        return [(transfer, self._readers.get(place)) for place, transfer in self._under_way.items()]

    @property
    def changing(self) -> bool:
        """Whether a partition is in transfer or has no reader."""
        return bool(self._under_way or self._unassigned)

    @property
    def running(self) -> set[str]:
        """The ids of the pending transfers."""
        return {transfer.id for transfer in self._under_way.values()}

    @property
    def times(self) -> list[int]:
        """The times of the pending transfers."""
        return [one.order.time for one in self._under_way.values()]
