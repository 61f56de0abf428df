"""The DS2 autoscaler finds the number of workers from true rates, and stays there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meander.dataflow.policies.ds2 import DS2Autoscaler, active_workers, target_rates
from meander.dataflow.policies.metrics import Metrics, OperatorLoad, PartitionLoad
from meander.schemas.errors import SetupError
from tests.support.policies.linear_service import LinearService, plan_of


def capacity(service: LinearService) -> float:
    return 1 / service.seconds_per_record


@pytest.mark.parametrize("workers", [1, 2, 4, 20])
def test_a_steady_load_leads_to_its_number_in_three_steps_at_most(workers: int) -> None:
    service = LinearService(plan=plan_of(workers))
    policy = DS2Autoscaler(max_workers=32, scale_down_after=60)
    load = 5.5 * capacity(service)
    chosen = service.run(policy, load, 100)
    # A flow that is behind first gets workers to catch up.
    assert len(chosen) <= 3, chosen
    assert len(service.plan.workers) == 8, "5.5 active workers at 70 %"
    assert service.backlog == 0


def test_a_load_within_the_band_changes_nothing() -> None:
    service = LinearService(plan=plan_of(4))
    for share in (0.55, 0.7, 0.84):
        assert (
            service.run(DS2Autoscaler(scale_down_after=30), share * 4 * capacity(service), 50) == []
        )


def test_a_spike_adds_workers_at_once_and_takes_them_back_late() -> None:
    service = LinearService(plan=plan_of(2))
    policy = DS2Autoscaler(max_workers=16, scale_down_after=300)
    service.run(policy, 1.2 * capacity(service), 5)
    grown = service.run(policy, 6 * capacity(service), 30)
    assert grown, "the spike needs more than two workers"
    assert len(service.plan.workers) >= 9
    seconds = service.now
    while not service.run(policy, 1.2 * capacity(service), 1):
        pass
    assert service.now - seconds >= 300
    assert service.run(policy, 1.2 * capacity(service), 100) == []


def test_an_oscillating_load_keeps_the_workers_of_its_peak() -> None:
    service = LinearService(plan=plan_of(2))
    policy = DS2Autoscaler(max_workers=16, scale_down_after=300)
    for _ in range(20):
        service.run(policy, 4 * capacity(service), 6)
        service.run(policy, 1 * capacity(service), 6)
    assert len(service.history) <= 2, service.history


def test_catching_up_counts_as_lag_and_not_as_a_rate() -> None:
    service = LinearService(plan=plan_of(4), backlog=200_000)
    policy = DS2Autoscaler(max_workers=32, scale_down_after=100, catch_up=60)
    service.run(policy, 0.5 * capacity(service), 200)
    assert service.backlog == 0
    assert len(service.plan.workers) == 1, "once it has caught up, one worker does"


def test_no_worker_leaves_while_the_flow_is_behind() -> None:
    service = LinearService(plan=plan_of(4), backlog=1e7)
    policy = DS2Autoscaler(max_workers=4, scale_down_after=0, cool_down=0)
    assert service.run(policy, 0.5 * capacity(service), 100) == []
    assert service.backlog > 0


def test_a_lag_that_no_worker_causes_adds_no_workers() -> None:
    """A sink that takes too little leaves workers inactive; more of them would not help."""
    service = LinearService(plan=plan_of(2))
    metrics = service.step(0.5 * capacity(service))
    behind = {place: replace(one, lag=10**6) for place, one in metrics.partitions.items()}
    policy = DS2Autoscaler()
    assert policy.decide(replace(metrics, partitions=behind), service.plan) is None


@pytest.mark.parametrize("unknown", [PartitionLoad(None, 3), PartitionLoad(30.0, None)])
def test_unknown_arrivals_change_nothing(unknown: PartitionLoad) -> None:
    service = LinearService(plan=plan_of(8))
    policy = DS2Autoscaler(scale_down_after=0)
    metrics = service.step(0.0)
    some = dict.fromkeys(metrics.partitions, unknown)
    assert policy.decide(replace(metrics, partitions=some), service.plan) is None


def test_no_metrics_and_no_records_change_nothing() -> None:
    policy = DS2Autoscaler(scale_down_after=0)
    assert policy.decide(Metrics(0.0, 0.0), plan_of(4)) is None
    assert LinearService(plan=plan_of(4)).run(policy, 0.0, 10) == []


def test_a_full_worker_keeps_all_though_the_mean_is_low() -> None:
    service = LinearService(plan=plan_of(4))
    metrics = service.step(0.4 * capacity(service))
    first = min(metrics.workers)
    workers = {**metrics.workers, first: replace(metrics.workers[first], active=1.0)}
    policy = DS2Autoscaler(scale_down_after=0)
    assert policy.decide(replace(metrics, workers=workers), service.plan) is None
    assert policy.decide(metrics, service.plan) is not None, "no worker is full"


def test_bounds_hold_at_once() -> None:
    service = LinearService(plan=plan_of(6))
    policy = DS2Autoscaler(min_workers=2, max_workers=4)
    assert service.run(policy, 50 * capacity(service), 30) == [4]
    assert service.run(DS2Autoscaler(min_workers=5), 0.1, 1) == [5]


def test_after_a_change_it_waits() -> None:
    service = LinearService(plan=plan_of(1))
    policy = DS2Autoscaler(cool_down=30, max_workers=64)
    metrics = service.step(9 * capacity(service))
    assert policy.decide(replace(metrics, since_change=29.0), service.plan) is None
    assert policy.decide(replace(metrics, since_change=30.0), service.plan) is not None


def test_a_split_and_a_merge_count_by_the_records_that_pass() -> None:
    operators = {
        "in": OperatorLoad(sent=100.0, busy=0.1, is_source=True),
        "split": OperatorLoad(received=100.0, sent=100.0, busy=0.1),
        "left": OperatorLoad(received=80.0, sent=80.0, busy=0.1),
        "right": OperatorLoad(received=20.0, sent=40.0, busy=0.1),
        "both": OperatorLoad(received=120.0, sent=0.0, busy=0.1),
    }
    upstreams = {
        "in": (), "split": ("in",), "left": ("split",), "right": ("split",),
        "both": ("left", "right"),
    }  # fmt: skip
    found = target_rates(upstreams, operators, {"in": 300.0})
    assert found == {"in": 300.0, "split": 300.0, "left": 240.0, "right": 60.0, "both": 360.0}


def test_each_source_has_its_own_target() -> None:
    service = LinearService(plan=plan_of(1))
    metrics = service.step(0.5 * capacity(service))
    assert active_workers(metrics, {"lines": capacity(service)}) == pytest.approx(1.0)
    assert active_workers(metrics, {"lines": 2 * capacity(service)}) == pytest.approx(2.0)
    assert active_workers(service.step(0.0), {"lines": 5.0}) is None


@pytest.mark.parametrize(
    "options",
    [{"min_workers": 0}, {"max_workers": 0}, {"utilization": 0.9, "high": 0.8}, {"catch_up": 0}],
)
def test_a_wrong_option_is_named(options: dict[str, float]) -> None:
    with pytest.raises(SetupError, match="policy DS2Autoscaler: its"):
        DS2Autoscaler(**options)  # type: ignore[arg-type]
