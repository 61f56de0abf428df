"""The call of a policy, on a thread of its own, so that the driver's loop waits for no policy.

Guarantees that whatever a policy raises becomes an error here. A call that hangs cannot be ended:
it keeps its thread, which does not keep the process alive. Cost: one thread per call.
"""

from __future__ import annotations

import threading

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy


class PolicyCall:
    """A running call of `decide`.

    >>> class Fails(Policy):
    ...     def decide(self, metrics, plan):
    ...         raise KeyError("count")
    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.state.keys.ids import WorkerId
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE})
    >>> call = PolicyCall(Fails(), "fails", Metrics(1.0, 1.0), plan, started_at=0.0)
    >>> call.join(10); call.done, call.error
    (True, KeyError('count'))
    """

    def __init__(
        self, policy: Policy, name: str, metrics: Metrics, plan: ExecutionPlan, started_at: float
    ) -> None:
        self.policy, self.started_at = policy, started_at
        self.plan = plan
        """The plan that the policy got."""
        self.proposal: object = None
        self.why = ""
        """The reason that the policy gives for its proposal."""
        self.error: BaseException | None = None
        # A policy may change what it gets.
        copy = ExecutionPlan(
            dict(plan.workers), dict(plan.logic), dict(plan.bins), dict(plan.partitions)
        )
        self._thread = threading.Thread(
            target=self._run, args=(metrics, copy), name=f"policy {name}", daemon=True
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait some seconds for the end of the call."""
        self._thread.join(seconds)

    def _run(self, metrics: Metrics, plan: ExecutionPlan) -> None:
        try:
            proposal = self.policy.decide(metrics, plan)
            self.why = str(self.policy.why)
            self.proposal = proposal
        except BaseException as error:  # noqa: BLE001 (the runner logs it)
            self.error = error
