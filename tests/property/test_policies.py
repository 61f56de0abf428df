"""Policies propose valid plans alone, never flap under a steady load, and DS2 finds the number of
workers in three steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from meander.app.driver.policies.proposal_check import checked
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.drift import DriftTrigger
from meander.dataflow.policies.ds2 import DS2Autoscaler
from meander.dataflow.policies.metrics import (
    BinLoad,
    Metrics,
    OperatorLoad,
    PartitionLoad,
    WorkerLoad,
)
from meander.dataflow.policies.paced import PacedMigration
from meander.dataflow.policies.policy import Policy
from meander.dataflow.policies.skew import SkewBalancer
from meander.dataflow.policies.threshold import ThresholdAutoscaler
from meander.state.keys.ids import WorkerId
from tests.support.policies.linear_service import UPSTREAMS, LinearService, plan_of

PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)
"""Shrinking would take minutes, as each example is hours of a simulated service."""
MANY = settings(max_examples=100, deadline=None)
SOME = settings(max_examples=60, deadline=None, phases=PHASES)
RATES = st.floats(0, 1e9)
SHARES = st.floats(0, 4)


def policies() -> list[Policy]:
    return [
        ThresholdAutoscaler(readiness=1, patience=1, cool_down=0),
        DS2Autoscaler(scale_down_after=0, cool_down=0),
        SkewBalancer(min_records=0, cool_down=0),
        PacedMigration(DS2Autoscaler(scale_down_after=0, cool_down=0), first=2),
        PacedMigration(SkewBalancer(min_records=0, cool_down=0), first=1),
        DriftTrigger("count", "limit", target=0.1, min_records=1, cool_down=0),
    ]


@st.composite
def plans(draw: st.DrawFn) -> ExecutionPlan:
    workers = draw(st.lists(st.integers(0, 20).map(WorkerId), min_size=1, max_size=6, unique=True))
    owner = st.sampled_from(workers)
    return ExecutionPlan(
        dict.fromkeys(workers, ANYWHERE),
        {"count": LogicVersion.of("Beyond", {"limit": draw(st.floats(0.1, 100))})},
        {
            group: tuple(draw(st.lists(owner, min_size=16, max_size=16)))
            for group in draw(st.sampled_from([[""], ["", "join"], []]))
        },
        {("lines", n): draw(owner) for n in range(draw(st.integers(0, 3)))},
    )


def operators() -> st.SearchStrategy[Mapping[str, OperatorLoad]]:
    return st.fixed_dictionaries(
        {},
        optional={
            name: st.builds(
                OperatorLoad, received=RATES, sent=RATES, busy=SHARES,
                is_source=st.just(name == "lines"),
            )
            for name in UPSTREAMS
        },
    )  # fmt: skip


@st.composite
def metrics_of(draw: st.DrawFn, plan: ExecutionPlan) -> Metrics:
    """Return any metrics, also such as no flow has."""
    worker = st.builds(
        WorkerLoad, cpu=SHARES, active=SHARES, backpressure=SHARES, read=RATES,
        operators=operators(),
    )  # fmt: skip
    known = [one for one in plan.workers if draw(st.booleans())]
    partition = st.builds(
        PartitionLoad, st.none() | RATES, st.none() | st.integers(0, 10**12)
    )  # fmt: skip
    return Metrics(
        draw(st.floats(0, 100)), draw(st.floats(0, 1e6)), draw(st.none() | SHARES),
        {one: draw(worker) for one in known},
        {place: draw(partition) for place in plan.partitions},
        {
            group: tuple(
                draw(st.lists(st.builds(BinLoad, RATES), max_size=16, min_size=0 if draw(
                    st.booleans()) else 16))
            )
            for group in plan.bins
        },
        UPSTREAMS, draw(st.none() | st.floats(0, 100)), draw(st.none() | st.floats(0, 100)),
    )  # fmt: skip


@MANY
@given(st.data())
def test_whatever_is_measured_a_proposal_is_valid(data: st.DataObject) -> None:
    some = policies()
    plan = data.draw(plans())
    for _ in range(3):
        metrics = data.draw(metrics_of(plan))
        for policy in some:
            proposal = policy.decide(metrics, plan)
            if proposal is not None:
                found, operations = checked(plan, proposal, slots=None)
                assert operations, f"{policy.name} changes nothing"
                assert policy.why
                plan = found


@SOME
@given(
    st.integers(1, 16), st.floats(0.01, 14), st.floats(1, 3), st.floats(0, 1e6),
    st.sampled_from([0.0, 60.0, 300.0]),
)  # fmt: skip
def test_a_steady_load_makes_no_autoscaler_flap(
    workers: int, load: float, overhead: float, backlog: float, patience: float
) -> None:
    for policy in (
        DS2Autoscaler(max_workers=16, scale_down_after=patience, cool_down=20),
        ThresholdAutoscaler(max_workers=16, cool_down=20, patience=1 + int(patience / 10)),
    ):
        service = LinearService(plan=plan_of(workers), overhead=overhead, backlog=backlog)
        service.run(policy, load / service.seconds_per_record, 600)
        # A backlog takes more workers for a while: up, and then down again.
        steps = [workers, *service.history]
        grows = [after > before for before, after in pairwise(steps)]
        turns = sum(one != other for one, other in pairwise(grows))
        assert turns <= (2 if backlog else 1), (policy.name, steps)


@SOME
@given(st.integers(1, 32), st.floats(0.05, 20), st.floats(1, 3))
def test_ds2_finds_the_number_of_workers_in_three_steps(
    workers: int, load: float, overhead: float
) -> None:
    service = LinearService(plan=plan_of(workers), overhead=overhead)
    policy = DS2Autoscaler(max_workers=64, scale_down_after=60)
    chosen = service.run(policy, load / service.seconds_per_record, 200)
    assert len(chosen) <= 3, chosen
    active = load / len(service.plan.workers)
    assert active <= 0.85 + 1e-6, "no worker has too much"
    fewer = len(service.plan.workers) - 1
    assert not (chosen and fewer) or load / fewer > 0.7 - 1e-6, "fewer would have too much"


@MANY
@given(
    st.lists(st.floats(0, 1000), min_size=32, max_size=32), st.integers(2, 8),
    st.sampled_from([1, 4, 16]), st.booleans(),
)  # fmt: skip
def test_a_steady_skew_is_balanced_in_few_rounds_and_then_rests(
    records: list[float], workers: int, max_moves: int, isolate: bool
) -> None:
    policy = SkewBalancer(max_moves=max_moves, isolate=isolate, cool_down=0)
    plan = plan_of(workers, bins=32)
    metrics = Metrics(10.0, 10.0, bins={"": tuple(map(BinLoad, records))})
    busiest = [max(metrics.records_of(plan).values())]
    for _ in range(64):
        proposal = policy.decide(metrics, plan)
        if proposal is None:
            break
        plan = proposal
        busiest.append(max(metrics.records_of(plan).values()))
    else:
        raise AssertionError("it never rests")
    assert all(after < before for before, after in pairwise(busiest))
