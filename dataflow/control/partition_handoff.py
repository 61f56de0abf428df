"""The messages of a partition move: the decision, and the partition handoff."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import msgpack

from meander.dataflow.control.strict_decoding import expect_int
from meander.dataflow.interfaces import Partition, Rest
from meander.state.keys.ids import WorkerId


@dataclass(frozen=True, slots=True)
class ReassignPartition:
    """A decision that makes `target` read a partition once its frontier has reached `time`. All
    workers receive it.

    A partition without an earlier reader starts at `time`, and the decision names its offset.

    >>> order = ReassignPartition(0, Partition(3), 7, WorkerId(1))
    >>> ReassignPartition.from_bytes(order.to_bytes()) == order
    True
    """

    source: int
    """The number of the source in the flow."""
    partition: Partition
    time: int
    target: WorkerId
    offset: int | None = None
    """The first offset of a new partition. None where an earlier reader knows the position."""

    @property
    def first_time(self) -> int:
        """Return the least time of records of a new partition. Idle partitions reach this time once
        they pass the decision."""
        return self.time + 1

    def to_bytes(self) -> bytes:
        """Encode the decision for the wire."""
        return bytes(msgpack.packb(astuple(self)))

    @staticmethod
    def from_bytes(data: bytes) -> ReassignPartition:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        *numbers, offset = msgpack.unpackb(data)
        source, partition, time, target = map(expect_int, numbers)
        first = None if offset is None else expect_int(offset)
        return ReassignPartition(source, Partition(partition), time, WorkerId(target), first)


@dataclass(frozen=True, slots=True)
class PartitionHandoff:
    """A partition handoff that tells the new reader of a partition where to continue.

    >>> handoff = PartitionHandoff(Partition(3), Rest(100, None), 7, 8, 9)
    >>> PartitionHandoff.from_bytes(handoff.to_bytes()) == handoff
    True
    """

    partition: Partition
    rest: Rest
    """The records that the old reader has not sent."""
    maximum: int
    """The running maximum of the times that its records request."""
    newest: int
    """The time of the last sent record, or `MIN_TIME` before the first."""
    frontier: int
    """The frontier of the partition, later than `newest`."""

    def to_bytes(self) -> bytes:
        """Encode the partition handoff for the wire."""
        return bytes(msgpack.packb(astuple(self)))

    @staticmethod
    def from_bytes(data: bytes) -> PartitionHandoff:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        partition, (offset, end), *times = msgpack.unpackb(data)
        number, start, maximum, newest, frontier = map(expect_int, (partition, offset, *times))
        rest = Rest(start, None if end is None else expect_int(end))
        return PartitionHandoff(Partition(number), rest, maximum, newest, frontier)
