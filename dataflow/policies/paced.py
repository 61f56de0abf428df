"""Paced migrations: a policy that carries the plan of another out in steps, as the latency allows.

Guarantees that each step leads towards the plan of the other policy, and that the plan is given up
where somebody else changes the flow meanwhile. The number of bins per step follows the latency: it
halves where records take too long, and doubles otherwise. Cost: O(bins) per step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy, expect
from meander.schemas.errors import SetupError


@dataclass
class PacedMigration(Policy):
    """A policy that moves the bins of another policy's plan a few at a time.

    New workers start with the first step, and leaving ones end with the last, which also changes
    logic and partitions. While steps are left, the other policy is not asked. Raises SetupError for
    a wrong option.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.state.keys.ids import WorkerId
    >>> class Share(Policy):
    ...     def decide(self, metrics, plan):
    ...         return plan.with_bins(WorkerId(1), [4, 5, 6, 7])
    >>> plan = ExecutionPlan(
    ...     dict.fromkeys([WorkerId(0), WorkerId(1)], ANYWHERE), bins={"": (WorkerId(0),) * 8}
    ... )
    >>> policy = PacedMigration(Share(), latency=0.3, first=1)
    >>> for p99 in 0.1, 0.1, 0.5:
    ...     plan = policy.decide(Metrics(10.0, 10.0, p99=p99), plan)
    ...     print(len(plan.bins_of(WorkerId(1))), policy.why)
    1 3 bins are left to move
    3 1 bins are left to move; records take 0.1 s
    4 0 bins are left to move; records take 0.5 s
    """

    inner: Policy
    """The policy whose plans it carries out."""
    latency: float = 0.3
    """The seconds in which 99 of 100 deliveries should end."""
    first: int = 8
    """The bins of the first step."""
    most: int = 64
    """The most bins of a step."""
    _step: int = field(default=0, init=False, repr=False)
    _goal: ExecutionPlan | None = field(default=None, init=False, repr=False)
    _before: ExecutionPlan | None = field(default=None, init=False, repr=False)
    _proposed: ExecutionPlan | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        inner: object = self.inner
        if not isinstance(inner, Policy):
            raise SetupError("policy PacedMigration", f"its inner is {inner!r}", "give it a policy")
        expect(
            self, lambda: {
                "latency": self.latency > 0, "first": self.first >= 1,
                "most": self.most >= self.first,
            },
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Return the name of both policies."""
        return f"{type(self).__name__}({self.inner.name})"

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan after the next step, or None."""
        self._follow(plan)
        if self._goal is None:
            self._step = self.first
            self._goal = self.inner.decide(metrics, plan)
            reason = self.inner.why
        else:
            self._adapt(metrics)
            reason = f"records take {metrics.p99:g} s" if metrics.p99 is not None else ""
        if self._goal is None:
            return None
        proposal, left = _next(metrics, plan, self._goal, self._step)
        self.why = "; ".join(filter(None, [f"{left} bins are left to move", reason]))
        self._before, self._proposed = plan, proposal
        if not left:
            self._goal = None
        return proposal

    def _follow(self, plan: ExecutionPlan) -> None:
        """Give the goal up unless the flow has the plan of the last step."""
        before, proposed, goal = self._before, self._proposed, self._goal
        if before is None or proposed is None or goal is None:
            return
        # The driver may have given new workers other ids.
        asked = sorted(set(proposed.workers) - set(before.workers))
        got = sorted(set(plan.workers) - set(before.workers))
        self._goal = None
        if len(asked) == len(got):
            names = dict(zip(asked, got, strict=True))
            if _placed_alike(plan, proposed.renamed(names)):
                self._goal = goal.renamed(names)

    def _adapt(self, metrics: Metrics) -> None:
        late = metrics.p99 is not None and metrics.p99 > self.latency
        self._step = max(1, self._step // 2) if late else min(self.most, self._step * 2)


def _next(
    metrics: Metrics, plan: ExecutionPlan, goal: ExecutionPlan, most: int
) -> tuple[ExecutionPlan, int]:
    """Return the plan after the next step towards a goal, and the number of bins that are left. The
    bins with most records go first, because their moves help most."""
    moves = [
        (group, bin)
        for group, owners in goal.bins.items()
        for bin, owner in enumerate(owners)
        if plan.bins[group][bin] != owner
    ]
    if len(moves) <= most:
        return goal, 0
    records = {group: [one.records for one in bins] for group, bins in metrics.bins.items()}
    moves.sort(key=lambda one: -(records.get(one[0], [])[one[1] : one[1] + 1] or [0.0])[0])
    step = replace(plan, workers={**goal.workers, **plan.workers})
    for group, bin in moves[:most]:
        step = step.with_bins(goal.bins[group][bin], [bin], group)
    return step, len(moves) - most


def _placed_alike(one: ExecutionPlan, other: ExecutionPlan) -> bool:
    """Return whether two plans differ at most in the resources of workers."""
    return _without_resources(one) == _without_resources(other)


def _without_resources(plan: ExecutionPlan) -> tuple[object, ...]:
    return {*plan.workers}, dict(plan.logic), dict(plan.bins), dict(plan.partitions)
