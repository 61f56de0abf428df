"""The cases of cliques that are measured, after section 5 of the paper.

The paper's graph is a social network; these are random ones, as it cannot be had here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.flow_control.clique_outcome import CliqueFigures, Cliques
from benchmarks.flow_control.cliques import CliqueRun
from benchmarks.flow_control.graphs import RandomGraph
from benchmarks.flow_control.others import cliques, measure
from benchmarks.incremental import isolated
from benchmarks.incremental.found import Found, no_tick

BATCHES, IN_FLIGHT, WORKERS = (1_000, 10_000, 100_000), (1, 2, 4, 8), (1, 2, 4)
TINY_BATCH, TINY_IN_FLIGHT = 100, 4
"""A batch too small to be close to optimal, which is measured once per number of workers."""
GROWN_BATCH = 10_000
OTHERS = "igraph", "scipy", "spark"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The graphs of all cases."""

    swept: RandomGraph
    grown: tuple[RandomGraph, ...]
    four: RandomGraph
    reference: tuple[RandomGraph, ...]
    """The graphs for which figures of other systems are known."""


def _power_law(edges: int) -> RandomGraph:
    return RandomGraph(edges // 10, edges, 0.5)


FULL = Sizes(
    RandomGraph(20_000, 100_000, 0.5),
    tuple(map(_power_law, (100_000, 300_000, 1_000_000))),
    RandomGraph(20_000, 300_000, 0.5),
    (RandomGraph(10_000, 200_000), RandomGraph(10_000, 200_000, 0.5)),
)
SMALL = Sizes(
    RandomGraph(200, 1_000, 0.5),
    tuple(map(_power_law, (1_000, 3_000))),
    RandomGraph(200, 2_000, 0.5),
    (RandomGraph(200, 2_000),),
)

Step = Callable[[Cliques], None]
"""Measures one case, and adds it."""


class Cases:
    """The cases of some sizes, each with the median of some runs."""

    def __init__(self, sizes: Sizes, runs: int) -> None:
        self._sizes, self._runs = sizes, runs
        self._expected: dict[tuple[RandomGraph, int], int] = {}

    def steps(self) -> Iterator[tuple[str, Step]]:
        """Yield all cases with their names."""
        for workers in WORKERS:
            yield f"sweep, {workers} workers, no control", partial(self._bare, workers=workers)
            yield f"sweep, {workers} workers, tiny", partial(self._swept, workers=workers)
            for n in IN_FLIGHT:
                for batch in BATCHES:
                    name = f"sweep, {workers} workers, {n} x {batch:,}"
                    cell = partial(self._cell, workers=workers, in_flight=n, batch=batch)
                    yield name, cell
        for graph in self._sizes.grown:
            yield f"growth, {graph.edges:,} edges", partial(self._grown, graph=graph)
        yield "4-cliques", self._four
        for graph in self._sizes.reference:
            yield f"reference, {graph.kind}", partial(self._reference, graph=graph)
        for graph in (*self._sizes.reference, self._sizes.grown[-1]):
            for other in OTHERS:
                name = f"{other}, {graph.edges:,} edges, {graph.kind}"
                yield name, partial(self._other, graph=graph, name=other)

    def _bare(self, cliques: Cliques, workers: int) -> None:
        run = CliqueRun(self._sizes.swept, batch=None, workers=workers)
        cliques.bare[workers] = self._median(run)

    def _swept(self, cliques: Cliques, workers: int) -> None:
        run = CliqueRun(self._sizes.swept, 3, TINY_BATCH, TINY_IN_FLIGHT, workers)
        found = cliques.sweep.setdefault(workers, {}).setdefault(TINY_IN_FLIGHT, {})
        found[TINY_BATCH] = self._median(run, 1)

    def _cell(self, cliques: Cliques, workers: int, in_flight: int, batch: int) -> None:
        run = CliqueRun(self._sizes.swept, 3, batch, in_flight, workers)
        cliques.sweep.setdefault(workers, {}).setdefault(in_flight, {})[batch] = self._median(run)

    def _grown(self, cliques: Cliques, graph: RandomGraph) -> None:
        for way, batch in (("control", GROWN_BATCH), ("none", None)):
            found = self._median(CliqueRun(graph, batch=batch))
            cliques.growth.setdefault(way, {})[graph.edges] = found

    def _four(self, cliques: Cliques) -> None:
        for way, batch in (("control", GROWN_BATCH), ("none", None)):
            cliques.four[way] = self._median(CliqueRun(self._sizes.four, 4, batch))

    def _reference(self, cliques: Cliques, graph: RandomGraph) -> None:
        for workers in (1, 2):
            found = self._median(CliqueRun(graph, workers=workers))
            cliques.reference.setdefault(graph.kind, {})[workers] = found

    def _other(self, cliques: Cliques, graph: RandomGraph, name: str) -> None:
        found = [isolated.run(partial(measure, name, graph), no_tick) for _ in range(self._runs)]
        where = f"{graph.edges} {graph.kind}"
        cliques.others.setdefault(where, {})[name] = CliqueFigures.of(found)

    def _median(self, run: CliqueRun, runs: int | None = None) -> CliqueFigures:
        """Return the medians of some runs in new processes."""
        found = list[Found]()
        for _ in range(runs or self._runs):
            measured = partial(run.measure, self._cliques(run.graph, run.size))
            # Several workers have a process each already.
            alone = run.workers == 1
            found.append(isolated.run(measured, no_tick) if alone else measured(no_tick))
        return CliqueFigures.of(found)

    def _cliques(self, graph: RandomGraph, size: int) -> int:
        if (graph, size) not in self._expected:
            self._expected[graph, size] = cliques(graph, size)
        return self._expected[graph, size]
