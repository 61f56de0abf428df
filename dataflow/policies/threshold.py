"""The threshold autoscaler: workers join above a share of active time, and leave below another.

Guarantees that a steady load never makes workers come and go. One leaves only where the others
would stay below the upper threshold, and only after `patience` decisions in a row. Cost:
negligible.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import (
    Policy,
    cooling_down,
    expect,
    is_behind,
    resized,
    within,
)

IN_FLIGHT = 5.0
"""Seconds of arrivals that a flow may have in flight, which count as lag."""


@dataclass
class ThresholdAutoscaler(Policy):
    """A policy that keeps the active share of workers between two thresholds.

    A lag of more than `lag_seconds` of arrivals also adds workers, unless the flow catches up soon,
    and no worker leaves before it has caught up. Raises SetupError for a wrong option.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.dataflow.policies.metrics import WorkerLoad
    >>> from meander.state.keys.ids import WorkerId
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE})
    >>> metrics = Metrics(10.0, 10.0, workers={WorkerId(0): WorkerLoad(active=0.95)})
    >>> policy = ThresholdAutoscaler(max_workers=4)
    >>> policy.decide(metrics, plan)
    >>> len(policy.decide(metrics, plan).workers)
    2
    """

    min_workers: int = 1
    max_workers: int = 8
    high: float = 0.8
    """The mean active share above which workers join."""
    low: float = 0.3
    """The mean active share below which a worker leaves."""
    lag_seconds: float = 30.0
    """The lag, as seconds of arrivals, above which workers join."""
    catch_up: float = 120.0
    """Seconds in which a falling lag may end, so that no more workers join for it."""
    step: int = 1
    """The most workers that join or leave at once."""
    readiness: int = 2
    """The decisions in a row that must agree before workers join."""
    patience: int = 6
    """The decisions in a row that must agree before workers leave."""
    cool_down: float = 60.0
    """Seconds after each change of the plan without a decision."""
    _lag: int | None = field(default=None, init=False, repr=False)
    """The lag at the last decision."""
    _above: int = field(default=0, init=False, repr=False)
    _below: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        expect(
            self, lambda: {
                "min_workers": self.min_workers >= 1,
                "max_workers": self.max_workers >= self.min_workers,
                "high": 0 < self.high <= 1, "low": 0 <= self.low < self.high,
                "lag_seconds": self.lag_seconds > 0, "catch_up": self.catch_up > 0,
                "step": self.step >= 1, "readiness": self.readiness >= 1,
                "patience": self.patience >= 1, "cool_down": self.cool_down >= 0,
            },
        )  # fmt: skip

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan with more or fewer workers, or None."""
        if not metrics.is_complete or cooling_down(metrics, self.cool_down):
            self._above = self._below = 0
            self._lag = metrics.lag
            return None
        if (bounded := within(plan, self.min_workers, self.max_workers)) is not None:
            self.why = f"the flow may have {self.min_workers} to {self.max_workers} workers"
            return bounded
        count = len(plan.workers)
        fewer = max(self.min_workers, count - self.step)
        behind = is_behind(metrics, self.lag_seconds)
        above = (metrics.active > self.high or bool(behind)) and not self._catches_up(metrics)
        # The others take over what leaving workers do, and one of them may already have enough.
        fits = metrics.active * count / fewer < self.high and metrics.busiest < self.high
        below = metrics.active < self.low and fits and behind is False
        self._above = self._above + 1 if above else 0
        self._below = self._below + 1 if below else 0
        if self._above >= self.readiness and count < self.max_workers:
            self.why = self._reason(metrics)
            return resized(plan, min(self.max_workers, count + self.step))
        if self._below >= self.patience and count > fewer:
            self.why = self._reason(metrics)
            return resized(plan, fewer)
        return None

    def _catches_up(self, metrics: Metrics) -> bool:
        """Note the lag; return whether it falls, and will soon be gone."""
        before, self._lag = self._lag, metrics.lag
        if before is None or metrics.lag is None or not is_behind(metrics, IN_FLIGHT):
            return False
        fallen = (before - metrics.lag) / metrics.seconds
        return fallen > 0 and metrics.lag / fallen < self.catch_up

    def _reason(self, metrics: Metrics) -> str:
        if metrics.active > self.high:
            return f"workers are active {metrics.active:.0%} of the time, above {self.high:.0%}"
        if metrics.active < self.low and not is_behind(metrics, self.lag_seconds):
            return f"workers are active {metrics.active:.0%} of the time, below {self.low:.0%}"
        return f"the flow is {metrics.lag_seconds or 0:.0f} s of arrivals behind"
