"""A plan with the operations of a difference applied is the other plan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce

import pytest

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.execution_plan.difference import (
    AddWorker,
    AssignBins,
    AssignPartition,
    MoveWorker,
    Operation,
    RemoveWorker,
    SetLogic,
    difference,
)
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.state.keys.ids import WorkerId
from tests.support.random_plans import another, random_plan

ZERO, ONE, TWO = map(WorkerId, range(3))
PLAN = ExecutionPlan(
    {ZERO: ANYWHERE, ONE: ANYWHERE},
    {"alert": LogicVersion("Above")},
    {"": (ZERO, ZERO, ONE, ONE), "alone": (ONE, ONE)},
    {("in", 0): ZERO, ("in", 1): ONE},
)


def applied(plan: ExecutionPlan, operation: Operation) -> ExecutionPlan:
    """A plan after one operation; each plan between is one too."""
    match operation:
        case SetLogic(operator, before, version):
            assert plan.logic[operator] == before
            return replace(plan, logic={**plan.logic, operator: version})
        case AssignBins(group, source, target, bins):
            assert {*bins} <= {*plan.bins_of(source, group)}
            return plan.with_bins(target, bins, group)
        case AssignPartition(source, partition, reader, target):
            assert plan.partitions[source, partition] == reader
            return plan.with_partition(source, partition, target)
        case AddWorker(worker, resources):
            assert worker not in plan.workers
            return replace(plan, workers={**plan.workers, worker: resources})
        case MoveWorker(worker, resources):
            return plan.placed(worker, resources)
        case RemoveWorker(worker):
            left = {one: its for one, its in plan.workers.items() if one != worker}
            return replace(plan, workers=left)


@pytest.mark.parametrize("seed", range(150))
def test_the_operations_lead_from_one_plan_to_the_other(seed: int) -> None:
    rng = random.Random(seed)
    before = random_plan(rng)
    after = another(rng, before)
    assert reduce(applied, difference(before, after), before) == after


@pytest.mark.parametrize("seed", range(30))
def test_equal_plans_have_no_operations(seed: int) -> None:
    plan = random_plan(random.Random(seed))
    assert difference(plan, plan) == []
    assert difference(plan, plan.scaled([*plan.workers])) == []


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (PLAN.with_logic("alert", limit=3), ["operator alert: Above() -> Above(limit=3)"]),
        (PLAN.with_bins(ONE, [0]), ["bin 0: worker 0 -> worker 1"]),
        (PLAN.with_bins(ONE, [0, 1]), ["bins 0-1: worker 0 -> worker 1"]),
        (PLAN.with_bins(ZERO, [1], "alone"), ["bin 1 of operator alone: worker 1 -> worker 0"]),
        (
            PLAN.with_partition("in", 1, ZERO),
            ["partition 1 of source in: worker 1 -> worker 0"],
        ),
        (PLAN.placed(ONE, Resources("a", "3")), ["worker 1: moves on host a in executor 3"]),
        (
            replace(PLAN, workers={**PLAN.workers, TWO: Resources(executor="3")}),
            ["worker 2: starts in executor 3"],
        ),
        (
            PLAN.placed(ONE, Resources(cores=2, memory=3 << 29)),
            ["worker 1: moves with 2 cores and 1536m of memory"],
        ),
        (
            replace(PLAN, workers={**PLAN.workers, TWO: Resources("a", memory=1 << 30)}),
            ["worker 2: starts on host a with 1g of memory"],
        ),
        (
            PLAN.scaled([ONE]),
            [
                "bins 0-1: worker 0 -> worker 1",
                "partition 0 of source in: worker 0 -> worker 1",
                "worker 0: ends",
            ],
        ),
    ],
)
def test_an_operation_is_written_in_words(after: ExecutionPlan, lines: list[str]) -> None:
    assert [*map(str, difference(PLAN, after))] == lines


def test_workers_start_first_and_end_last() -> None:
    after = PLAN.scaled([ZERO, TWO]).with_logic("alert", "Below")
    kinds = [type(one) for one in difference(PLAN, after)]
    assert (kinds[0], kinds[-1]) == (AddWorker, RemoveWorker)


@pytest.mark.parametrize(
    ("actual", "wanted", "moves"),
    [
        (Resources("a", "3"), Resources("a"), False),
        (Resources("a", "3"), Resources(executor="3"), False),
        (Resources("a", "3"), ANYWHERE, False),
        (Resources("a", "3"), Resources("a", "4"), True),
        (Resources("a", "3"), Resources("b"), True),
    ],
)
def test_a_worker_moves_where_it_does_not_run_already(
    actual: Resources, wanted: Resources, moves: bool
) -> None:
    before = replace(PLAN, places={ONE: actual})
    after = before.placed(ONE, wanted)
    assert difference(before, after) == ([MoveWorker(ONE, wanted)] if moves else [])


GIB = 1 << 30
LARGE = Resources("a", "3", cores=2, memory=GIB)


@pytest.mark.parametrize(
    ("wanted", "moves"),
    [
        (Resources("a", cores=2, memory=GIB), False),
        (Resources(cores=2, memory=GIB), False),
        (Resources(cores=1, memory=GIB), True),
        (Resources(cores=3, memory=GIB), True),
        (Resources(cores=2, memory=2 * GIB), True),
        (Resources(cores=2), True),
        (ANYWHERE, True),
    ],
)
def test_a_worker_moves_for_other_cores_or_another_memory(wanted: Resources, moves: bool) -> None:
    before = replace(PLAN.placed(ONE, LARGE), places={ONE: LARGE})
    after = before.placed(ONE, wanted)
    assert difference(before, after) == ([MoveWorker(ONE, wanted)] if moves else [])


def test_a_move_to_the_defaults_says_so() -> None:
    (move,) = difference(PLAN.placed(ONE, LARGE), PLAN)
    assert str(move) == "worker 1: moves to one core and the memory of the flow's settings"


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (replace(PLAN, logic={}), "its operators are not those of the flow; name these: alert."),
        (
            replace(PLAN, bins={"": PLAN.bins[""]}),
            "its groups of bins are not those of the flow; name these: '', 'alone'.",
        ),
        (
            replace(PLAN, bins={**PLAN.bins, "alone": (ONE,)}),
            "its bins are not those of the flow; name these: 0-3, 0-1 of operator 'alone'.",
        ),
        (
            replace(PLAN, partitions={("in", 0): ZERO}),
            (
                "its partitions are not those of the flow; name these: 0 of source 'in', 1 of"
                " source 'in'."
            ),
        ),
    ],
)
def test_plans_of_other_flows_have_no_difference(other: ExecutionPlan, error: str) -> None:
    with pytest.raises(PlanError) as caught:
        difference(PLAN, other)
    assert str(caught.value) == f"the plan: {error}"
