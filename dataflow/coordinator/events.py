"""What the controller says of partitions: events, JSON-able, in the words of `schemas.status`."""

from __future__ import annotations

from meander.dataflow.coordinator.partition_assignment import PartitionTransfer
from meander.dataflow.migration.events import Event
from meander.state.times.time import to_millis


def partition_given(handing: PartitionTransfer, source: str) -> Event:
    """A partition has changed hands, or is read since it has come to its topic."""
    order = handing.order
    new = order.offset is not None
    named: Event = (
        {"type": "partition_added"} if new else {"type": "partition_moved", "id": handing.id}
    )
    return named | {
        "source": source,
        "partition": int(order.partition),
        "worker": int(order.target),
        "time": to_millis(order.time),
        "at": order.time,
    }
