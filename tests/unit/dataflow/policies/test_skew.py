"""The skew balancer moves few bins, isolates a hot one, and comes to rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.difference import AssignBins, difference
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import BinLoad, Metrics
from meander.dataflow.policies.skew import SkewBalancer
from meander.state.keys.ids import WorkerId
from tests.support.policies.linear_service import plan_of


def metrics(*records: float, since_change: float | None = None) -> Metrics:
    return Metrics(10.0, 10.0, since_change, bins={"": tuple(map(BinLoad, records))})


def shares(plan: ExecutionPlan, records: Sequence[float]) -> list[float]:
    found = metrics(*records).records_of(plan)
    return [found[worker] for worker in sorted(found)]


def moved(before: ExecutionPlan, after: ExecutionPlan | None) -> int:
    assert after is not None
    operations = difference(before, after)
    assert all(isinstance(one, AssignBins) for one in operations)
    return sum(len(one.bins) for one in operations if isinstance(one, AssignBins))


def test_few_moves_even_out_skew() -> None:
    plan = plan_of(2, bins=8)
    records = [300.0, 50.0, 200.0, 50.0, 100.0, 50.0, 100.0, 50.0]
    after = SkewBalancer().decide(metrics(*records), plan)
    assert moved(plan, after) <= 2
    assert after is not None
    assert shares(after, records) == [450.0, 450.0]


def test_even_workers_keep_their_bins() -> None:
    assert SkewBalancer().decide(metrics(*[100.0] * 8), plan_of(4, bins=8)) is None


def test_a_hot_bin_gets_a_worker_for_itself() -> None:
    plan = plan_of(4, bins=16)
    records = [1000.0] + [50.0] * 15
    policy = SkewBalancer()
    after = policy.decide(metrics(*records), plan)
    assert after is not None
    assert after.bins_of(WorkerId(0)) == [0], "its owner keeps it, and gives the others away"
    assert max(shares(after, records)[1:]) <= 300
    assert "bin 0 gets a worker for itself" in policy.why
    assert policy.decide(metrics(*records), after) is None, "nothing better follows"


def test_two_hot_bins_of_one_worker_are_parted() -> None:
    plan = plan_of(4, bins=16)
    records = [600.0, 10.0, 10.0, 10.0, 600.0] + [10.0] * 11
    after = SkewBalancer().decide(metrics(*records), plan)
    assert after is not None
    owners = after.bins[""]
    assert owners[0] != owners[4]
    for hot in (0, 4):
        assert after.bins_of(owners[hot]) == [hot]


def test_a_hot_bin_that_cools_shares_its_worker_again() -> None:
    policy, plan = SkewBalancer(), plan_of(4, bins=16)
    isolated = policy.decide(metrics(1000.0, *[50.0] * 15), plan)
    assert isolated is not None
    even = policy.decide(metrics(*[50.0] * 16), isolated)
    assert even is not None
    assert max(shares(even, [50.0] * 16)) == 200


def test_without_isolation_only_other_bins_move() -> None:
    plan = plan_of(2, bins=4)
    after = SkewBalancer(isolate=False).decide(metrics(900.0, 50.0, 100.0, 50.0), plan)
    assert after is not None
    assert after.bins[""] == (0, 1, 1, 1)


def test_one_hot_bin_alone_stays_as_no_move_helps() -> None:
    plan = plan_of(2, bins=4).isolated(0, WorkerId(0))
    assert SkewBalancer().decide(metrics(900.0, 50.0, 50.0, 50.0), plan) is None


def test_groups_of_bins_count_together() -> None:
    workers = WorkerId(0), WorkerId(1)
    plan = ExecutionPlan(
        dict.fromkeys(workers, ANYWHERE),
        bins={"": (workers[0], workers[1]), "join": (workers[0], workers[1])},
    )
    bins = {"": (BinLoad(400.0), BinLoad(100.0)), "join": (BinLoad(300.0), BinLoad(0))}
    after = SkewBalancer().decide(Metrics(10.0, 10.0, bins=bins), plan)
    assert after is not None
    assert after.bins == {"": (0, 1), "join": (1, 1)}


@pytest.mark.parametrize(
    "seen",
    [Metrics(10.0, 10.0), metrics(*[0.0] * 8), metrics(50.0, *[0.0] * 7)],
    ids=["no data", "no records", "few records"],
)
def test_without_enough_records_nothing_moves(seen: Metrics) -> None:
    assert SkewBalancer().decide(seen, plan_of(4, bins=8)) is None


def test_records_too_few_for_a_share_move_nothing() -> None:
    seen = metrics(5e-324, *[0.0] * 7)
    assert SkewBalancer(min_records=0.0).decide(seen, plan_of(4, bins=8)) is None


def test_one_worker_and_a_change_just_now_move_nothing() -> None:
    hot = [1000.0, *[0.0] * 7]
    assert SkewBalancer().decide(metrics(*hot), plan_of(1, bins=8)) is None
    skewed = [300.0, 50.0] * 4
    policy, plan = SkewBalancer(cool_down=30), plan_of(2, bins=8)
    assert policy.decide(metrics(*skewed, since_change=29.0), plan) is None
    assert policy.decide(metrics(*skewed, since_change=30.0), plan) is not None
