"""The packages that one package of Debian needs, kept up to date on the engine alone.

The benchmark computes the answer after the last change from all edges, and compares both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from benchmarks.incremental.debian import ROOT, PackageGraph, Row, installed_list
from benchmarks.incremental.engine import Engine, engine_of
from benchmarks.incremental.engine_runs import LOADED, TOGETHER
from benchmarks.incremental.found import Found, Tick, as_worker, no_tick
from benchmarks.incremental.graph import RowChanges
from benchmarks.incremental.members import Results
from benchmarks.incremental.scale import Scale
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import SetupError

TOGETHER_CHANGED = 100
"""The changes of a larger round."""


class Answer(Results):
    """A writer that sums up the changes of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = Counter[tuple[str, int]]()

    def write(self, batch: Batch) -> int:
        """Add the changes of a batch."""
        changes: Sequence[Any] = batch.values
        for row in changes:
            self.sums[row["key"], row["value"]] += row["diff"]
        return super().write(batch)

    @property
    def distances(self) -> dict[str, int]:
        """Return the answer."""
        return dict(row for row, count in self.sums.items() if count)


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
    with engine_of("packages", answer) as engine:
        found.figures |= {
            "packages": len({package for package, _ in graph.edges}), "edges": len(graph.edges),
            "load_s": _load(engine, graph.initial(), tick),
            "initial_s": engine.round(RowChanges([(ROOT, root, 1)])),
            "reached": len(answer.distances),
        }  # fmt: skip
        as_worker()
        found.note("single", [_changed(engine, graph, 1, tick) for _ in range(singles)])
        rounds = [_changed(engine, graph, TOGETHER_CHANGED, tick) for _ in range(singles // 10)]
        found.figures[f"{TOGETHER_CHANGED}_per_s"] = TOGETHER_CHANGED * len(rounds) / sum(rounds)
    assert answer.distances == distances(graph.present, root), "the answer differs"
    return found


def _load(engine: Engine, rows: list[Row], tick: Tick) -> float:
    seconds = 0.0
    for first in range(0, len(rows), LOADED):
        some = RowChanges(rows[first : first + LOADED])
        seconds += engine.round(some, TOGETHER)
        tick(len(some))
    return seconds


def _changed(engine: Engine, graph: PackageGraph, count: int, tick: Tick) -> float:
    tick(count)
    return engine.round(RowChanges([graph.change() for _ in range(count)]))


def distances(edges: Sequence[tuple[str, str]], root: str) -> dict[str, int]:
    """Compute the distance of each package that a root needs from all edges.

    >>> distances([("a", "b"), ("b", "c"), ("a", "c")], "a")
    {'a': 0, 'b': 1, 'c': 1}
    """
    needs = dict[str, list[str]]()
    for package, other in edges:
        needs.setdefault(package, []).append(other)
    found, left = {root: 0}, deque([root])
    while left:
        package = left.popleft()
        for other in needs.get(package, ()):
            if other not in found:
                found[other] = found[package] + 1
                left.append(other)
    return found
