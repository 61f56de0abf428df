"""Gives source partitions to workers (design 3): the old reader says where it stopped, if any.

Guarantees that a partition is read by one worker at any moment, each record once, and that its
times go on where they were. An order of time t is kept as a capability for t by whoever reads the
partition, until the partition's frontier has come to t; then the old reader lets go, and where to
read on travels under t to the new one, whose capability comes with it (I1). In a flow that answers
as records arrive, the new reader waits until all that the old one sent has been taken (I3). Of a
partition that is new the target sends itself what an old reader would. Cost: none without orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.interfaces import Rest
from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.progress.capability import Capability
from meander.state.keys.ids import WorkerId
from meander.state.times.time import MIN_TIME


class Handover(BaseOperator):
    """The orders for one worker's sources."""

    def __init__(
        self,
        me: WorkerId,
        orders: InputPort,
        outlets: Mapping[int, tuple[SourceOperator, OutputPort]],
    ) -> None:
        self._me, self._orders, self._outlets = me, orders, outlets
        self._open: list[tuple[ReassignPartition, Capability]] = []

    def schedule(self) -> bool:
        """Take orders, and carry out those whose time has come."""
        received = self._receive()
        done = [one for one in self._open if self._carry_out(*one)]
        self._open = [one for one in self._open if one not in done]
        return received or bool(done)

    def _receive(self) -> bool:
        received = False
        for message in self._orders.drain():
            received = True
            assert isinstance(message.payload, ReassignPartition)
            order = message.payload
            source, output = self._outlets[order.source]
            if source.reads(order.partition):
                self._open.append((order, output.mint(message)))
            elif order.offset is not None and order.target == self._me:
                self._begin(order, order.offset, output.mint(message))
        return received

    def _begin(self, order: ReassignPartition, offset: int, capability: Capability) -> None:
        """Read a partition that nobody has read: none of its records is of before the order."""
        parcel = PartitionHandoff(
            order.partition, Rest(offset, None), MIN_TIME, MIN_TIME, order.begins
        )
        _, output = self._outlets[order.source]
        output.send(capability, order.time, parcel)
        capability.drop()

    def _carry_out(self, order: ReassignPartition, capability: Capability) -> bool:
        source, output = self._outlets[order.source]
        parcel = source.release(order.partition, order.time)
        if parcel is None:
            return False
        output.send(capability, order.time, parcel, order.target)
        capability.drop()
        return True
