"""The memory of one worker: how its states and the records on their way share it.

Guarantees that states, records in flight, waiting records and moving bins together stay within the
memory that an execution plan gives the worker. Without it the flow's settings hold. Beyond its
part, states and waiting records go to disk, sources stop reading, and bins wait for their turn. The
Python process, rows of collections, unacknowledged messages on links and the largest single batch
come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meander.dataflow.api.nodes import SinkNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.inflight import DEFAULT_BYTES

SINK_SHARES: Final = 4
"""The most kinds of records that wait at one sink, each within the bound of an operator."""


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The bounds of one worker, in bytes."""

    states: int
    waiting: int
    """The bound of the records that wait at one operator."""
    in_flight: int
    """The bound of the bytes in flight; a partition that holds back the flow may double it."""
    moves: int
    """The bound of the bins that move, beside the worker's share of the flow's `move_memory`."""

    @staticmethod
    def of(plan: Plan, memory: int) -> WorkerMemory:
        """Return the bounds of a worker with `memory` bytes, or with the flow's settings for 0.

        States have a half of the memory, and the waiting records of all operators a quarter. An
        eighth each is for moving bins, and for records in flight, whose bound may double.
        """
        flow = plan.flow
        in_flight = flow.max_inflight or DEFAULT_BYTES
        if not memory:
            return WorkerMemory(flow.state_memory, flow.max_waiting, in_flight, flow.move_memory)
        sinks = sum(isinstance(node, SinkNode) for node in plan.nodes)
        # Dead letters wait, too.
        shares = len(plan.nodes) + sinks * (SINK_SHARES - 1) + 1
        return WorkerMemory(
            memory // 2, memory // 4 // shares, min(in_flight, memory // 16), memory // 8
        )
