"""Events of the coordinator about partitions, as JSON-able fields of `schemas.status`."""

from __future__ import annotations

from meander.dataflow.coordinator.partition_assignment import PartitionTransfer
from meander.dataflow.migration.events import Event
from meander.state.times.time import to_millis


def partition_event(transfer: PartitionTransfer, source: str) -> Event:
    """Return the event of a partition that has a new reader, or is read for the first time."""
    order = transfer.order
    new = order.offset is not None
    named: Event = (
        {"type": "partition_added"} if new else {"type": "partition_moved", "id": transfer.id}
    )
    return named | {
        "source": source,
        "partition": int(order.partition),
        "worker": int(order.target),
        "time": to_millis(order.time),
        "at": order.time,
    }
