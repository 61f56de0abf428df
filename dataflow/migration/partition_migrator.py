"""The partition migrator moves source partitions between workers (design 3).

Guarantees that one worker reads a partition at any moment, each record once, and that its times
continue where they were. The reader of a partition holds a capability for the time t of an order
until the frontier of the partition has come to t. Then the old reader releases the partition and
sends its position under t; the capability moves with it (I1). In a flow that answers as records
arrive, the new reader waits until all earlier records have been received (I3). The target of a new
partition sends the position to itself. Cost: none without orders.
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


class PartitionMigrator(BaseOperator):
    """An operator that carries out the partition orders of one worker."""

    def __init__(
        self,
        me: WorkerId,
        orders: InputPort,
        outputs: Mapping[int, tuple[SourceOperator, OutputPort]],
    ) -> None:
        self._me, self._orders, self._outputs = me, orders, outputs
        self._open: list[tuple[ReassignPartition, Capability]] = []

    def schedule(self) -> bool:
        """Receive orders, and carry out those whose time has come."""
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
            source, output = self._outputs[order.source]
            if source.reads(order.partition):
                self._open.append((order, output.mint(message)))
            elif order.offset is not None and order.target == self._me:
                self._start(order, order.offset, output.mint(message))
        return received

    def _start(self, order: ReassignPartition, offset: int, capability: Capability) -> None:
        """Start to read a new partition: none of its records is older than the order."""
        handoff = PartitionHandoff(
            order.partition, Rest(offset, None), MIN_TIME, MIN_TIME, order.first_time
        )
        _, output = self._outputs[order.source]
        output.send(capability, order.time, handoff)
        capability.drop()

    def _carry_out(self, order: ReassignPartition, capability: Capability) -> bool:
        source, output = self._outputs[order.source]
        handoff = source.release(order.partition, order.time)
        if handoff is None:
            return False
        output.send(capability, order.time, handoff, order.target)
        capability.drop()
        return True
