"""The drift trigger keeps a statistic near its target by a parameter, and comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.drift import DriftTrigger
from meander.dataflow.policies.metrics import Metrics, OperatorLoad, WorkerLoad
from meander.schemas.errors import SetupError
from meander.state.keys.ids import WorkerId


def plan_with(**parameters: object) -> ExecutionPlan:
    version = LogicVersion.of("Beyond", parameters)
    return ExecutionPlan({WorkerId(0): ANYWHERE}, {"alert": version})


def limit(plan: ExecutionPlan) -> float:
    found = plan.logic["alert"].values["limit"]
    assert isinstance(found, float | int)
    return found


def seen(received: float, sent: float, since_change: float | None = None) -> Metrics:
    alert = {"alert": OperatorLoad(received=received, sent=sent)}
    worker = WorkerLoad(operators=alert)
    return Metrics(10.0, 10.0, since_change, {WorkerId(0): worker})


def run(policy: DriftTrigger, rate: Callable[[float], float], decisions: int) -> list[float]:
    """Return the limits that follow where a share `rate(limit)` of the records is beyond it."""
    plan, found = plan_with(limit=4.0), [4.0]
    for _ in range(decisions):
        records = 500.0
        proposal = policy.decide(seen(records, records * rate(limit(plan))), plan)
        if proposal is not None:
            plan = proposal
            found.append(limit(plan))
    return found


def test_the_limit_rises_until_few_enough_records_are_beyond_it() -> None:
    limits = run(DriftTrigger("alert", "limit", target=0.02), lambda limit: 0.5 / limit**2, 100)
    assert all(a < b for a, b in pairwise(limits)), limits
    assert abs(0.5 / limits[-1] ** 2 - 0.02) <= 0.01


def test_it_comes_to_rest_where_no_limit_meets_the_target() -> None:
    limits = run(
        DriftTrigger("alert", "limit", target=0.02), lambda x: 0.2 if x < 5 else 0.001, 500
    )
    assert len(limits) < 12, limits


def test_it_leaves_its_rest_when_the_records_change() -> None:
    policy = DriftTrigger("alert", "limit", target=0.02)
    run(policy, lambda x: 0.2 if x < 5 else 0.001, 500)
    assert len(run(policy, lambda x: 0.9 if x < 50 else 0.02, 100)) > 5


def test_a_statistic_near_its_target_changes_nothing() -> None:
    assert run(DriftTrigger("alert", "limit", target=0.02), lambda _: 0.025, 100) == [4.0]


def test_few_records_are_added_up() -> None:
    policy, plan = DriftTrigger("alert", "limit", target=0.02, min_records=1000), plan_with(limit=4)
    for _ in range(9):
        assert policy.decide(seen(10, 1), plan) is None
    found = policy.decide(seen(10, 1), plan)
    assert found is not None
    assert limit(found) == 5


def test_records_of_another_version_do_not_count() -> None:
    policy, plan = DriftTrigger("alert", "limit", target=0.02, min_records=1000), plan_with(limit=4)
    assert policy.decide(seen(90, 9), plan) is None
    assert policy.decide(seen(90, 9, since_change=5.0), plan) is None
    assert policy.decide(seen(10, 1), plan) is None


def test_bounds_end_the_changes() -> None:
    policy = DriftTrigger("alert", "limit", target=0.02, most=6.0)
    assert run(policy, lambda _: 0.9, 50) == [4.0, 5.0, 6.0]


def test_a_factor_below_one_suits_a_statistic_that_rises_with_the_parameter() -> None:
    policy = DriftTrigger("alert", "limit", target=0.02, factor=0.8)
    limits = run(policy, lambda limit: 0.02 * limit, 50)
    assert limits[-1] < 1.6, limits


@pytest.mark.parametrize("received", [0.0, 1e-6])
def test_without_records_nothing_changes(received: float) -> None:
    policy = DriftTrigger("alert", "limit", target=0.02)
    assert policy.decide(seen(received, 0.0), plan_with(limit=4)) is None
    assert policy.decide(Metrics(10.0, 10.0), plan_with(limit=4)) is None


@pytest.mark.parametrize("parameters", [{}, {"limit": "high"}, {"limit": True}, {"limit": -1}])
def test_a_parameter_that_is_no_positive_number_is_an_error(parameters: dict[str, object]) -> None:
    policy = DriftTrigger("alert", "limit", target=0.02)
    with pytest.raises(SetupError, match="its logic has no positive 'limit'"):
        policy.decide(seen(500, 100), plan_with(**parameters))


@pytest.mark.parametrize(
    "options", [{"target": 0.0}, {"tolerance": 1.0}, {"factor": 1.0}, {"least": 2.0, "most": 1.0}]
)
def test_a_wrong_option_is_named(options: dict[str, float]) -> None:
    with pytest.raises(SetupError, match="policy DriftTrigger: its"):
        DriftTrigger(**{"operator": "alert", "parameter": "limit", "target": 0.1} | options)  # type: ignore[arg-type]
