"""The benchmark of changes of the plan: its load, its plans, and what follows from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from benchmarks import load
from benchmarks.control import text, wanted
from benchmarks.control.changes import CHANGES, HALVES, Applied, latencies
from benchmarks.control.day import CURVE, Day
from benchmarks.control.identity import BINS, Timelines, is_affected, records
from benchmarks.control.parts import FULL, plan
from benchmarks.control.placing import HOSTS, elsewhere
from benchmarks.control.scaling import AUTOSCALERS, FIXED, Counts, misses, same_workers
from benchmarks.control.ways import PARTIAL_PAUSE, RESTART, pause
from benchmarks.open_loop import Lost
from benchmarks.outcome import Case, Found, Outcome, Part
from meander.app.measurement.latencies import Timeline
from meander.app.measurement.open_loop import LoadRecord, Measured
from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.document import updated
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.logic.changeable import version_of
from meander.schemas.execution_plan import PlanDocument
from meander.state.keys.ids import WorkerId

MOVED = frozenset(range(64, 128))


def made(count: int) -> list[LoadRecord]:
    dues = (1_000.0 + n / 1000 for n in range(count))
    return list(islice(records(MOVED, dues, 2, 1000, False), count))


def identities(some: Sequence[LoadRecord]) -> list[int]:
    return [int(one.value[load.KEY :]) for one in some]


def test_records_go_to_both_operators_in_turns() -> None:
    found = [is_affected(identity) for identity in identities(made(6))]
    assert found == [True, False] * 3


def test_a_record_tells_whether_its_bin_moves() -> None:
    some = made(400)
    moving = [BINS.bin_of(one.key) in MOVED for one in some]
    for identity, moves in zip(identities(some), moving, strict=True):
        assert (identity & 2 == 2) == (moves and is_affected(identity))


def measured(arrived: dict[int, float], sent: Sequence[int]) -> Measured:
    due = np.array([one / 1e6 for one in sent])
    return Measured(due, np.array([*arrived], np.int64), np.array([*arrived.values()]))


def test_timelines_tell_operators_and_moving_bins_apart() -> None:
    sent = [4_000_000, 8_000_001, 12_000_002]
    found = Timelines.of(measured({4_000_000: 4.5, 12_000_002: 12.25, 8_000_001: 8.125}, sent))
    assert found.affected.took == pytest.approx([500, 250], abs=0.01)
    assert found.moved.took == pytest.approx([250], abs=0.01)
    assert found.unaffected.took == pytest.approx([125], abs=0.01)


def test_a_record_counts_by_its_first_result() -> None:
    twice = Measured(np.array([4.0]), np.array([4_000_000] * 2), np.array([4.5, 9.0]))
    assert Timelines.of(twice).affected.took == pytest.approx([500])


def test_a_record_without_a_result_fails_the_run() -> None:
    with pytest.raises(Lost, match="1 of 2 records have no result"):
        Timelines.of(measured({4_000_000: 4.5}, [4_000_000, 8_000_000]))


def started() -> ExecutionPlan:
    """The plan of the flow at its start."""
    from benchmarks.control.flow import Count

    both = WorkerId(0), WorkerId(1)
    halves = tuple(both[bin // 128] for bin in range(256))
    return ExecutionPlan(
        dict.fromkeys(both, ANYWHERE),
        {name: version_of(Count(), Count.__module__) for name in ("affected", "unaffected")},
        {"": halves, "affected": halves, "unaffected": halves},
        {("records", 0): both[0], ("records", 1): both[1]},
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.names[0])
def test_a_change_and_its_way_back_leave_the_other_operator_alone(change: object) -> None:
    assert change in CHANGES
    (change,) = (one for one in CHANGES if one is change)
    before = started()
    there = updated(before, PlanDocument.model_validate(change.there))
    assert there != before
    assert there.bins["unaffected"] == before.bins["unaffected"]
    assert there.logic["unaffected"] == before.logic["unaffected"]
    assert there.partitions == before.partitions
    owners = zip(before.bins["affected"], there.bins["affected"], strict=True)
    assert {bin for bin, (old, new) in enumerate(owners) if old != new} == change.moved
    assert len(there.workers) == len(before.workers) + change.room
    back = updated(there, PlanDocument.model_validate(change.back))
    assert (back.bins["affected"], back.logic) == (before.bins["affected"], before.logic)
    assert back.workers == before.workers


def test_load_balancing_moves_a_quarter_of_the_bins() -> None:
    assert len(CHANGES[0].moved) == BINS.count // 4


def test_the_worker_that_moves_is_that_of_the_affected_operator_alone() -> None:
    bins = {"affected": HALVES, "unaffected": {"2": "0-255"}}
    workers = {"2": {"host": HOSTS[0]}, "5": {"host": HOSTS[1]}}
    moved = elsewhere({"workers": workers, "bins_of": bins})
    assert moved == {"workers": {"2": {"host": HOSTS[0]}, "5": {"host": HOSTS[0]}}}


def test_latencies_before_meanwhile_and_after_are_of_all_changes() -> None:
    due = np.arange(90.0, 140.0, 0.5)
    busy = ((due >= 110) & (due < 112)) | ((due >= 120) & (due < 123))
    timeline = Timeline.of(due, np.where(busy, 40.0, 10.0))
    applied = [Applied("a", 110, 112), Applied("b", 120, 123), Applied("a", 130, 131)]
    its = latencies(timeline, applied, [applied[1]], steady=20)
    assert (its["steady_max_ms"], its["moving_p50_ms"], its["settled_max_ms"]) == (10, 40, 10)
    both = latencies(timeline, applied, [applied[0], applied[2]], steady=20)
    assert (both["moving_max_ms"], both["moving_p50_ms"]) == (40, 40)


def test_a_pause_is_the_longest_time_without_a_result() -> None:
    due = np.array([9.0, 9.5, 10.0, 10.5, 11.0, 20.0])
    took = np.array([500.0, 500.0, 2000.0, 1500.0, 1000.0, 9000.0])
    assert pause(Timeline(due, took), 9.8, 11.5) == pytest.approx(2000)


def test_a_day_sends_what_its_curve_says() -> None:
    day = Day(100.0, 400)
    expected = np.trapezoid([one for _, one in CURVE], [at for at, _ in CURVE])
    assert day.mean == pytest.approx(expected, rel=1e-3)
    assert day.due(day.at(7_000) + 1e-3) in (7_000, 7_001)
    hour = day.due(41) - day.due(40)
    assert hour == pytest.approx(400 * 2.4, abs=1)
    assert day.due(1_000) == day.due(100), "none after the day"


def test_a_day_goes_beyond_two_workers_and_not_beyond_three() -> None:
    most = max(one for _, one in CURVE)
    assert 2 < most < 3 == len(FIXED)


def test_workers_count_from_their_start_until_they_are_gone() -> None:
    counts = Counts(1, [(20.0, 1), (25.0, 1), (40.0, -1), (90.0, -1)])
    assert [counts.at(one) for one in (10, 20, 30, 50, 95)] == [1, 2, 3, 2, 1]
    assert counts.seconds(10, 60) == 10 + 2 * 5 + 3 * 15 + 2 * 20


def test_misses_are_the_share_of_late_records() -> None:
    found = misses(Timeline.of(np.arange(4.0), np.array([10.0, 499.0, 501.0, 9_000.0])))
    assert found["misses"] == 0.5


def test_a_fixed_plan_of_the_same_worker_seconds_lies_between_two() -> None:
    fixed = [(300.0, 0.0), (100.0, 0.8), (200.0, 0.2)]
    assert same_workers(fixed, 125.0) == pytest.approx(0.65)
    assert same_workers(fixed, 250.0) == pytest.approx(0.1)


def case(**figures: float) -> Case:
    made = Case()
    made.add(Found(figures=figures))
    return made


def part(cases: dict[str, Case]) -> Part:
    return Part(what="some keys", machine={"cores": 2}, versions={}, cases=cases)


def changed(**figures: float) -> Case:
    steady = {"steady_p99_ms": 10.0, "unaffected_steady_p99_ms": 10.0}
    return case(**{**steady, "moving_p99_ms": 11, "unaffected_moving_p99_ms": 10, **figures})


def test_figures_are_those_that_are_wanted() -> None:
    fixed = ((100.0, 0.8), (200.0, 0.2), (300.0, 0.0))
    day = {
        one.name: case(worker_seconds=seconds, misses=missed)
        for one, (seconds, missed) in zip(FIXED, fixed, strict=True)
    }
    for one, missed in zip(AUTOSCALERS, (0.05, 0.1), strict=True):
        day[one.name] = case(worker_seconds=150, misses=missed)
    outcome = Outcome(
        parts={
            "changes": part({
                "load balancing": changed(ms=700), "change of logic": changed(ms=100),
                "scaling out": changed(ms=2500, after_ms=600, moving_p99_ms=18),
            }),
            "placement": part({"placement": changed(ms=2700, unaffected_moving_p99_ms=12)}),
            "ways": part({PARTIAL_PAUSE: case(pause_ms=50), RESTART: case(pause_ms=6000)}),
            "day": part(day),
        }
    )  # fmt: skip
    told = {name: one.median for name, one in wanted.figures(outcome).items()}
    assert told == pytest.approx({
        "logic_ms": 100, "balance_quarter_ms": 700, "scale_out_ms": 2500,
        "scale_out_joined_ms": 600, "placement_ms": 2700, "p99_during_over_steady": 1.8,
        "unaffected_p99_ratio": 1.2, "restart_over_partial_pause": 120, "autoscaler_misses": 0.2,
    })  # fmt: skip
    lines = [*text.lines(outcome, [("picture.png", "A picture")])]
    assert "| logic_ms | 100 | 100 | 100 | 1 | <= 200 |" in lines
    assert any(line.startswith("| scaling out | 1 | 2,500 |") for line in lines)
    assert "![A picture](picture.png)" in lines


def test_what_was_not_measured_has_no_figure() -> None:
    assert wanted.figures(Outcome()) == {}


def test_each_case_is_measured_by_one_run() -> None:
    for planned in plan(FULL).values():
        cases = [case for cases in planned.runs for case in cases]
        assert len(cases) == len({*cases})
