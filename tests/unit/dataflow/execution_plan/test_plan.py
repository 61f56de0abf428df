"""A plan with a bin that has no owner, or another owner than a worker, cannot be constructed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.state.keys.ids import WorkerId
from tests.support.random_plans import random_plan

ZERO, ONE, TWO = map(WorkerId, range(3))
PLAN = ExecutionPlan(
    {ZERO: ANYWHERE, ONE: Resources("a")},
    {"alert": LogicVersion.of("Above", {"limit": 3, "strict": True})},
    {"": (ZERO, ZERO, ONE, ONE), "alone": (ONE, ONE)},
    {("in", 0): ZERO, ("in", 1): ONE, ("other", 0): ONE},
)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: ExecutionPlan({}), "the plan: it has no worker; name at least one."),
        (lambda: PLAN.scaled([]), "the plan: it has no worker; name at least one."),
        (
            lambda: replace(PLAN, bins={"": (ZERO, TWO)}),
            (
                "bin 1: its owner, worker 2, is no worker of the plan; name one of 0, 1, or add"
                " that worker."
            ),
        ),
        (
            lambda: replace(PLAN, bins={"alone": (TWO,)}),
            (
                "bin 0 of operator 'alone': its owner, worker 2, is no worker of the plan; name one"
                " of 0, 1, or add that worker."
            ),
        ),
        (
            lambda: replace(PLAN, partitions={("in", 5): TWO}),
            (
                "partition 5 of source 'in': its reader, worker 2, is no worker of the plan; name"
                " one of 0, 1, or add that worker."
            ),
        ),
        (
            lambda: replace(PLAN, workers={ZERO: ANYWHERE}),
            (
                "bin 2: its owner, worker 1, is no worker of the plan; name one of 0, or add that"
                " worker."
            ),
        ),
        (
            lambda: PLAN.with_bins(TWO, [0]),
            (
                "bin 0: its owner, worker 2, is no worker of the plan; name one of 0, 1, or add"
                " that worker."
            ),
        ),
        (
            lambda: PLAN.with_bins(ONE, [4]),
            "bin 4: it does not exist; name bins from 0 to 3.",
        ),
        (
            lambda: PLAN.with_bins(ONE, [-1], "alone"),
            "bin -1 of operator 'alone': it does not exist; name bins from 0 to 1.",
        ),
        (
            lambda: PLAN.with_bins(ONE, [0], "none"),
            "group 'none': the plan has no such group of bins; name one of '', 'alone'.",
        ),
        (
            lambda: replace(PLAN, bins={}).bins_of(ZERO),
            "group '': the plan has no such group of bins; leave its bins out.",
        ),
        (
            lambda: PLAN.isolated(7, ZERO),
            "bin 7: it does not exist; name bins from 0 to 3.",
        ),
        (
            lambda: PLAN.scaled([ZERO]).isolated(1, ZERO),
            "bin 1: the plan has one worker only; add another worker.",
        ),
        (
            lambda: PLAN.with_partition("in", 1, TWO),
            (
                "partition 1 of source 'in': its reader, worker 2, is no worker of the plan; name"
                " one of 0, 1, or add that worker."
            ),
        ),
        (
            lambda: PLAN.with_partition("none", 1, ONE),
            (
                "partition 1 of source 'none': the flow does not read it; name a partition of the"
                " plan."
            ),
        ),
        (
            lambda: PLAN.with_logic("none", limit=3),
            "operator 'none': it has no logic that can change; name one of 'alert'.",
        ),
        (
            lambda: replace(PLAN, logic={}).with_logic("alert", limit=3),
            (
                "operator 'alert': it has no logic that can change; derive its logic from"
                " ChangeableLogic."
            ),
        ),
        (lambda: PLAN.placed(TWO, ANYWHERE), "worker 2: it is unknown; name one of 0, 1."),
        (
            lambda: PLAN.renamed({ZERO: ONE}),
            "worker 1: two workers of the plan would have this id; give each an id of its own.",
        ),
        (
            lambda: PLAN.scaled([ZERO, TWO, ZERO]),
            "worker 0: it is named twice; name each worker once.",
        ),
    ],
)
def test_a_wrong_plan_names_the_object_the_cause_and_the_remedy(
    wrong: Callable[[], object], error: str
) -> None:
    with pytest.raises(PlanError) as caught:
        wrong()
    assert str(caught.value) == error
    assert caught.value.subject
    assert caught.value.cause
    assert caught.value.remedy


def test_a_plan_does_not_change() -> None:
    before = repr(PLAN)
    PLAN.with_bins(ONE, [0]).with_logic("alert", "Below").scaled([TWO]).with_partition("in", 0, TWO)
    assert repr(PLAN) == before


def test_another_class_of_logic_has_none_of_the_parameters() -> None:
    assert PLAN.with_logic("alert", "Below").logic == {"alert": LogicVersion("Below")}
    kept = PLAN.with_logic("alert", "Above", limit=4).logic["alert"]
    assert kept.values == {"limit": 4, "strict": True}


def test_a_worker_owns_the_bins_that_it_was_given() -> None:
    assert PLAN.with_bins(ONE, [0]).bins_of(ONE) == [0, 2, 3]
    assert PLAN.with_bins(ZERO, [1], "alone").bins_of(ZERO, "alone") == [1]


def valid(plan: ExecutionPlan) -> bool:
    """Whether each bin and each partition belongs to a worker of the plan."""
    owners = {owner for its in plan.bins.values() for owner in its} | {*plan.partitions.values()}
    return owners <= plan.workers.keys()


@pytest.mark.parametrize("seed", range(60))
def test_scaling_moves_no_bin_of_a_worker_that_stays_but_to_one_that_joins(seed: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(rng)
    workers = [WorkerId(n) for n in rng.sample(range(12), rng.randint(1, 6))]
    after = plan.scaled(workers)
    assert valid(after)
    assert [*after.workers] == workers
    assert (after.logic, after.bins.keys()) == (plan.logic, plan.bins.keys())
    joining = {*workers} - plan.workers.keys()
    for group, owners in plan.bins.items():
        assert len(after.bins[group]) == len(owners)
        for before, owner in zip(owners, after.bins[group], strict=True):
            assert owner == before or before not in workers or owner in joining
    assert after.scaled(workers) == after, "a second time it changes nothing"


@pytest.mark.parametrize("seed", range(60))
def test_an_isolated_bin_is_the_only_one_of_its_worker(seed: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(rng)
    if not plan.bins or len(plan.workers) == 1:
        plan = PLAN
    group = rng.choice([*plan.bins])
    worker, bin = rng.choice([*plan.workers]), rng.randrange(len(plan.bins[group]))
    after = plan.isolated(bin, worker, group)
    assert valid(after)
    assert after.bins_of(worker, group) == [bin]


@pytest.mark.parametrize("seed", range(30))
def test_new_ids_of_workers_change_nothing_else(seed: int) -> None:
    plan = random_plan(random.Random(seed))
    there = {worker: WorkerId(worker + 100) for worker in plan.workers}
    after = plan.renamed(there)
    assert valid(after)
    assert after.workers.keys() == {*there.values()}
    assert after.renamed({new: old for old, new in there.items()}) == plan


def test_a_plan_stays_as_it_is_whatever_becomes_of_the_dicts_that_it_got() -> None:
    bins = {"": (WorkerId(0),)}
    plan = ExecutionPlan({WorkerId(0): ANYWHERE}, bins=bins)
    bins.clear()
    assert plan.bins == {"": (0,)}
    with pytest.raises(TypeError, match="a plan never changes"):
        plan.workers[WorkerId(1)] = ANYWHERE  # type: ignore[index]
