"""`meander run` in a process that kills itself, or a joining worker, at exact steps of plans.

The observer stands in calls of the driver's own loop. The driver has gone no further while a step
is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meander.app.cli import main as cli
from meander.app.driver import execution, lease, loop
from meander.app.driver.workers.joining import JoinStage
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.protocol.messages import Report
from meander.app.recovery.decision_log import DecisionLog
from meander.app.status.publisher import FlowStatus
from meander.dataflow.control.decisions import Decision, JointDecision
from meander.schemas.status import Event
from meander.state.keys.ids import WorkerId
from tests.support.kafka.topics import until
from tests.support.process.flow_process import FlowProcess, alive, kill, meander

ROOT = Path(__file__).parents[3]
DRIVER, JOINING = "driver", "joining"
"""The parties that may die."""
Strike = tuple[str, str, str]
"""The id of a plan, one of its steps, and the party that dies in it. The steps are the types of
its events, `registered` of its joining worker, and `decided`."""


@contextmanager
def dying_plans(
    folder: Path, bootstrap: str, strikes: Sequence[Strike], *words: str
) -> Iterator[FlowProcess]:
    """The command with these words, in which a party dies at each strike."""
    told = ",".join(map(":".join, strikes))
    program = sys.executable, "-m", __name__, told
    with meander(folder, bootstrap, *words, program=program, PYTHONPATH=str(ROOT)) as flow:
        yield flow


class PlanSteps:
    """An observer of a driver that kills a party at each of some steps, once."""

    def __init__(self, strikes: Sequence[Strike]) -> None:
        self._strikes = [*strikes]
        self._plan = ""
        self._processes: dict[WorkerId, int] = {}
        """The process of each worker that has registered in this execution."""
        self._joining: WorkerId | None = None
        """The last worker that has registered in order to join."""

    def observe(self, patch: Callable[[object, str, object], None]) -> None:
        """Observe the driver that this process runs from now on."""
        steps = self

        class ObservedPool(WorkerPool):
            def attend(self, report: Callable[[WorkerId, Report], None]) -> None:
                super().attend(report)
                steps._look(self)

        class ObservedLog(DecisionLog):
            def __call__(self, decision: Decision) -> Callable[[], bool]:
                durable = super().__call__(decision)
                if isinstance(decision, JointDecision):
                    steps._reach(decision.id, "decided")
                return durable

        class ObservedStatus(FlowStatus):
            def write(self, event: Event) -> None:
                super().write(event)
                id = str(getattr(event, "id", ""))
                if event.type == "reconfiguring":
                    steps._plan = id
                # The moves of a plan have its id as a prefix of theirs.
                steps._reach(id.partition("/")[0], event.type)

        patch(execution, "WorkerPool", ObservedPool)
        patch(loop, "DecisionLog", ObservedLog)
        patch(lease, "FlowStatus", ObservedStatus)

    def _look(self, pool: WorkerPool) -> None:
        registrations = pool._server.registrations.items()
        self._processes = {worker: found.register.pid for worker, found in registrations}
        for worker, one in pool.joining._workers.items():
            if one.stage >= JoinStage.REGISTERED:
                self._joining = worker
                self._reach(self._plan, "registered")

    def _reach(self, plan: str, step: str) -> None:
        for strike in self._strikes:
            if strike[:2] == (plan, step):
                self._strikes.remove(strike)
                self._kill(strike[2])
                return

    def _kill(self, party: str) -> None:
        if party == DRIVER:
            kill(os.getpid())
        assert self._joining is not None
        process = self._processes[self._joining]
        kill(process)
        until(lambda: not alive(process), "the worker is dead")


def run(told: str, *words: str) -> None:
    """Run the command; let a party die at each strike."""
    strikes = [tuple(one.split(":")) for one in told.split(",")]
    PlanSteps([(plan, step, party) for plan, step, party in strikes]).observe(setattr)
    sys.argv[1:] = words
    cli.main()


if __name__ == "__main__":
    run(*sys.argv[1:])
