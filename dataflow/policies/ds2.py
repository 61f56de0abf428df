"""The DS2 autoscaler: the number of workers follows from true processing rates in one step.

After DS2 (Kalavri et al., OSDI 2018): the target rate of each operator follows from the arrivals at
the sources through the graph, and its busy time per record says how much time that takes. A worker
runs all operators, so the sum over them is a number of fully active workers. Guarantees that a
steady load leads to one number of workers. Cost: O(operators) per decision.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics, OperatorLoad
from meander.dataflow.policies.policy import (
    Policy,
    cooling_down,
    expect,
    is_behind,
    resized,
    within,
)


@dataclass
class DS2Autoscaler(Policy):
    """A policy that gives a flow the workers that its arrivals need, at a utilization.

    Workers join as soon as the need exceeds `high`. They leave where fewer would have been enough
    at each decision of `scale_down_after` seconds, the flow is not behind, and no worker is full.
    Raises SetupError for a wrong option.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.dataflow.policies.metrics import PartitionLoad, WorkerLoad
    >>> from meander.state.keys.ids import WorkerId
    >>> operators = {
    ...     "lines": OperatorLoad(sent=1000.0, busy=0.2, is_source=True),
    ...     "count": OperatorLoad(received=1000.0, busy=0.6),
    ... }
    >>> metrics = Metrics(
    ...     10.0, 10.0, workers={WorkerId(0): WorkerLoad(0.9, 1.0, 0.0, 1000.0, 0, operators)},
    ...     partitions={("lines", 0): PartitionLoad(arrived=3000.0, lag=0)},
    ...     upstreams={"lines": (), "count": ("lines",)},
    ... )
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE})
    >>> policy = DS2Autoscaler(utilization=0.75)
    >>> len(policy.decide(metrics, plan).workers), policy.why
    (4, '3000 records/s keep 3.00 workers active')
    """

    min_workers: int = 1
    max_workers: int = 8
    utilization: float = 0.7
    """The active share of workers for which their number is chosen."""
    high: float = 0.85
    """The active share above which workers join."""
    catch_up: float = 60.0
    """Seconds in which the flow should work off its lag."""
    allowed_lag: float = 5.0
    """The lag, as seconds of arrivals, that a flow may have."""
    scale_down_after: float = 300.0
    """Seconds for which fewer workers must have been enough."""
    cool_down: float = 30.0
    """Seconds after each change of the plan without a decision."""
    _needs: deque[tuple[float, float]] = field(default_factory=deque, init=False, repr=False)
    """The needs of the last decisions, with their times."""

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        expect(
            self, lambda: {
                "min_workers": self.min_workers >= 1,
                "max_workers": self.max_workers >= self.min_workers,
                "utilization": 0 < self.utilization <= 1,
                "high": self.utilization <= self.high <= 1,
                "catch_up": self.catch_up > 0, "allowed_lag": self.allowed_lag > 0,
                "scale_down_after": self.scale_down_after >= 0, "cool_down": self.cool_down >= 0,
            },
        )  # fmt: skip

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan with the number of workers that the arrivals need, or None."""
        if not metrics.is_complete or cooling_down(metrics, self.cool_down):
            return None
        if (bounded := within(plan, self.min_workers, self.max_workers)) is not None:
            self.why = f"the flow may have {self.min_workers} to {self.max_workers} workers"
            return bounded
        targets = self._targets(metrics)
        need = None if targets is None else active_workers(metrics, targets)
        if targets is None or need is None or not math.isfinite(need):
            return None
        self._note(metrics.now, need)
        self.why = f"{sum(targets.values()):.0f} records/s keep {need:.2f} workers active"
        count = len(plan.workers)
        if need > self.high * count:
            wanted = self._workers(need)
            return resized(plan, wanted) if wanted > count else None
        wanted = self._workers(max(one for _, one in self._needs))
        if wanted < count and self._may_shrink(metrics):
            return resized(plan, wanted)
        return None

    def _targets(self, metrics: Metrics) -> dict[str, float] | None:
        """Return the records per second that each source should send. None where the arrivals are
        unknown.

        A lag counts only while a worker is full: otherwise something else than the workers' time
        holds the flow up, and more workers would not help.
        """
        full = metrics.busiest >= self.high
        found = {name: one.sent for name, one in _operators(metrics).items() if one.is_source}
        for source, partitions in metrics.by_source().items():
            its = replace(metrics, partitions=partitions)
            if its.arrived is None or its.lag is None:
                return None
            # Records in flight count as lag, and a flow always has some.
            allowed = self.allowed_lag * max(its.arrived, found.get(source, 0.0))
            excess = max(0.0, its.lag - allowed) if full else 0.0
            found[source] = its.arrived + excess / self.catch_up
        return found

    def _note(self, now: float, need: float) -> None:
        self._needs.append((now, need))
        while len(self._needs) > 1 and self._needs[1][0] <= now - self.scale_down_after:
            self._needs.popleft()

    def _workers(self, need: float) -> int:
        # Less than a thousandth of a worker is noise of floating point.
        wanted = math.ceil(need / self.utilization - 0.001)
        return min(max(wanted, self.min_workers), self.max_workers)

    def _may_shrink(self, metrics: Metrics) -> bool:
        first, last = self._needs[0][0], metrics.now
        behind = is_behind(metrics, self.allowed_lag)
        enough = behind is False and metrics.busiest < self.high
        return enough and last - first >= self.scale_down_after


