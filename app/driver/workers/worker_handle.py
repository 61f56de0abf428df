"""The handle of one worker at the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.protocol.messages import WorkerHeartbeat
from meander.state.keys.ids import WorkerId


@dataclass(slots=True)
class WorkerHandle:
    """A handle that describes a worker to the driver from its launch to its exit."""

    id: WorkerId
    task: SparkTask
    received_at: float = 0.0
    """When its last message came."""
    working: bool = False
    done: bool = False
    stopped: bool = False
    failed: bool = False
    """Whether it has reported an error of its own."""
    end_reported: bool = False
    """Whether the cause of its end is known, so the end of its task adds nothing."""
    has_slot: bool = False
    """Whether Spark is known to have found an executor for it."""
    heartbeat: WorkerHeartbeat = field(default_factory=WorkerHeartbeat)
    """Its last heartbeat."""
    leaving: bool = False
    """Whether it has left the flow, and exits once all others have its final message."""
    files_sent: int = 0
    """The number of new files that it has been sent."""
    files: int = 0
    """The number of new files that it has acknowledged."""
    acknowledged_by: set[WorkerId] = field(default_factory=set)
    """The workers that have acknowledged its final message."""
