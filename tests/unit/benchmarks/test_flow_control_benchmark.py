"""The benchmark of flow control counts what is in a part, and tells what follows from it."""

from __future__ import annotations

import pytest

from benchmarks.flow_control import text
from benchmarks.flow_control.flows import WAYS, Control, Way
from benchmarks.flow_control.outcome import Outcome, Run
from benchmarks.flow_control.runs import measure
from benchmarks.incremental.found import no_tick


@pytest.mark.parametrize("way", WAYS)
def test_the_records_inside_are_those_of_the_batches_or_all_of_a_surge(way: Way) -> None:
    found = measure("surge", Control(way, batch=10, in_flight=2), [50], no_tick)
    assert found.figures["inside"] == (20 if way == "control" else 50)


@pytest.mark.parametrize(("way", "most"), [("none", 20 * 4), ("control", 2 * 2 * 4)])
def test_flow_control_bounds_what_goes_round(way: Way, most: int) -> None:
    found = measure("loop", Control(way, batch=2, in_flight=2), [2] * 20, no_tick)
    assert found.figures["inside"] == most


def test_figures_compare_flow_control_with_the_best_of_the_other_ways() -> None:
    def ways(least: float, most: float) -> dict[int, Run]:
        runs = ((10, least), (1000, most))
        return {size: Run(seconds=1, inside=inside, peak_bytes=0) for size, inside in runs}

    others: dict[Way, dict[int, Run]] = {
        "none": ways(10, 1000), "source": ways(10, 800), "credit": ways(10, 900),
    }  # fmt: skip
    outcome = Outcome(runs=1, ways={"surge": {**others, "control": ways(10, 20)}})
    outcome.bare = Run(seconds=2, inside=0, peak_bytes=0)
    outcome.sweep = {
        in_flight: {1: outcome.bare, 1000: Run(seconds=seconds, inside=0, peak_bytes=0)}
        for in_flight, seconds in ((1, 9.0), (2, 2.2), (4, 2.0))
    }
    assert dict(outcome.figures()) == pytest.approx(
        {
            "surge_inside_growth": 2, "surge_inside_cut": 40, "surge_overhead_avg": 0.05,
            "surge_overhead_max": 0.1, "surge_runtime_spread": 1.1,
        }
    )  # fmt: skip
    lines = [*text.lines(outcome, [("picture.png", "A picture")])]
    assert "| surge | 1,000 | flow control | 1 | 20 | 0 |" in lines
    assert "| 2 in flight | 2 | 2.2 |" in lines
    assert "![A picture](picture.png)" in lines
