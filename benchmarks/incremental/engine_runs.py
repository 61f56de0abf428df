"""The engine alone: latencies of single changes, changes per second, and the first answer.

Between the points at which single changes are measured, changes come 1,000 a round, each at a time
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter

import numpy as np

from benchmarks.incremental import pair
from benchmarks.incremental.engine import Engine, engine_of
from benchmarks.incremental.flows import fed
from benchmarks.incremental.found import Found, Tick, as_worker, no_tick, replaced, rss, timed
from benchmarks.incremental.graph import ROOTS, ChangingGraph, Graph
from benchmarks.incremental.scale import Scale
from meander.state.collections import kernels, trace
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import CHUNK_ROWS, Layer
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain

SIZES = {"1k": (1_000, 2_000), "1m": (1_000_000, 10_000_000)}
"""Nodes and edges."""
POINTS = {"degrees": tuple(10**n for n in range(3, 8)), "bfs": tuple(10**n for n in range(3, 7))}
"""The changes before which single ones are measured."""
BETWEEN = 1_000
LOADED, TOGETHER = 100_000, 1_000
"""The changes of a round while the graph is loaded, and those of one time."""
ROUNDS = {1: 500, 10: 300, 100: 200, 1_000: 100, 10_000: 30}
"""How many rounds of each size are measured. All workers take as many."""
WARM = 30
"""The rounds of a small graph that compile all loops."""


class Series:
    """A graph in an engine, and how many changes it has taken."""

    def __init__(self, engine: Engine, graph: ChangingGraph, tick: Tick) -> None:
        self._engine, self._graph, self._tick = engine, graph, tick
        self.changes = 0

    def load(self) -> float:
        """Load the graph; return the seconds."""
        seconds = 0.0
        for first in range(0, self._graph.edges, LOADED):
            some = self._graph.initial(first, LOADED)
            seconds += self._engine.round(some, TOGETHER)
            self._tick(len(some))
        return seconds

    def round(self, count: int) -> float:
        """Take so many changes; return the seconds."""
        some = self._graph.changes(self.changes, count)
        self.changes += count
        self._tick(count)
        return self._engine.round(some)

    def singles(self, count: int) -> list[float]:
        """Take changes one by one; return the seconds of each."""
        return [self.round(1) for _ in range(count)]

    def latencies(self, found: Found, points: Sequence[int], count: int, seconds: float) -> None:
        """Measure single changes after so many changes, at the points that come in time."""
        until = perf_counter() + seconds
        for point in points:
            while self.changes < point and perf_counter() < until:
                self.round(min(BETWEEN, point - self.changes))
            if self.changes < point:
                break
            found.note(f"after_{point}", self.singles(count))
            found.figures[f"after_{point}_rss"] = rss()

    def rates(self, found: Found, scale: Scale) -> None:
        """Measure changes per second in rounds of each size."""
        for size, count in ROUNDS.items():
            self.round(size)
            rounds = [self.round(size) for _ in range(scale(count))]
            found.figures[f"{size}_per_s"] = size * len(rounds) / sum(rounds)
            found.note(f"round_of_{size}", rounds)


def warm(name: str) -> None:
    """Compile all loops of a flow."""
    large_layer(Graph(1_000, CHUNK_ROWS + 1))
    with engine_of(fed(name)) as engine:
        series, _ = _start(engine, name, Graph(100, 300), no_tick)
        for _ in range(WARM):
            series.round(1)
            series.round(20)


def large_layer(graph: Graph) -> Layer:
    """Return all edges of a graph as one layer."""
    edges, zero = graph.initial(0, graph.edges), Antichain.of(0)
    updates = edges.updates(np.zeros(len(edges), np.int64))
    return layer_of(updates, LayerDescription(zero, Antichain.of(1), zero))


def _start(engine: Engine, name: str, graph: Graph, tick: Tick) -> tuple[Series, Found]:
    """Load a graph into an engine, and give a search its roots."""
    series, before = Series(engine, graph, tick), rss()
    found = Found(figures={"load_s": series.load()})
    found.figures["load_rss"] = rss() - before
    if name == "bfs":
        found.figures["initial_s"] = engine.round(graph.roots, ROOTS)
    return series, found


def sized(size: str, scale: Scale) -> Graph:
    """Return the graph of a size; the small one has one size at all scales."""
    nodes, edges = SIZES[size]
    return Graph(nodes, edges) if size == "1k" else Graph(scale(nodes), scale(edges))


def latencies(scale: Scale, tick: Tick, name: str, size: str, compacts: bool = True) -> Found:
    """Measure single changes after more and more changes."""
    warm(name)
    with nullcontext() if compacts else no_compaction(), engine_of(fed(name)) as engine:
        series, found = _start(engine, name, sized(size, scale), tick)
        as_worker()
        points = [scale(point) for point in POINTS[name]]
        most = float("inf") if compacts else scale.seconds
        series.latencies(found, points, scale.singles, most)
        found.figures["peak_rss"] = rss()
        if compacts:
            _compare(found, points)
    return found


def _compare(found: Found, points: Sequence[int]) -> None:
    """Note the single changes at the last point, and how those at a hundredth of it compare."""
    for figure in ("p50", "p99"):
        found.figures[f"single_{figure}_ms"] = found.figures[f"after_{points[-1]}_{figure}_ms"]
        late, early = (found.figures[f"after_{points[n]}_{figure}_ms"] for n in (-1, -3))
        found.figures[f"{figure}_drift"] = late / early


def rates(scale: Scale, tick: Tick, name: str, size: str, workers: int = 1) -> Found:
    """Measure changes per second in rounds of each size."""
    warm(name)
    series = partial(_rated, name=name, graph=sized(size, scale), scale=scale)
    if workers > 1:
        return pair.run(partial(fed, name), series, tick)[0]
    with engine_of(fed(name)) as engine:
        return series(engine, tick)


def _rated(engine: Engine, tick: Tick, name: str, graph: Graph, scale: Scale) -> Found:
    series, found = _start(engine, name, graph, tick)
    as_worker()
    series.rates(found, scale)
    return found


def seek(scale: Scale, tick: Tick, size: str) -> Found:
    """Return the share of a search's time that goes into finding keys, with estimates and not."""
    warm("bfs")
    found = Found()
    for by_estimate in (True, False):
        with _estimating(by_estimate), engine_of(fed("bfs")) as engine:
            series, _ = _start(engine, "bfs", sized(size, scale), tick)
            as_worker()
            for count in (1, BETWEEN):
                with timed(kernels, "locate") as locating:
                    seconds = sum(series.round(count) for _ in range(scale.singles // 10))
                how = "estimated" if by_estimate else "galloping"
                found.figures[f"seek_share_rounds_of_{count}_{how}"] = locating.seconds / seconds
    return found


def no_compaction() -> AbstractContextManager[None]:
    """Let no reader of a trace give up a time, so merges tell all times apart."""

    def stay(reader: trace.TraceReader, since: Antichain) -> None:
        """Give up nothing."""

    return replaced(trace.TraceReader, "advance", stay)


def _estimating(by_estimate: bool) -> AbstractContextManager[None]:
    """Let cursors estimate the place of a key, or not."""
    start = trace.Trace.__init__

    def create(made: trace.Trace, depth: int, factor: int = 1) -> None:
        start(made, depth, factor, by_estimate)

    return replaced(trace.Trace, "__init__", create)
