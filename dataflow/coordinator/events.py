"""Events of the coordinator: those of the status topic, and the last message of a worker."""

from __future__ import annotations

from meander.dataflow.coordinator.partition_assignment import PartitionTransfer
from meander.schemas.status import Event, PartitionAdded, PartitionMoved
from meander.schemas.struct import FrozenStruct
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis


class LastMessage(FrozenStruct, tag_field="type", tag="left"):
    """An event that permits the process of a leaving worker to exit, which has sent its last
    message. The driver then reports `Left`."""

    worker: WorkerId


class NotDecided(FrozenStruct, tag_field="type", tag="not_decided"):
    """An event that reports a reconfiguration whose preparation has failed. The driver then reports
    `RolledBack`, once the workers that had joined for it are gone."""

    id: str
    """The id of the command."""
    reason: str


EngineEvent = Event | LastMessage | NotDecided


def partition_event(transfer: PartitionTransfer, source: str) -> PartitionAdded | PartitionMoved:
    """Return the event of a partition that has a new reader, or is read for the first time."""
    order = transfer.order
    if order.offset is None:
        return PartitionMoved(transfer.id, source, order.partition, order.target)
    time = to_millis(order.time)
    return PartitionAdded(source, order.partition, order.target, time, order.time)
