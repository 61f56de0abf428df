"""One worker as the driver knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.protocol.messages import WorkerHeartbeat
from meander.state.keys.ids import WorkerId


@dataclass(slots=True)
class WorkerHandle:
    """A worker from its launch to its end."""

    id: WorkerId
    task: SparkTask
    heard: float = 0.0
    working: bool = False
    done: bool = False
    stopped: bool = False
    failed: bool = False
    """Whether it has met with an error of its own."""
    told: bool = False
    slot: bool = False
    """Whether Spark is known to have found an executor for it."""
    beat: WorkerHeartbeat = field(default_factory=WorkerHeartbeat)
    """Its last."""
    leaves: bool = False
    """Whether the flow has let it go."""
    released: set[WorkerId] = field(default_factory=set)
    """Who has heard its last word."""
