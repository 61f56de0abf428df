"""The drift trigger: a parameter of a changeable logic follows a statistic that leaves its target.

Guarantees that the same records never make the parameter go back and forth for ever: each reversal
halves the change, and small ones end it until the statistic moves again. Cost: negligible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy, cooling_down, expect
from meander.schemas.errors import SetupError
from meander.schemas.option_values import is_number

LEAST_CHANGE = 0.02
"""The least relative change of a parameter."""
DIGITS = 4
"""The significant digits of a parameter."""


@dataclass
class DriftTrigger(Policy):
    """A policy that changes a number among the parameters of an operator's logic where a statistic
    leaves its target: by default the records that the operator sends per record received.

    A factor above 1 suits a statistic that falls as the parameter rises, such as the share of
    records beyond a limit; one below 1 suits the contrary. Raises SetupError for a wrong option.

    >>> from meander.dataflow.control.logic_change import LogicVersion
    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.dataflow.policies.metrics import OperatorLoad, WorkerLoad
    >>> from meander.state.keys.ids import WorkerId
    >>> plan = ExecutionPlan(
    ...     {WorkerId(0): ANYWHERE}, {"alert": LogicVersion.of("Beyond", {"limit": 3.0})}
    ... )
    >>> alert = {"alert": OperatorLoad(received=500.0, sent=25.0)}
    >>> metrics = Metrics(10.0, 10.0, workers={WorkerId(0): WorkerLoad(operators=alert)})
    >>> policy = DriftTrigger("alert", "limit", target=0.02)
    >>> policy.decide(metrics, plan).logic["alert"].parameters, policy.why
    ('{"limit": 3.75}', 'the selectivity of alert is 0.05, and its target is 0.02')
    """

    operator: str
    """The operator whose logic changes."""
    parameter: str
    """The parameter that follows the statistic."""
    target: float
    """The wanted statistic."""
    tolerance: float = 0.5
    """The part of the target by which the statistic may differ."""
    factor: float = 1.25
    """The factor of the parameter where the statistic is above its target."""
    least: float = 1e-9
    """The least value of the parameter."""
    most: float = 1e9
    """The greatest value of the parameter."""
    min_records: int = 1000
    """The records that the operator must have received since the last change."""
    cool_down: float = 10.0
    """Seconds after each change of the plan without a decision."""
    _received: float = field(default=0.0, init=False, repr=False)
    _sum: float = field(default=0.0, init=False, repr=False)
    _direction: int = field(default=0, init=False, repr=False)
    """1 where the last change followed a statistic above its target, -1 for one below."""
    _exponent: float = field(default=1.0, init=False, repr=False)
    _rest: float | None = field(default=None, init=False, repr=False)
    """The statistic at which no change helps."""

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        expect(
            self, lambda: {
                "target": self.target > 0, "tolerance": 0 < self.tolerance < 1,
                "factor": self.factor > 0 and abs(math.log(self.factor)) >= LEAST_CHANGE,
                "least": self.least > 0, "most": self.most >= self.least,
                "min_records": self.min_records >= 1, "cool_down": self.cool_down >= 0,
            },
        )  # fmt: skip

    def statistic(self, metrics: Metrics) -> float | None:
        """Return the statistic of an interval, or None. A subclass may watch another one."""
        found = metrics.operator(self.operator)
        return None if found is None else found.selectivity

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan with another parameter, or None."""
        if cooling_down(metrics, self.cool_down):
            self._received = self._sum = 0.0
            return None
        value = self._mean(metrics)
        if value is None:
            return None
        self._received = self._sum = 0.0
        direction = self._drift(value)
        if not direction:
            self._direction, self._exponent, self._rest = 0, 1.0, None
            return None
        if self._rest is not None and self._near(value, self._rest):
            return None
        self._rest = None
        if self._direction and direction != self._direction:
            self._exponent /= 2
        self._direction = direction
        if abs(self._exponent * math.log(self.factor)) < LEAST_CHANGE:
            self._exponent, self._rest = 1.0, value
            return None
        return self._changed(plan, value, self.factor ** (direction * self._exponent))

    def _mean(self, metrics: Metrics) -> float | None:
        """Return the statistic over enough records, weighted by them; None before."""
        found, value = metrics.operator(self.operator), self.statistic(metrics)
        if found is None or value is None:
            return None
        records = found.received * metrics.seconds
        self._received += records
        self._sum += records * value
        return self._sum / self._received if self._received >= self.min_records else None

    def _drift(self, value: float) -> int:
        if value > self.target * (1 + self.tolerance):
            return 1
        return -1 if value < self.target * (1 - self.tolerance) else 0

    def _near(self, one: float, other: float) -> bool:
        return abs(one - other) <= self.tolerance * self.target

    def _changed(self, plan: ExecutionPlan, value: float, factor: float) -> ExecutionPlan | None:
        before = plan.logic[self.operator].values.get(self.parameter) if self._known(plan) else None
        if not is_number(before) or before <= 0:
            raise SetupError(
                f"operator {self.operator!r}", f"its logic has no positive {self.parameter!r}",
                f"name an operator and a parameter of policy {self.name} that the flow has",
            )  # fmt: skip
        exact = min(max(before * factor, self.least), self.most)
        after = float(f"{exact:.{DIGITS}g}")
        if after == before:
            return None
        self.why = (
            f"the selectivity of {self.operator} is {value:.3g}, and its target is {self.target:g}"
        )
        return plan.with_logic(self.operator, **{self.parameter: after})

    def _known(self, plan: ExecutionPlan) -> bool:
        return self.operator in plan.logic
