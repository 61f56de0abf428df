"""The packages that one package of Debian needs, kept up to date on the engine alone.

The benchmark computes the answer after the last change from all edges, and compares both.
"""

from __future__ import annotations

from collections import Counter

from benchmarks.incremental.debian import ROOT, PackageGraph, distances, installed_list
from benchmarks.incremental.engine import engine_of
from benchmarks.incremental.engine_runs import Series
from benchmarks.incremental.flows import fed
from benchmarks.incremental.found import Found, Tick, as_worker, no_tick
from benchmarks.incremental.graph import RowChanges
from benchmarks.incremental.members import Answer
from benchmarks.incremental.scale import Scale
from meander.schemas.errors import SetupError

TOGETHER_CHANGED = 100
"""The changes of a larger round."""


def packages(scale: Scale, tick: Tick) -> Found:
    """Measure single changes of the packages that the one with the most dependencies needs."""
    edges = installed_list()
    if not edges:
        raise SetupError("apt-cache", "it lists no packages", "run this on Debian, or leave it out")
    edges = edges[: scale(len(edges))]
    ((root, _),) = Counter(package for package, _ in edges).most_common(1)
    _run(PackageGraph(edges[:1000]), edges[0][0], Found(), 20, no_tick)
    return _run(PackageGraph(edges), root, Found(), scale.singles, tick)


def _run(graph: PackageGraph, root: str, found: Found, singles: int, tick: Tick) -> Found:
    answer = Answer()
    with engine_of(fed("packages"), answer) as engine:
        series = Series(engine, graph, tick)
        found.figures |= {
            "packages": len({package for package, _ in graph.listed}), "edges": graph.edges,
            "load_s": series.load(),
            "initial_s": engine.round(RowChanges([(ROOT, root, 1)])),
            "reached": len(answer.rows_there),
        }  # fmt: skip
        as_worker()
        found.note("single", series.singles(singles))
        rounds = [series.round(TOGETHER_CHANGED) for _ in range(singles // 10)]
        found.figures[f"{TOGETHER_CHANGED}_per_s"] = TOGETHER_CHANGED * len(rounds) / sum(rounds)
    assert answer.rows_there == {*distances(graph.present, root).items()}, "the answer differs"
    return found
