"""The base of all policies: a function of metrics and plan that may propose another plan.

A policy decides and changes nothing: the driver checks each proposal, and carries it out as one
command. A policy that raises, or proposes what cannot be, therefore harms nothing. Cost: one call
per interval, on a thread of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, cast

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.schemas.errors import SetupError
from meander.schemas.option_values import (
    checked_flag,
    checked_number,
    checked_text,
    checked_whole,
)
from meander.state.keys.ids import WorkerId


class Policy:
    """The base of a policy. One call of `decide` follows another, and none runs while a change of
    the plan is under way.

    >>> class OneMore(Policy):
    ...     def decide(self, metrics, plan):
    ...         if metrics.active < 0.8 or len(plan.workers) >= 4:
    ...             return None
    ...         self.why = f"workers are active {metrics.active:.0%} of the time"
    ...         return resized(plan, len(plan.workers) + 1)
    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.dataflow.policies.metrics import WorkerLoad
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE}, bins={"": (WorkerId(0),) * 4})
    >>> policy = OneMore()
    >>> metrics = Metrics(10.0, 10.0, workers={WorkerId(0): WorkerLoad(active=0.9)})
    >>> policy.decide(metrics, plan).bins, policy.why
    ({'': (0, 0, 1, 1)}, 'workers are active 90% of the time')
    """

    why: str = ""
    """The reason of the last proposal, for log and events."""

    @property
    def name(self) -> str:
        """Return the name by which log and events know this policy."""
        return type(self).__name__

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan that the flow should have, or None to keep the present one. `metrics` are
        those of `plan`: the interval began after the last change."""
        raise NotImplementedError


def resized(plan: ExecutionPlan, count: int) -> ExecutionPlan:
    """Return the plan with a number of workers. The latest workers leave first, and new ones get
    their share of all bins and partitions.

    Raises PlanError for no workers.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE, WorkerId(4): ANYWHERE})
    >>> list(resized(plan, 3).workers), list(resized(plan, 1).workers)
    ([0, 4, 5], [0])
    """
    workers = sorted(plan.workers)
    new = [WorkerId(workers[-1] + 1 + n) for n in range(count - len(workers))]
    return plan.scaled([*workers[:count], *new])


def cooling_down(metrics: Metrics, seconds: float) -> bool:
    """Return whether the plan has changed less than some seconds ago.

    >>> cooling_down(Metrics(1.0, 1.0, since_change=5.0), 10), cooling_down(Metrics(1.0, 1.0), 10)
    (True, False)
    """
    return metrics.since_change is not None and metrics.since_change < seconds


def is_behind(metrics: Metrics, seconds: float) -> bool | None:
    """Return whether the lag is more than some seconds of arrivals; None where that is unknown. A
    flow whose arrivals no broker counts is never behind.

    >>> is_behind(Metrics(1.0, 1.0), 5.0)
    False
    """
    if not metrics.partitions:
        return False
    lag = metrics.lag_seconds
    return None if lag is None else lag > seconds


def within(plan: ExecutionPlan, least: int, most: int) -> ExecutionPlan | None:
    """Return the plan with the nearest number of workers between two bounds, or None where its own
    number is."""
    count = min(max(len(plan.workers), least), most)
    return None if count == len(plan.workers) else resized(plan, count)


def expect(policy: Policy, rules: Callable[[], Mapping[str, bool]]) -> None:
    """Raise SetupError for the first option of a policy with a value of another type, or whose rule
    does not hold."""
    subject, options = f"policy {policy.name}", cast(Any, policy)
    for one in fields(options):
        if (check := _CHECKS.get(str(one.type))) is not None:
            check(subject, one.name, getattr(options, one.name))
    for option, holds in rules().items():
        if not holds:
            value = getattr(policy, option)
            raise SetupError(
                subject, f"its {option} is {value!r}",
                "see the table of its options for values that are allowed",
            )  # fmt: skip


_CHECKS: Mapping[str, Callable[[str, str, object], object]] = {
    "int": checked_whole,
    "float": partial(checked_number, unit="a number"),
    "bool": checked_flag,
    "str": checked_text,
}
"""The check of an option by its annotation."""
