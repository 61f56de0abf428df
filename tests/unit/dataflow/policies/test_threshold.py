"""The threshold autoscaler follows the active share of workers, and does not go back and forth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meander.dataflow.policies.metrics import Metrics, PartitionLoad
from meander.dataflow.policies.threshold import ThresholdAutoscaler
from meander.schemas.errors import SetupError
from tests.support.policies.linear_service import LinearService, plan_of


def load(service: LinearService, workers: float) -> float:
    """Return the records per second that keep some workers fully active."""
    return workers / service.seconds_per_record


def test_workers_join_until_the_share_is_below_the_upper_threshold() -> None:
    service = LinearService(plan=plan_of(1))
    chosen = service.run(ThresholdAutoscaler(cool_down=20), load(service, 2.6), 100)
    assert chosen == [2, 3, 4]


def test_workers_leave_one_by_one_after_patience() -> None:
    service = LinearService(plan=plan_of(4))
    policy = ThresholdAutoscaler(cool_down=20, patience=5)
    assert service.run(policy, load(service, 0.2), 4) == []
    assert service.run(policy, load(service, 0.2), 100) == [3, 2, 1]


def test_no_worker_leaves_whose_work_the_others_could_not_take() -> None:
    service = LinearService(plan=plan_of(2))
    policy = ThresholdAutoscaler(high=0.5, low=0.4, cool_down=0)
    assert service.run(policy, load(service, 0.7), 100) == [], "0.35 each, 0.7 for one"


def test_a_short_spike_changes_nothing() -> None:
    service = LinearService(plan=plan_of(1))
    policy = ThresholdAutoscaler(readiness=3)
    for _ in range(10):
        service.run(policy, load(service, 0.95), 2)
        service.run(policy, load(service, 0.5), 2)
    assert service.history == []


def test_a_lag_adds_workers_and_keeps_them() -> None:
    service = LinearService(plan=plan_of(1))
    metrics = service.step(load(service, 0.5))
    behind = {place: replace(one, lag=10**6) for place, one in metrics.partitions.items()}
    policy = ThresholdAutoscaler(readiness=1)
    grown = policy.decide(replace(metrics, partitions=behind), service.plan)
    assert grown is not None
    assert len(grown.workers) == 2
    assert "s of arrivals behind" in policy.why


def test_a_lag_of_an_idle_flow_counts_not() -> None:
    """A transaction leaves a marker behind its last record."""
    service = LinearService(plan=plan_of(2))
    metrics = service.step(0.0)
    marker = {place: replace(one, lag=1) for place, one in metrics.partitions.items()}
    policy = ThresholdAutoscaler(readiness=1, patience=1)
    found = policy.decide(replace(metrics, partitions=marker), service.plan)
    assert found is not None
    assert len(found.workers) == 1


def test_without_news_of_the_broker_no_worker_leaves() -> None:
    service = LinearService(plan=plan_of(2))
    unknown = dict.fromkeys(service.plan.partitions, PartitionLoad())
    policy = ThresholdAutoscaler(patience=1)
    for _ in range(10):
        metrics = replace(service.step(0.0), partitions=unknown)
        assert policy.decide(metrics, service.plan) is None


def test_a_change_resets_what_was_counted() -> None:
    service = LinearService(plan=plan_of(1))
    policy = ThresholdAutoscaler(readiness=2)
    metrics = service.step(load(service, 2))
    assert policy.decide(metrics, service.plan) is None
    assert policy.decide(replace(metrics, since_change=1.0), service.plan) is None
    assert policy.decide(metrics, service.plan) is None
    assert policy.decide(metrics, service.plan) is not None


def test_without_metrics_nothing_changes() -> None:
    assert ThresholdAutoscaler(patience=1).decide(Metrics(0.0, 0.0), plan_of(3)) is None


@pytest.mark.parametrize("options", [{"high": 0.2, "low": 0.3}, {"step": 0}, {"patience": 0}])
def test_a_wrong_option_is_named(options: dict[str, float]) -> None:
    with pytest.raises(SetupError, match="policy ThresholdAutoscaler: its"):
        ThresholdAutoscaler(**options)  # type: ignore[arg-type]
