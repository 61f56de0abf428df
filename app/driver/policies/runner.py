"""The policy runner: it calls the policies of a flow at an interval, and guards the flow from them.

Guarantees that no policy holds up the driver, that an exception only costs its policy, and that
nothing is proposed while a change of the plan is under way or has just ended. Of each round the
first proposal that passes all checks is carried out, or only logged in a dry run. Cost: negligible
between rounds.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meander.app.driver.policies.metrics_window import MetricsWindow, Sample
from meander.app.driver.policies.plan_history import PlanHistory
from meander.app.driver.policies.policy_call import PolicyCall
from meander.app.driver.policies.proposal_check import checked
from meander.app.loading.preflight import PreparedFlow
from meander.dataflow.execution_plan.difference import Operation
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.error_policy import describe
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy
from meander.schemas.control import CommandError
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


NO_RETURN = 6
"""The intervals after a change in which no policy may undo it."""


class PlanControl(Protocol):
    """The way to the execution plan of a running flow."""

    @property
    def slots(self) -> int | None:
        """The number of workers that fit, where that is known."""

    @property
    def changing(self) -> bool:
        """Whether a command is under way or queued that changes the plan, or workers start."""

    def current(self) -> ExecutionPlan:
        """Return the plan that the flow has now."""

    def submit(self, plan: ExecutionPlan, by: str, why: str) -> str:
        """Start to change the flow to a plan; return the id of the command. Raises CommandError
        where it is refused. `by` names the policy."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options of the policies of a run. Times are in seconds."""

    dry_run: bool = False
    """Whether proposals are only logged."""
    interval: float = 10.0
    """From one round to the next, which is what metrics cover."""
    warm_up: float = 10.0
    """After each change of the plan without metrics, because they would be those of the change."""
    time_limit: float = 5.0
    """For one decision."""
    no_return: float = 60.0
    """After a change, in which no policy may undo it."""
    max_failures: int = 3
    """The failures in a row after which a policy is suspended."""


def policy_runner(prepared: PreparedFlow, clock: Clock) -> PolicyRunner:
    """Return the runner of the policies of a prepared flow."""
    options = prepared.options
    interval = options.policy_interval
    chosen = PolicyOptions(
        options.policies_dry_run, interval, warm_up=interval, no_return=NO_RETURN * interval
    )
    return PolicyRunner(prepared.policies, chosen, clock)


