"""Records that wait at an operator until the control frontier has passed their times.

Invariant: a capability covers all records that wait. Records of one partition keep their order.
Cost: one capability and one entry of a buffer per message.
"""

from __future__ import annotations

from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.ports import InputPort, OutputPort
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of


def receive_records(
    source: InputPort, output: OutputPort, capabilities: CapabilitySet, waiting: SpillBuffer
) -> bool:
    """Let the records of all messages wait under their capabilities. Return whether there were
    any. The operator reports their completion to the latency of the input."""
    received = False
    for message in source.consume():
        received = True
        assert isinstance(message.payload, Batch)
        capabilities.retain(output.mint(message))
        iterations = iterations_of(message.time)
        waiting.add(Rows.of(message.payload, 0, iterations, message.arrived_at))
    return received
