"""Paced migrations reach the plan of another policy in steps that follow the latency."""

from __future__ import annotations

from collections.abc import Callable

from meander.dataflow.control.resources import Resources
from meander.dataflow.execution_plan.difference import AssignBins, difference
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import BinLoad, Metrics
from meander.dataflow.policies.paced import PacedMigration
from meander.dataflow.policies.policy import Policy, resized
from meander.state.keys.ids import WorkerId
from tests.support.policies.linear_service import plan_of


class Once(Policy):
    """Propose one plan, once."""

    def __init__(self, change: Callable[[ExecutionPlan], ExecutionPlan]) -> None:
        self.change, self.calls = change, 0

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        self.calls += 1
        return self.change(plan) if self.calls == 1 else None


def at(p99: float | None) -> Metrics:
    return Metrics(10.0, 10.0, p99=p99)


def steps(before: ExecutionPlan, after: ExecutionPlan) -> int:
    return sum(len(one.bins) for one in difference(before, after) if isinstance(one, AssignBins))


def run(policy: Policy, plan: ExecutionPlan, *p99: float | None) -> tuple[list[int], ExecutionPlan]:
    """Apply each proposal; return how many bins each moves, and the last plan."""
    sizes = []
    for one in p99:
        found = policy.decide(at(one), plan)
        if found is None:
            break
        sizes.append(steps(plan, found))
        plan = found
    return sizes, plan


def test_steps_double_while_records_are_fast_and_halve_where_they_are_slow() -> None:
    plan = plan_of(4, bins=64)
    inner = Once(lambda plan: plan.with_bins(WorkerId(0), range(64)))
    policy = PacedMigration(inner, latency=0.3, first=4, most=16)
    sizes, end = run(policy, plan, 0.01, 0.01, 0.01, None, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    assert sizes == [4, 8, 16, 16, 4], "48 bins in all"
    assert end.bins[""] == (WorkerId(0),) * 64
    assert inner.calls == 2, "it is asked again once its plan is reached"


def test_a_slow_flow_still_moves_one_bin_at_a_time() -> None:
    inner = Once(lambda plan: plan.with_bins(WorkerId(0), range(8)))
    sizes, _ = run(PacedMigration(inner, first=2), plan_of(2, bins=8), *[float("inf")] * 9)
    assert sizes == [2, 1, 1]


def test_workers_start_with_the_first_step_and_end_with_the_last() -> None:
    plan = plan_of(2, bins=8)
    sizes, grown = run(PacedMigration(Once(lambda p: resized(p, 4)), first=1), plan, *[0.01] * 9)
    assert sizes == [1, 2, 1]
    assert len(grown.workers) == 4
    policy = PacedMigration(Once(lambda p: resized(p, 2)), first=2)
    first = policy.decide(at(0.01), grown)
    assert first is not None
    assert len(first.workers) == 4
    last = policy.decide(at(0.01), first)
    assert last is not None
    assert len(last.workers) == 2


def test_new_workers_may_get_other_ids_and_resources() -> None:
    policy = PacedMigration(Once(lambda p: resized(p, 3)), first=1)
    first = policy.decide(at(0.01), plan_of(2, bins=12))
    assert first is not None
    actual = first.renamed({WorkerId(2): WorkerId(7)}).placed(WorkerId(7), Resources("vm", "3"))
    second = policy.decide(at(0.01), actual)
    assert second is not None
    assert steps(actual, second) == 2
    assert {*second.workers} == {0, 1, 7}


def test_a_change_by_somebody_else_ends_the_plan() -> None:
    inner = Once(lambda plan: plan.with_bins(WorkerId(0), range(16)))
    policy, plan = PacedMigration(inner, first=1), plan_of(2, bins=16)
    assert policy.decide(at(0.01), plan) is not None
    assert policy.decide(at(0.01), plan.with_bins(WorkerId(1), [0])) is None
    assert inner.calls == 2


def test_a_refused_step_ends_the_plan() -> None:
    inner = Once(lambda plan: plan.with_bins(WorkerId(0), range(16)))
    policy, plan = PacedMigration(inner, first=1), plan_of(2, bins=16)
    assert policy.decide(at(0.01), plan) is not None
    assert policy.decide(at(0.01), plan) is None, "it stands where it stood"


def test_the_hottest_bins_move_first() -> None:
    inner = Once(lambda plan: plan.with_bins(WorkerId(1), [0, 2, 4, 6]))
    plan = plan_of(2, bins=8)
    metrics = Metrics(10.0, 10.0, bins={"": tuple(map(BinLoad, (1, 9, 7, 9, 2, 9, 3, 9)))})
    found = PacedMigration(inner, first=1).decide(metrics, plan)
    assert found is not None
    assert found.bins[""][2] == WorkerId(1)
    assert steps(plan, found) == 1