class PolicyRunner:
    """A runner of the policies of one flow, over all its executions.

    The driver calls `attach` at the start of an execution, then `step` at each heartbeat, and
    `ended` for each command that `submit` has started.
    """

    def __init__(self, policies: Sequence[Policy], options: PolicyOptions, clock: Clock) -> None:
        self._policies = [*policies]
        self._names = [_name_of(one) for one in policies]
        self._options, self._clock = options, clock
        self._history = PlanHistory(options.no_return)
        self._failures: Counter[int] = Counter()
        self._suspended: set[int] = set()
        self._hanging: dict[int, PolicyCall] = {}
        self._told: dict[int, str] = {}
        """The last refusal or dry run of each policy, which the log does not repeat."""
        self._control: PlanControl | None = None
        self._submitted: _Submitted | None = None

    def attach(self, control: PlanControl, window: MetricsWindow) -> None:
        """Work for an execution, which has started."""
        self._control, self._window = control, window
        self._seen: ExecutionPlan | None = None
        self._changed_at = self._clock.monotonic()
        self._warm_at = self._changed_at + self._options.warm_up
        self._round: _Round | None = None
        if self._submitted is not None:
            # The last execution may have decided it, so no policy may undo it either.
            self._history.add(self._changed_at, self._submitted.before, self._submitted.after)
            self._submitted = None
        window.restart()

    @property
    def active(self) -> bool:
        """Whether any policy is left to call."""
        return self._control is not None and len(self._suspended) < len(self._policies)

    @property
    def suspended(self) -> list[str]:
        """Return the names of the suspended policies."""
        return [self._names[number] for number in sorted(self._suspended)]

    def step(self, sample: Callable[[], Sample]) -> None:
        """Continue: note changes, start the next round, or handle the answer of a policy. `sample`
        returns one of the flow."""
        if not self.active or self._control is None:
            return
        now, control = self._clock.monotonic(), self._control
        if self._note_change(now, control):
            return
        if self._round is not None:
            self._continue(now, control, self._round)
        elif now >= self._warm_at:
            latest = sample()
            if self._window.seconds(latest) >= self._options.interval:
                self._start_round(now, control, latest)

    def ended(self, id: str, failure: str = "") -> None:
        """Note that a command has ended, with the reason where it has failed."""
        submitted = self._submitted
        if submitted is None or submitted.id != id:
            return
        self._submitted = None
        number, name = submitted.policy, self._names[submitted.policy]
        if failure:
            log.warning("policy_change_failed", policy=name, id=id, reason=failure)
            self._fail(number)
            return
        self._failures[number] = 0
        log.info("policy_change_completed", policy=name, id=id)
        now = self._clock.monotonic()
        self._history.add(now, submitted.before, submitted.after)

    # -- changes

    def _note_change(self, now: float, control: PlanControl) -> bool:
        """Return whether the plan changes, or has changed since the last step."""
        changing = control.changing or self._submitted is not None
        plan = None if changing else control.current()
        # The first plan of an execution follows no change.
        changed = changing or (self._seen is not None and plan != self._seen)
        self._seen = plan if plan is not None else self._seen
        if changed:
            self._changed_at, self._round = now, None
            self._warm_at = now + self._options.warm_up
            self._window.restart()
        return changed

    # -- rounds

    def _start_round(self, now: float, control: PlanControl, sample: Sample) -> None:
        metrics = self._window.close(sample, now - self._changed_at)
        if metrics is None:
            log.debug("policies_without_metrics")
            return
        left = [n for n in range(len(self._policies)) if n not in self._suspended]
        self._round = _Round(metrics, control.current(), left)
        self._call_next(now, self._round)

    def _call_next(self, now: float, round: _Round) -> None:
        """Call the next policy of a round, or end the round."""
        while round.left:
            number = round.left.pop(0)
            hanging = self._hanging.get(number)
            if hanging is not None and not hanging.done:
                self._fail(number)
                continue
            self._hanging.pop(number, None)
            name = self._names[number]
            round.number = number
            round.call = PolicyCall(self._policies[number], name, round.metrics, round.plan, now)
            return
        self._round = None

    def _continue(self, now: float, control: PlanControl, round: _Round) -> None:
        call, number = round.call, round.number
        if call is None:
            return
        name = self._names[number]
        if not call.done:
            if now - call.started_at <= self._options.time_limit:
                return
            self._hanging[number] = call
            limit = f"it has not decided within {self._options.time_limit:g} s"
            log.error("policy_failed", policy=name, reason=limit)
            self._fail(number)
        elif call.error is not None:
            trace = "".join(traceback.format_exception(call.error))
            log.error("policy_failed", trace.rstrip(), policy=name, reason=describe(call.error))
            self._fail(number)
        elif call.proposal is not None and self._handle(now, control, number, call):
            self._round = None
            return
        else:
            self._failures[number] = 0
        self._call_next(now, round)

    def _handle(self, now: float, control: PlanControl, number: int, call: PolicyCall) -> bool:
        """Check a proposal, and carry it out; return whether that has started."""
        current = control.current()
        try:
            plan, operations = checked(current, call.proposal, control.slots)
            if not operations:
                return False
            self._history.expect_new(now, current, plan)
            if self._options.dry_run:
                self._log_dry_run(number, call.why, operations)
                return False
            id = control.submit(plan, f"policy {self._names[number]}", call.why)
        except (MeanderError, CommandError) as error:
            self._refuse(number, str(error))
            return False
        log.info(
            "policy_change_started", policy=self._names[number], id=id, reason=call.why,
            operations=_in_words(operations),
        )  # fmt: skip
        self._told.pop(number, None)
        self._submitted = _Submitted(number, id, current, plan)
        return True

    # -- outcomes

    def _log_dry_run(self, number: int, why: str, operations: Sequence[Operation]) -> None:
        words = _in_words(operations)
        if self._told.get(number) != words:
            self._told[number] = words
            name = self._names[number]
            log.info("policy_dry_run", policy=name, reason=why, operations=words)

    def _refuse(self, number: int, reason: str) -> None:
        if self._told.get(number) != reason:
            self._told[number] = reason
            log.warning("policy_refused", policy=self._names[number], reason=reason)

    def _fail(self, number: int) -> None:
        self._failures[number] += 1
        if self._failures[number] >= self._options.max_failures:
            self._suspended.add(number)
            log.error(
                "policy_suspended", policy=self._names[number],
                reason=f"it has failed {self._failures[number]} times in a row",
                until="the next start of the flow",
            )  # fmt: skip


@dataclass(slots=True)
class _Round:
    """A round of calls."""

    metrics: Metrics
    plan: ExecutionPlan
    left: list[int]
    """The policies to call, by number."""
    number: int = -1
    call: PolicyCall | None = None


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A change of the plan that a policy has started."""

    policy: int
    id: str
    before: ExecutionPlan
    after: ExecutionPlan


def _name_of(policy: Policy) -> str:
    """Return the name of a policy, or of its class where that raises."""
    try:
        return str(policy.name)
    except Exception as error:  # noqa: BLE001 (a user's property)
        log.warning("policy_without_name", policy=type(policy).__name__, reason=describe(error))
        return type(policy).__name__


def _in_words(operations: Sequence[Operation]) -> str:
    return "; ".join(map(str, operations))
