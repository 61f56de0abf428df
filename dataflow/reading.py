"""Who reads which source partition, as the coordinator knows it, and who is to read it next.

Guarantees that one partition changes hands once at a time. An order has the least time that is not
forsworn, and is carried out when nothing at that time can come to the sources any more. Cost: one
look at a frontier per order under way and turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dataflow.capability import Capability
from dataflow.forswearing import Forswearing
from dataflow.migrate.command import Refused
from dataflow.migrate.parcels import Order
from dataflow.plan import Plan
from dataflow.progress import Progress
from dataflow.protocols import Partition
from state.ids import WorkerId, member_name

Place = tuple[int, Partition]
"""A source's number, and one of its partitions."""


@dataclass(frozen=True, slots=True)
class Handing:
    """An order under way."""

    id: str
    order: Order
    demand: Capability
    """So that a partition without records comes to its time."""


class Reading:
    """The readers of all partitions."""

    def __init__(self, plan: Plan, progress: Progress, forswearing: Forswearing) -> None:
        self._progress, self._forswearing = progress, forswearing
        self._numbers = {source.name: plan.origin(source) for source in plan.sources}
        self._inputs = {plan.origin(s): plan.ports[s.name].inputs[0] for s in plan.sources}
        self._readers: dict[Place, WorkerId] = {}
        self._under_way: dict[Place, Handing] = {}

    def noted(self, worker: WorkerId, source: str, partitions: Iterable[int]) -> None:
        """A worker says what it reads at its start."""
        for partition in partitions:
            self._readers[self._numbers[source], Partition(partition)] = worker

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
        return {one.id for p, one in self._under_way.items() if self._readers[p] == worker}

    def place(self, source: str, partition: int) -> Place:
        """Of a partition. Raises Refused for one that the flow does not read."""
        place = self._numbers.get(source, -1), Partition(partition)
        if place not in self._readers:
            raise Refused(f"partition {partition} of source {source!r} is read by nobody")
        return place

    def begin(self, id: str, place: Place, target: WorkerId, time: int) -> Order:
        """A partition changes hands. Raises Refused while it does already."""
        if place in self._under_way:
            other = self._under_way[place]
            raise Refused(
                f"partition {place[1]} is on its way to {member_name(other.order.target)} by"
                f" {other.id!r}: wait for that"
            )
        order = Order(place[0], place[1], time, target)
        self._under_way[place] = Handing(id, order, self._forswearing.demand(time))
        return order

    def finish(self) -> list[Handing]:
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
    def under_way(self) -> list[tuple[Handing, WorkerId]]:
        """The orders under way, and who reads on until each is carried out."""
        return [(handing, self._readers[place]) for place, handing in self._under_way.items()]

    @property
    def running(self) -> set[str]:
        """The ids of the orders under way."""
        return {handing.id for handing in self._under_way.values()}

    @property
    def times(self) -> list[int]:
        """Those that orders under way wait for."""
        return [one.order.time for one in self._under_way.values()]
