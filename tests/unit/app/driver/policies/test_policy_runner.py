"""The policy runner carries out good proposals, and no policy harms the flow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from meander import Flow
from meander.app.driver.policies.metrics_window import MetricsWindow, Sample
from meander.app.driver.policies.runner import PolicyOptions, PolicyRunner
from meander.app.protocol.messages import WorkerHeartbeat
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy, resized
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.control import CommandError
from meander.state.keys.ids import WorkerId

OPTIONS = PolicyOptions(interval=10.0, warm_up=5.0, time_limit=2.0, no_return=100.0)
plan_of_texts: Any = {"0": ANYWHERE}
resources: Any = 3
Decide = Callable[[Metrics, ExecutionPlan], object]
TWO = ExecutionPlan(
    dict.fromkeys([WorkerId(0), WorkerId(1)], ANYWHERE),
    {"alert": LogicVersion.of("Beyond", {"limit": 3})},
    {"": (WorkerId(0), WorkerId(0), WorkerId(1), WorkerId(1))},
    {("lines", 0): WorkerId(0)},
)


class Given(Policy):
    """Decide as a function says."""

    def __init__(self, name: str, decide: Decide) -> None:
        self._name, self._decide = name, decide
        self.calls: list[tuple[Metrics, ExecutionPlan]] = []

    @property
    def name(self) -> str:
        return self._name

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        self.calls.append((metrics, plan))
        self.why = f"call {len(self.calls)}"
        found: Any = self._decide(metrics, plan)
        return found  # type: ignore[no-any-return]


@dataclass
class Control:
    """A control of a flow whose commands end when a test says so."""

    plan: ExecutionPlan = TWO
    slots: int | None = 8
    changing: bool = False
    refusal: str = ""
    submitted: list[tuple[ExecutionPlan, str, str]] = field(default_factory=list)

    def current(self) -> ExecutionPlan:
        return self.plan

    def submit(self, plan: ExecutionPlan, by: str, why: str) -> str:
        if self.refusal:
            raise CommandError(self.refusal)
        self.submitted.append((plan, by, why))
        return f"p{len(self.submitted)}"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def undisturbed(self) -> float:
        return self.monotonic()

    def now_ms(self) -> int:
        return int(self.now * 1000)


class Driven:
    """A runner that a test steps once a second, and waits for its threads."""

    def __init__(self, *policies: Policy, options: PolicyOptions = OPTIONS) -> None:
        self.clock, self.control = Clock(), Control()
        self.runner = PolicyRunner(policies, options, self.clock)
        flow = Flow("flow")
        flow.source(ListSource([[]])).sink(ListSink())
        self._plan = Plan(flow)
        self.attach()

    def attach(self) -> None:
        self.runner.attach(self.control, MetricsWindow(self._plan, {}, self.clock))

    def sample(self) -> Sample:
        heartbeat = WorkerHeartbeat(at=self.clock.now, active=self.clock.now / 2)
        return Sample(self.clock.now, dict.fromkeys(self.control.plan.workers, heartbeat))

    def seconds(self, count: int) -> Driven:
        for _ in range(count):
            self.clock.now += 1
            self.runner.step(self.sample)
            for thread in threading.enumerate():
                if thread.name.startswith("policy quick"):
                    thread.join()
        return self

    def complete(self) -> None:
        """End the last command with success."""
        self.control.plan = self.control.submitted[-1][0]
        self.runner.ended(f"p{len(self.control.submitted)}")


def quick(decide: Decide) -> Given:
    return Given("quick", decide)


def grow(_: Metrics, plan: ExecutionPlan) -> ExecutionPlan:
    return resized(plan, len(plan.workers) + 1)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    caplog.set_level(logging.INFO)

    def lines(event: str) -> list[str]:
        return [one.getMessage() for one in caplog.records if one.getMessage().startswith(event)]

    return lines


def test_a_proposal_becomes_a_command_of_its_policy(logged: Callable[[str], list[str]]) -> None:
    driven = Driven(quick(grow)).seconds(18)
    ((plan, by, why),) = driven.control.submitted
    assert len(plan.workers) == 3
    assert (by, why) == ("policy quick", "call 1")
    assert "worker 2: starts" in logged("policy_change_started")[0]


def test_metrics_cover_the_interval_after_the_warm_up() -> None:
    policy = quick(lambda *_: None)
    Driven(policy).seconds(40)
    metrics = [metrics for metrics, _ in policy.calls]
    assert [(one.now, one.seconds) for one in metrics] == [(15, 10), (25, 10), (35, 10)]
    assert metrics[0].active == 0.5
    assert metrics[0].since_change == 15


def test_nothing_is_proposed_while_a_change_is_under_way() -> None:
    policy = quick(grow)
    driven = Driven(policy).seconds(100)
    assert len(driven.control.submitted) == len(policy.calls) == 1
    driven.complete()
    driven.seconds(14)
    assert len(policy.calls) == 1, "it warms up, then metrics are taken"
    driven.seconds(5)
    assert len(policy.calls) == 2
    assert policy.calls[1][0].since_change == 15


def test_nothing_is_proposed_while_somebody_else_changes_the_flow() -> None:
    policy = quick(grow)
    driven = Driven(policy)
    driven.control.changing = True
    driven.seconds(100)
    assert policy.calls == []
    driven.control.changing = False
    driven.seconds(20)
    assert len(policy.calls) == 1


def test_a_change_by_somebody_else_drops_a_running_round() -> None:
    policy = quick(grow)
    driven = Driven(policy).seconds(15)
    driven.control.plan = resized(TWO, 1)
    driven.seconds(1)
    assert driven.control.submitted == []
    assert len(driven.seconds(20).control.submitted) == 1


def test_a_policy_that_raises_is_suspended_after_three_times(
    logged: Callable[[str], list[str]],
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("count")

    bad, good = quick(fails), quick(lambda *_: None)
    driven = Driven(bad, good).seconds(100)
    assert len(bad.calls) == 3
    assert len(good.calls) == 9, "the others go on"
    assert driven.runner.suspended == ["quick"]
    assert "Traceback" in logged("policy_failed")[0]
    assert len(logged("policy_suspended")) == 1


def test_even_an_exit_ends_only_the_call() -> None:
    def leaves(*_: object) -> None:
        raise SystemExit(3)

    assert Driven(quick(leaves)).seconds(100).runner.suspended == ["quick"]


def test_failures_between_decisions_are_forgiven() -> None:
    outcomes = [True, True, False] * 9

    def often(*_: object) -> None:
        if outcomes.pop():
            raise ValueError("no")

    policy = quick(often)
    assert Driven(policy).seconds(200).runner.suspended == []
    assert len(policy.calls) > 12


def test_a_policy_that_hangs_holds_up_nobody(logged: Callable[[str], list[str]]) -> None:
    released = threading.Event()

    def hangs(*_: object) -> None:
        released.wait(60)

    bad, good = Given("slow", hangs), quick(lambda *_: None)
    try:
        driven = Driven(bad, good).seconds(60)
        assert "within 2 s" in logged("policy_failed")[0]
        assert driven.runner.suspended == ["slow"]
        assert len(bad.calls) == 1, "its thread still runs"
        assert len(good.calls) == 5, "the next policy is asked in each round"
    finally:
        released.set()


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        (lambda plan: 7, "it is a int and no ExecutionPlan"),
        (lambda plan: resized(plan, 99), "it has 99 workers, and 8 may run"),
        (lambda plan: ExecutionPlan({WorkerId(0): ANYWHERE}), "its operators are not those"),
        (lambda plan: plan.with_logic("alarm", limit=3), ""),
        (lambda plan: plan.with_bins(WorkerId(9), [0]), ""),
        (lambda plan: ExecutionPlan({}), ""),
        (lambda plan: ExecutionPlan(plan_of_texts), "its values are no plan"),
        (lambda plan: ExecutionPlan({WorkerId(0): resources}), "its values are no plan"),
        (
            lambda plan: ExecutionPlan(
                plan.workers, {"alert": LogicVersion("Beyond", "[]")}, plan.bins, plan.partitions
            ),
            "is no JSON object",
        ),
        (lambda plan: resized(plan, 3).renamed({WorkerId(2): WorkerId(-1)}), "it has a worker -1"),
    ],
)
def test_nonsense_is_refused_with_the_reason(
    nonsense: Callable[[ExecutionPlan], object], reason: str, logged: Callable[[str], list[str]]
) -> None:
    driven = Driven(quick(lambda _, plan: nonsense(plan))).seconds(100)
    assert driven.control.submitted == []
    told = logged("policy_refused") + logged("policy_failed")
    assert reason in told[0]
    assert len(logged("policy_refused")) <= 1, "the same reason is logged once"


def test_a_plan_without_a_difference_is_no_proposal(logged: Callable[[str], list[str]]) -> None:
    driven = Driven(quick(lambda _, plan: plan)).seconds(50)
    assert driven.control.submitted == []
    assert logged("policy_refused") == []


def test_many_workers_are_refused_though_the_slots_are_unknown() -> None:
    driven = Driven(quick(lambda _, plan: resized(plan, 17)))
    driven.control.slots = None
    assert driven.seconds(50).control.submitted == []


def flapping(counts: Sequence[int]) -> Decide:
    left = [*counts]
    return lambda _, plan: resized(plan, left.pop(0) if left else len(plan.workers))


def test_a_change_that_goes_back_soon_is_refused(logged: Callable[[str], list[str]]) -> None:
    driven = Driven(quick(flapping([4, 2, 3])))
    driven.seconds(17)
    driven.complete()
    driven.seconds(17)
    assert len(driven.control.submitted) == 1
    assert "as the number of workers was 2 until" in logged("policy_refused")[0]
    driven.seconds(10)
    assert len(driven.control.submitted) == 2, "three are another number"


def test_a_change_may_go_back_later() -> None:
    driven = Driven(quick(flapping([4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2])))
    driven.seconds(17)
    driven.complete()
    driven.seconds(130)
    assert [len(plan.workers) for plan, *_ in driven.control.submitted] == [4, 2]


def test_two_policies_do_not_undo_each_other(logged: Callable[[str], list[str]]) -> None:
    up = quick(lambda _, plan: plan.with_logic("alert", limit=5))
    down = quick(lambda _, plan: plan.with_logic("alert", limit=3))
    driven = Driven(up, down).seconds(18)
    driven.complete()
    driven.seconds(50)
    assert len(driven.control.submitted) == 1
    assert "the logic of operator alert was Beyond(limit=3)" in logged("policy_refused")[0]


def test_bins_that_go_back_are_refused(logged: Callable[[str], list[str]]) -> None:
    driven = Driven(
        quick(lambda _, plan: plan.with_bins(WorkerId(1) if plan == TWO else WorkerId(0), [0]))
    )
    driven.seconds(17)
    driven.complete()
    driven.seconds(30)
    assert len(driven.control.submitted) == 1
    assert "the owner of bin 0 was worker 0 until" in logged("policy_refused")[0]


def test_a_failed_change_may_be_tried_again_and_suspends_its_policy_at_last() -> None:
    driven = Driven(quick(grow))
    for n in range(1, 5):
        driven.seconds(20)
        driven.runner.ended(f"p{n}", "the worker did not start")
    assert len(driven.control.submitted) == 3
    assert driven.runner.suspended == ["quick"]


def test_a_refused_command_is_logged_once(logged: Callable[[str], list[str]]) -> None:
    driven = Driven(quick(grow))
    driven.control.refusal = "no slot is free"
    driven.seconds(100)
    assert logged("policy_refused") == ['policy_refused policy=quick reason="no slot is free"']
    assert driven.runner.suspended == []


def test_a_dry_run_logs_operations_and_changes_nothing(
    logged: Callable[[str], list[str]],
) -> None:
    options = PolicyOptions(dry_run=True, interval=10.0, warm_up=5.0)
    driven = Driven(quick(grow), options=options).seconds(100)
    assert driven.control.submitted == []
    (line,) = logged("policy_dry_run")
    assert "worker 2: starts" in line
    assert 'reason="call 1"' in line


def test_a_policy_cannot_change_the_plan_that_it_gets() -> None:
    def spoils(_: Metrics, plan: ExecutionPlan) -> None:
        plan.workers.clear()  # type: ignore[attr-defined]

    driven = Driven(quick(spoils), quick(grow)).seconds(20)
    assert {*driven.control.plan.workers} == {0, 1}
    assert len(driven.control.submitted) == 1


def test_a_later_execution_keeps_suspensions_and_what_may_not_go_back() -> None:
    driven = Driven(quick(flapping([4, 2])))
    driven.seconds(17)
    driven.complete()
    driven.attach()
    driven.seconds(30)
    assert len(driven.control.submitted) == 1


def test_a_change_under_way_in_a_recovery_may_not_go_back_afterwards(
    logged: Callable[[str], list[str]],
) -> None:
    """The plan was decided, and no event of the lost execution said so."""
    driven = Driven(quick(flapping([4, 2])))
    driven.seconds(17)
    driven.control.plan = driven.control.submitted[-1][0]
    driven.attach()
    driven.seconds(30)
    assert len(driven.control.submitted) == 1
    assert "as the number of workers was 2 until" in logged("policy_refused")[0]
