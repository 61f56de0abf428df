"""What travels when a source partition changes hands: the order to do so, and where to read on."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import msgpack

from meander.dataflow.control.strict import whole
from meander.dataflow.interfaces import Partition, Rest
from meander.state.keys.ids import WorkerId


@dataclass(frozen=True, slots=True)
class ReassignPartition:
    """From the coordinator to all: once a partition has come to `time`, `target` reads it.

    One that nobody has read yet begins at `time`, and says where in its log.

    >>> order = ReassignPartition(0, Partition(3), 7, WorkerId(1))
    >>> ReassignPartition.from_bytes(order.to_bytes()) == order
    True
    """

    source: int
    """The source's number in the flow."""
    partition: Partition
    time: int
    target: WorkerId
    offset: int | None = None
    """Of the first record, where nobody has read it yet; None where its reader knows."""

    @property
    def begins(self) -> int:
        """What the records of a partition that nobody has read have at least: where those stand
        that were idle and had to let the order pass."""
        return self.time + 1

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb(astuple(self)))

    @staticmethod
    def from_bytes(data: bytes) -> ReassignPartition:
        """The inverse. Raises ValueError for anything else."""
        *numbers, offset = msgpack.unpackb(data)
        source, partition, time, target = map(whole, numbers)
        first = None if offset is None else whole(offset)
        return ReassignPartition(source, Partition(partition), time, WorkerId(target), first)


@dataclass(frozen=True, slots=True)
class PartitionHandoff:
    """From the old reader of a partition to the new one.

    >>> parcel = PartitionHandoff(Partition(3), Rest(100, None), 7, 8, 9)
    >>> PartitionHandoff.from_bytes(parcel.to_bytes()) == parcel
    True
    """

    partition: Partition
    rest: Rest
    """What the old reader has not sent."""
    maximum: int
    """The running maximum of what its records ask for."""
    newest: int
    """The time of the last record sent; `MIN_TIME` while there is none."""
    frontier: int
    """The partition's frontier, later than `newest`."""

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb(astuple(self)))

    @staticmethod
    def from_bytes(data: bytes) -> PartitionHandoff:
        """The inverse. Raises ValueError for anything else."""
        partition, (offset, end), *times = msgpack.unpackb(data)
        number, start, maximum, newest, frontier = map(whole, (partition, offset, *times))
        rest = Rest(start, None if end is None else whole(end))
        return PartitionHandoff(Partition(number), rest, maximum, newest, frontier)
