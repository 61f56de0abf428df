"""What the benchmarks of migrations make of what they measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import asked, curves, outcome, tables
from benchmarks.counting import BEHIND, Service
from benchmarks.migration import measure
from benchmarks.moving import ALL_AT_ONCE, DEFAULT, Case
from benchmarks.open_loop import Lost
from benchmarks.outcome import Curve, Found, Outcome, Part
from benchmarks.parts import Wanted, plan
from benchmarks.report import Spread
from benchmarks.running import Unavailable
from benchmarks.states import States
from meander.app.measurement.open_loop import Wave


class Clock:
    """Time passes by sleeping alone, each time `late` seconds more than asked for."""

    def __init__(self, late: float = 0.0) -> None:
        self.now, self.late = 100.0, late

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.late


@pytest.mark.parametrize("late", [0, 0.005])
def test_a_worker_serves_at_its_rate_however_late_its_sleeps_end(late: float) -> None:
    clock = Clock(late)
    service = Service(500, lambda: clock.now, clock.sleep)
    for _ in range(1000):
        service.take()
    assert clock.now - 100 == pytest.approx(2 - BEHIND, abs=0.003 + late)


def test_little_is_saved_up_while_a_worker_is_idle() -> None:
    clock = Clock()
    service = Service(500, lambda: clock.now, clock.sleep)
    service.take()
    clock.sleep(60)
    began = clock.now
    for _ in range(100):
        service.take()
    assert clock.now - began == pytest.approx(0.2 - BEHIND, abs=0.003)


@pytest.mark.parametrize(("old", "new"), [(1, 2), (4, 8)])
def test_each_old_worker_gives_half_of_its_bins_to_one_new(old: int, new: int) -> None:
    moves = Case(0, Wave.fixed(1), old, new, bits=8).moves()
    assert [worker for worker, _ in moves] == [*range(old, new)]
    for giver, (_, bins) in enumerate(moves):
        assert {bin * old >> 8 for bin in bins} == {giver}
        assert len(bins) == 256 // new


def found(most: float, p50: float = 2.0, **figures: float) -> Found:
    points: list[float | None] = [p50, None] * 100 + [most]
    curve = Curve(begins=-10, step=0.1, ended=3, p50=points, p99=points, most=points)
    return Found(figures={"moving_max_ms": most, "steady_p50_ms": p50, **figures}, curve=curve)


NAMED = {"all_at_once": "all-at-once"}


def part(**cases: list[Found]) -> Part:
    made = Part(what="some keys", machine={"cores": 2}, versions={})
    for name, runs in cases.items():
        case = made.cases[NAMED.get(name, name.replace("_", " "))] = outcome.Case()
        for run in runs:
            case.add(run)
    return made


def test_a_case_has_medians_and_the_curve_of_the_run_in_the_middle() -> None:
    case = part(all_at_once=[found(30), found(10), found(20)]).cases["all-at-once"]
    assert case.get("moving_max_ms") == 20
    assert case.curve is not None
    assert case.curve.most[-1] == 20
    assert case.get("never measured") is None


def test_what_was_found_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "PATH", tmp_path / "results" / "migration.json")
    assert Outcome.load() == Outcome()
    written = Outcome(parts={"2a": part(all_at_once=[found(30, back_s=1), found(40)])})
    written.parts["2a"].cases["all-at-once"].fail("it lost a record")
    written.save({"a": Spread(1.5, 1, 2, [1, 2])})
    read = Outcome.load()
    assert read.model_dump() == written.model_dump()
    text = outcome.PATH.read_text()
    assert "2.0, null, 40.0]" in text
    assert '"runs": [1.0, null, null]' in text, "each run has its place"
    assert '"runs": [1, 2]' in text
    assert read.failures == ["2a: all-at-once: run 3: it lost a record"]


def test_what_a_flow_rejects_is_not_available_and_not_asked_for_again() -> None:
    asked_for: list[States] = []

    def run(states: States) -> Found:
        asked_for.append(states)
        raise Unavailable("it knows none such")

    made = part()
    for _ in range(2):
        told = measure(States("broker"), made, "precopy batched", run)
        assert told == "not available: it knows none such"
    assert asked_for == [States("broker")]


def test_figures_are_those_that_were_asked_for() -> None:
    strategies = part(
        precopy_batched=[found(12, steady_max_ms=10, seconds=4)],
        all_at_once=[found(1002, steady_max_ms=9, seconds=5, bytes_per_s=30, raw_bytes_per_s=40)],
    )
    sizes = part()
    for name, most in (("1", 10), ("4", 12), ("16", 18)):
        sizes.cases[f"{name} keys, 2^8 bins"] = part(a=[found(most)]).cases["a"]
    sizes.cases["16 keys, 2^10 bins"] = part(a=[found(99)]).cases["a"]
    memory = part(precopy_batched=[found(1, memory_before=100, memory_peak=105)])
    told = asked.figures(Outcome(parts={"2a": strategies, "growth": sizes, "memory": memory}))
    assert {name: figure.median for name, figure in told.items()} == {
        "precopy_max_over_steady_max": 1.2,
        "all_at_once_bytes_over_raw": 0.75,
        "all_at_once_over_precopy_max": 100,
        "batched_over_all_at_once_duration": 0.8,
        "precopy_growth_4x": 1.5,
        "peak_memory_ratio": 1.05,
    }


def told(name: str, **cases: list[Found]) -> Spread:
    """One figure of the part that compares strategies."""
    return asked.figures(Outcome(parts={"2a": part(**cases)}))[name]


STEADY = "precopy_max_over_steady_max"


def test_a_ratio_is_taken_run_by_run() -> None:
    runs = [found(168, steady_max_ms=700), found(320, steady_max_ms=80)]
    assert told(STEADY, precopy_batched=runs).runs == [0.24, 4]
    assert told(STEADY, precopy_batched=runs).median == 2.12


def test_a_ratio_of_two_cases_is_that_of_runs_that_took_turns() -> None:
    default = [found(1, seconds=4), found(1, seconds=40), found(1, seconds=4)]
    all_at_once = [found(1, seconds=2), found(1, seconds=20)]
    took = told(
        "batched_over_all_at_once_duration", precopy_batched=default, all_at_once=all_at_once
    )
    assert took.runs == [2, 2]


def test_a_steady_phase_counts_unless_it_was_disturbed() -> None:
    calm = found(30, steady_max_ms=10, disturbed=0)
    rough = found(30, steady_max_ms=300, disturbed=1)
    assert told(STEADY, precopy_batched=[rough, calm]).runs == [3]
    assert told(STEADY, precopy_batched=[rough, rough]).runs == [0.1, 0.1]


def test_a_run_that_has_failed_keeps_its_place_and_has_no_figure() -> None:
    made = part()
    lost, whole = Lost("3 records have no result"), found(12, steady_max_ms=6, seconds=4)
    runs: list[Lost | Found] = [lost, whole]

    def run(_: States) -> Found:
        one = runs.pop(0)
        if isinstance(one, Lost):
            raise one
        return one

    said = [measure(States("broker"), made, "precopy batched", run) for _ in range(2)]
    assert said[0] == "FAILED: 3 records have no result"
    case = made.cases["precopy batched"]
    assert case.by_run("seconds") == [None, 4]
    assert (case.count, case.failed) == (1, ["run 1: 3 records have no result"])
    found_so_far = Outcome(parts={"2a": made})
    assert asked.figures(found_so_far)[STEADY].runs == [2]
    shown = "\n".join(tables.lines(found_so_far))
    assert "**FAILED**: 2a: precopy batched: run 1: 3 records have no result." in shown
    assert "| precopy batched | 1 (1 FAILED) |" in shown


def test_what_was_not_measured_has_no_figure() -> None:
    assert (
        asked.figures(Outcome(parts={"2a": part(all_at_once=[found(5)]), "growth": part()})) == {}
    )


def test_tables_take_the_place_of_those_before(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{tables.BEGIN}\n{tables.END}\nafter\n")
    made = part(all_at_once=[found(1234), found(1234, disturbed=1)])
    made.cases["precopy batched"] = outcome.Case(not_available="it knows none such")
    for _ in range(2):
        tables.fill(document, Outcome(parts={"2a": made}))
        text = document.read_text()
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert text.count("| all-at-once | 2 (1 disturbed) | 2 | 1,234 |") == 1
        assert text.count("| precopy batched | not available |") == 1


def test_a_picture_has_one_line_per_strategy_and_the_command_ten_seconds_in() -> None:
    made = part(precopy_batched=[found(12)], all_at_once=[found(1002)])
    made.cases["fluid"] = outcome.Case(not_available="it knows none such")
    figure = curves.timelines(made, "title")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [label.partition(":")[0] for label in labels] == ["precopy batched", "all-at-once"]
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert [np.asarray(line.get_xdata()).tolist() for line in dashed] == [[10, 10]]


def test_each_figure_shows_its_spread_and_its_runs() -> None:
    made = part(precopy_batched=[found(20, steady_max_ms=10), found(40, steady_max_ms=10)])
    shown = [*tables.lines(Outcome(parts={"2a": made}))]
    assert "| precopy_max_over_steady_max | 3 | 2 | 4 | 2 | <= 2 |" in shown
    assert "| rescale_1m_max_ms | not yet | - | - | 0 | <= 40 |" in shown


def test_eight_workers_have_the_most_keys_unless_all_parts_get_others() -> None:
    assert plan(Wanted(3_000, 400))["2b"].what.startswith("40,000,000 keys")
    assert plan(Wanted(3_000, 400, keys=7))["2b"].what.startswith("7 keys")


def test_only_what_is_chosen_is_compared() -> None:
    parts = plan(Wanted(3_000, 400, strategies=[DEFAULT]))
    assert list(parts["2b"].runs) == ["precopy batched"]


def test_strategies_are_those_of_the_paper_each_prepared_or_not() -> None:
    assert str(DEFAULT) == "precopy batched"
    assert str(ALL_AT_ONCE) == "all-at-once"
