"""The states of workers that join a flow or leave it, as the driver reaches them.

The observer stands in calls of the driver's own loop. The driver has gone no further while a state
is shown.
"""

from __future__ import annotations

from collections.abc import Callable

from meander.app.driver import execution, lease, loop
from meander.app.driver.workers.joining import JoinStage
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.protocol.messages import Report
from meander.app.recovery.decision_log import DecisionLog
from meander.app.status.publisher import FlowStatus
from meander.dataflow.control.decisions import Decision, JoinDecision, LeaveDecision
from meander.schemas.status import BinMoved, Event, Joined, Left, Recovering, Rescaled, Rescaling
from meander.state.keys.ids import WorkerId

JOIN = (*(stage.name.lower() for stage in JoinStage), "decided", "joined", "shared")
LEAVE = ("leaving", "shared", "decided", "left", "gone")
"""The states of a worker that joins, and of one that leaves, in order."""

Show = Callable[[str, WorkerId | None], None]
"""Gets a state and the worker in it; None for a state of all workers of the rescale."""
Patch = Callable[[object, str, object], None]
"""Sets an attribute, such as `setattr`."""


class RescaleStates:
    """An observer of a driver that shows each state of a rescale."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self.change: Rescaling | None = None
        """The rescale in progress."""
        self.pool: WorkerPool | None = None
        """The worker pool of the execution."""
        self.processes: dict[WorkerId, int] = {}
        """The process of each worker that has registered in this execution."""

    def observe(self, patch: Patch) -> None:
        """Observe the driver that this process runs from now on."""
        states = self

        class ObservedPool(WorkerPool):
            def attend(self, report: Callable[[WorkerId, Report], None]) -> None:
                super().attend(report)
                states._look(self)

            def release(self, worker: WorkerId) -> None:
                super().release(worker)
                states._shows("left", worker)

        class ObservedLog(DecisionLog):
            def __call__(self, decision: Decision) -> Callable[[], bool]:
                durable = super().__call__(decision)
                if isinstance(decision, JoinDecision | LeaveDecision):
                    states._shows("decided", decision.worker)
                return durable

        class ObservedStatus(FlowStatus):
            def write(self, event: Event) -> None:
                super().write(event)
                states._note(event)

        patch(execution, "WorkerPool", ObservedPool)
        patch(loop, "DecisionLog", ObservedLog)
        patch(lease, "FlowStatus", ObservedStatus)

    def _look(self, pool: WorkerPool) -> None:
        """Show the stage of each joining worker that the driver has just attended to."""
        if pool is not self.pool:
            self.pool, self.processes = pool, {}
        registrations = pool._server.registrations.items()
        self.processes |= {worker: found.register.pid for worker, found in registrations}
        for worker, one in pool.joining._workers.items():
            self._shows(one.stage.name.lower(), worker)

    def _note(self, event: Event) -> None:
        match event:
            case Rescaling():
                self.change = event
                self._shows("launched" if event.joining else "leaving", None)
            case Joined(worker=worker):
                self._shows("joined", WorkerId(worker))
            case BinMoved():
                self._shows("shared", None)
            case Left(worker=worker):
                self._shows("gone", WorkerId(worker))
            case Recovering() | Rescaled():
                self.change = None

    def _shows(self, state: str, worker: WorkerId | None) -> None:
        if self.change is not None:
            self._show(state, worker)
