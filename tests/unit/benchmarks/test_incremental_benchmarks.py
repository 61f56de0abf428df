"""The benchmarks of collections: their graph, their engines, and what is made of measurements."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.incremental import (
    debian,
    debian_runs,
    engine_runs,
    pair,
    plots,
    recompute,
    text,
    trace_runs,
    wanted,
)
from benchmarks.incremental.engine import Engine, engine_of
from benchmarks.incremental.flows import fed
from benchmarks.incremental.found import Distribution, Found, Tick, no_tick
from benchmarks.incremental.graph import ROOT, ROOTS, Graph
from benchmarks.incremental.members import Answer
from benchmarks.incremental.outcome import Outcome
from benchmarks.incremental.scale import Scale

TINY = Scale(share=1e-4, singles=10, seconds=100.0)
SPARSE = Graph(40, 100)
DUMP = """Package: vim
Depends: vim-common (= 2:9.0), libacl1 (>= 2.2.23), libc6 (>= 2.36)
Description: an editor
 Depends: nothing

Package: vim-common
Depends: xxd | busybox, libc6
Pre-Depends: dpkg (>= 1.15.6~)
""".splitlines()


def answer_of(name: str, changes: int) -> set[tuple[object, object]]:
    """The answer of the engine after so many changes, in rounds of several sizes."""
    answer = Answer()
    with engine_of(fed(name), answer) as engine:
        engine.round(SPARSE.initial(0, SPARSE.edges), 10)
        if name == "bfs":
            engine.round(SPARSE.roots, ROOTS)
        taken = 0
        while taken < changes:
            size = min(1 + taken % 7, changes - taken)
            engine.round(SPARSE.changes(taken, size))
            taken += size
    assert not {*answer.rows_by_key.values()} - {0, 1}
    return answer.rows_there


def test_a_graph_keeps_its_size_and_its_edges_follow_from_all_changes() -> None:
    edges = Counter[tuple[int, int]]()
    for some in (SPARSE.initial(0, 100), SPARSE.changes(0, 60), SPARSE.changes(60, 1)):
        for source, target, diff in some.rows():
            edges[source, target] += diff
    assert +edges == Counter(zip(*(one.tolist() for one in SPARSE.after(61)), strict=True))
    assert edges.total() == 101
    assert {*SPARSE.roots.keys.tolist()} == {ROOT}


def test_the_engine_keeps_the_packages_that_one_needs() -> None:
    """The graph of Debian's packages where it is at hand, else a small one of its form."""
    some = debian.reached_from(debian.installed_list(), "vim") or [*debian.dependencies(DUMP)]
    found = debian_runs._run(debian.PackageGraph(some), "vim", Found(), 40, no_tick)
    assert found.figures["reached"] > 2


def test_both_ways_to_compute_an_answer_anew_agree() -> None:
    edges = SPARSE.after(7)
    found = [
        way(SPARSE, *edges).tolist() for way in (recompute.distances, recompute.igraph_distances)
    ]
    assert found[0] == found[1]
    assert max(found[0]) > 1
    counts = [way(SPARSE, *edges).tolist() for way in (recompute.degrees, recompute.igraph_degrees)]
    assert counts[0] == counts[1]


def test_the_engine_keeps_degrees_as_they_are_computed_anew() -> None:
    counts = recompute.degrees(SPARSE, *SPARSE.after(200))
    wanted_rows = {(degree, n) for degree, n in enumerate(counts.tolist()) if n and degree}
    assert answer_of("degrees", 200) == wanted_rows


def test_the_engine_keeps_distances_as_they_are_computed_anew() -> None:
    found = recompute.distances(SPARSE, *SPARSE.after(60))
    wanted_rows = {(node, far) for node, far in enumerate(found.tolist()) if far >= 0}
    assert answer_of("bfs", 60) == wanted_rows


def test_traces_are_measured_with_each_factor() -> None:
    outcome = Outcome()
    outcome.add("trace load", trace_runs.load(TINY, no_tick))
    for name, factor in trace_runs.FACTORS.items():
        outcome.add(f"trace factor {name}", trace_runs.updates(TINY, no_tick, factor))
    known = wanted.figures(outcome)
    assert {id for id in wanted.WANTED if "trace" in wanted.WANTED[id].case} == {*known}
    assert known["bytes_per_static_edge"].met


def test_finding_keys_is_a_part_of_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_runs, "TURNS", {1: 20, 10: 5})
    shares = trace_runs.seek(TINY, no_tick).figures
    names = [name for name in shares if name.startswith("seek_share")]
    assert len(names) == 4
    assert all(0 < shares[name] < 1 for name in names)


@pytest.mark.parametrize("compacts", [True, False])
def test_single_changes_are_measured_after_more_and_more_changes(compacts: bool) -> None:
    found = engine_runs.latencies(TINY, no_tick, "degrees", "1m", compacts)
    assert found.curves["after_1000"].count == TINY.singles
    assert ("p99_drift" in found.figures) == compacts


def _few(engine: Engine, tick: Tick) -> Found:
    series = engine_runs.Series(engine, SPARSE, tick)
    series.load()
    return Found(figures={"seconds": series.round(20) + series.round(1)})


def test_two_workers_take_their_shares_of_each_round() -> None:
    done = list[int]()
    for found in pair.run(partial(fed, "degrees"), partial(_few), done.append):
        assert found.figures["seconds"] > 0


def test_a_distribution_keeps_its_longest_times() -> None:
    curve = Distribution.of(np.arange(1, 100_001) / 1_000_000)
    assert curve.ms[:3] == [100.0, 100.0, 100.0], "four digits"
    assert curve.at(0.99) == pytest.approx(99, rel=0.03)
    assert curve.most == 100
    assert len(curve.ms) < 400


def test_tables_and_pictures_show_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "DOCS", tmp_path)
    outcome, found = Outcome(), Found(figures={"p50_drift": 1.5, "1000_per_s": 9_000.0})
    found.note("after_1000", [0.001, 0.002])
    outcome.add("degrees", found)
    outcome.add("degrees rates", found)
    drawn = plots.draw(outcome)
    assert {tmp_path / plots.picture(name) for name in drawn} == {*tmp_path.iterdir()}
    shown = [*text.lines(outcome, drawn)]
    assert "| degrees_p50_drift | 1.5 | <= 1.2 | missed |" in shown
    assert "| degrees_p99_drift | not yet | - | |" in shown
    assert "| degrees | 1,000 | 1 | 2 | 2 | - | - | - |" in shown
