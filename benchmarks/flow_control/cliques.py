"""One run that finds cliques in a graph whose edges all arrive at one time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.flow_control.graphs import RandomGraph
from benchmarks.flow_control.runs import forget_peak, peak
from benchmarks.incremental import pair
from benchmarks.incremental.engine import Engine, engine_of
from benchmarks.incremental.found import Found, Tick, as_worker, rss
from benchmarks.incremental.graph import RowChanges
from benchmarks.incremental.members import Answer
from meander import Flow, SourceOptions, pattern
from meander.dataflow.collections.compilation import compile_loops
from meander.dataflow.generic_join.compilation import compile_lookups
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.collections.columns import Int64s

TEXTS = {3: "a->b, b->c, a->c", 4: "a->b, a->c, a->d, b->c, b->d, c->d"}
"""The pattern of the cliques of each size."""
UNBOUNDED = 1 << 40
CLOSING = (-1, -2, 1)
WARM = RowChanges([CLOSING] * 20)
PATIENT = ListSource([], SourceOptions(idle_after=1e6))
"""The source whose records a worker is fed. Only a later record closes a time."""


@dataclass(frozen=True, slots=True)
class CliqueRun:
    """A search for all cliques of a size; None for `batch` is one without flow control."""

    graph: RandomGraph
    size: int = 3
    batch: int | None = 100_000
    in_flight: int = 4
    workers: int = 1

    def flow(self) -> Flow:
        """Return the flow, whose operators wait for nothing but flow control."""
        flow = Flow("cliques", max_inflight=UNBOUNDED, link_credit=UNBOUNDED, max_waiting=UNBOUNDED)
        edges = flow.source(PATIENT).collection(_edge)
        matches = pattern(TEXTS[self.size]).matches(
            edges, batch=self.batch, in_flight=self.in_flight
        )
        matches.collection(_one).count("cliques").changes().sink(ListSink())
        return flow

    def measure(self, expected: int, tick: Tick) -> Found:
        """Return the seconds, and the peak of memory above that of warm workers, of all together.

        Raises AssertionError for another number of cliques.
        """
        if self.workers == 1:
            with engine_of(self.flow(), Answer()) as engine:
                found = [self._series(engine, tick)]
        else:
            found = pair.run(self.flow, self._series, tick, self.workers, Answer)
        cliques = int(sum(one.figures["cliques"] for one in found))
        assert cliques == expected, f"{cliques} cliques, and not {expected}"
        seconds = max(one.figures["seconds"] for one in found)
        memory = sum(one.figures["peak_bytes"] for one in found)
        return Found(figures={"seconds": seconds, "peak_bytes": memory})

    def _series(self, engine: Engine, tick: Tick) -> Found:
        compile_loops()
        compile_lookups()
        edges = self.graph.changes()
        engine.load(WARM, CLOSING)
        as_worker()
        before = rss()
        forget_peak()
        seconds = engine.load(edges, CLOSING)
        tick(len(edges))
        assert isinstance(engine.writer, Answer), "cliques are counted"
        counts = engine.writer.rows_by_key.items()
        cliques = sum(count * rows for (_, count), rows in counts if isinstance(count, int))
        figures = {"seconds": seconds, "peak_bytes": peak() - before, "cliques": cliques}
        return Found(figures=figures)


def _edge(record: tuple[int, int, int]) -> tuple[int, int, int]:
    return record


def _one(*nodes: Int64s) -> tuple[Int64s, Int64s]:
    none = np.zeros_like(nodes[0])
    return none, none