def active_workers(metrics: Metrics, targets: Mapping[str, float]) -> float | None:
    """Return how many workers are fully active while each source sends its target rate, in records
    per second. None where no source has sent a record.

    The time of workers outside operators, such as for links, counts in proportion.
    """
    operators = _operators(metrics)
    busy = sum(one.busy for one in operators.values() if one.true_rate)
    if not any(one.true_rate for one in operators.values() if one.is_source):
        return None
    rates = target_rates(metrics.upstreams, operators, targets)
    needed = sum(rates[name] / one.true_rate for name, one in operators.items() if one.true_rate)
    active = sum(one.active for one in metrics.workers.values())
    return needed * max(1.0, active / busy)


def target_rates(
    upstreams: Mapping[str, tuple[str, ...]],
    operators: Mapping[str, OperatorLoad],
    sources: Mapping[str, float],
) -> dict[str, float]:
    """Return the target rate of each operator, in records per second that it should process, where
    each source sends its own.

    An operator with one upstream gets the same share of its records as now, because a split sends a
    part of them. One with several gets all that they send.

    >>> operators = {
    ...     "lines": OperatorLoad(sent=100.0, busy=0.1, is_source=True),
    ...     "words": OperatorLoad(received=100.0, sent=500.0, busy=0.1),
    ...     "long": OperatorLoad(received=400.0, sent=400.0, busy=0.1),
    ... }
    >>> upstreams = {"lines": (), "words": ("lines",), "long": ("words",)}
    >>> target_rates(upstreams, operators, {"lines": 200.0})
    {'lines': 200.0, 'words': 200.0, 'long': 800.0}
    """
    found: dict[str, float] = {}
    for name, before in upstreams.items():
        one = operators.get(name, OperatorLoad())
        above = [(operators.get(other, OperatorLoad()), found.get(other, 0.0)) for other in before]
        if not before:
            found[name] = sources.get(name, one.processed)
        elif len(above) == 1:
            found[name] = _share(one.received, *above[0])
        else:
            found[name] = sum(_share(other.sent, other, rate) for other, rate in above)
    return found


def _share(records: float, of: OperatorLoad, target: float) -> float:
    """Return the records per second that become of a target rate of an operator, where `records` do
    now."""
    return target * records / of.processed if of.processed else records


def _operators(metrics: Metrics) -> dict[str, OperatorLoad]:
    found = {name: metrics.operator(name) for name in metrics.upstreams}
    return {name: one for name, one in found.items() if one is not None}
