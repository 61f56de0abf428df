"""Traces alone, in one process: how they load, what they hold, and how long a step takes.

A step is what an operator does with a batch: sort it into a layer, insert that, let the reader
follow, and read the rows of its keys. Seconds are CPU time, as a trace waits for nothing but the
other processes of a machine. The same steps run twice where merges are progressive, and a step
counts with its lesser time: CPU time includes pauses of the machine, which differ between runs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import numpy as np

from benchmarks.incremental.found import Float64s, Found, Tick, as_worker, no_tick, rss, timed
from benchmarks.incremental.graph import Changes, Graph
from benchmarks.incremental.scale import Scale
from meander.state.collections import kernels
from meander.state.collections.columns import UInt64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of
from meander.state.collections.merge import layer_of
from meander.state.collections.trace import IMMEDIATE, Trace
from meander.state.times.antichain import Antichain

NODES, EDGES, UPDATES = 1_000_000, 10_000_000, 11_000_000
BATCH = 10
"""The updates of a step, each with its own time."""
LOADED = 100_000
"""The rows of a batch while a trace is loaded."""
FACTORS = {"immediate": IMMEDIATE, "1": 1, "2": 2, "4": 4}
SAMPLES = 1_000
"""The steps between two looks at the size of a trace."""
TURNS = {1: 20_000, 1_000: 1_000, 100_000: 30}
"""The turns of a cursor, by the keys of a turn."""


class Arrangement:
    """A trace with one reader that follows its input, as an operator keeps it."""

    def __init__(self, factor: int, by_estimate: bool = True) -> None:
        self.trace = Trace(1, factor, by_estimate)
        self._reader, self._now = self.trace.reader(), 0

    def insert(self, changes: Changes, distinct: bool = True) -> None:
        """Insert a batch, whose changes have times of their own where they are `distinct`."""
        count = len(changes) if distinct else 1
        times = self._now + np.arange(len(changes)) % count
        upper = self._now + count
        lower = self.trace.upper
        description = LayerDescription(lower, Antichain.of(upper), lower)
        self.trace.insert(layer_of(changes.updates(times), description))
        self._reader.advance(Antichain.of(upper))
        self._now = upper

    def step(self, changes: Changes, hashes: UInt64s) -> None:
        """Insert a batch and read the rows of its keys."""
        self.insert(changes)
        self.trace.cursor().gather(hashes)

    def compact(self) -> None:
        """Merge all rows into one layer at the last time."""
        while self.trace.compact(1 << 24):
            pass


def loaded(graph: Graph, factor: int, tick: Tick, by_estimate: bool = True) -> Arrangement:
    """Return an arrangement of the first edges of a graph."""
    arrangement = Arrangement(factor, by_estimate)
    for first in range(0, graph.edges, LOADED):
        arrangement.insert(graph.initial(first, LOADED), distinct=False)
        tick(min(LOADED, graph.edges - first))
    arrangement.compact()
    return arrangement


def load(scale: Scale, tick: Tick) -> Found:
    """Load all edges at once and in batches, against a bare sort of the same columns."""
    graph = Graph(scale(NODES), scale(EDGES))
    small = Graph(100, 1_000)
    loaded(small, 1, no_tick)
    as_worker()
    sort_s, load_s = _at_once(graph)
    tick(2 * graph.edges)
    before = rss()
    began = thread_time()
    arrangement = loaded(graph, 1, tick)
    batches_s = thread_time() - began
    return Found(figures={
        "lexsort_s": sort_s, "load_s": load_s, "load_in_batches_s": batches_s,
        "load_over_lexsort": load_s / sort_s, "load_in_batches_over_lexsort": batches_s / sort_s,
        "bytes_per_static_edge": arrangement.trace.nbytes / graph.edges,
        "rss_per_static_edge": (rss() - before) / graph.edges,
    })  # fmt: skip


def _at_once(graph: Graph) -> tuple[float, float]:
    """Return the seconds of a bare sort of all edges, and of a trace of one batch."""
    edges, trace = graph.initial(0, graph.edges), Trace(1)
    updates = edges.updates(np.zeros(len(edges), np.int64))
    description = LayerDescription(Antichain.of(0), Antichain.of(1), Antichain.of(0))
    sort_s = _seconds_of(lambda: np.lexsort((edges.values, edges.keys)))
    return sort_s, _seconds_of(lambda: trace.insert(layer_of(updates, description)))


def _seconds_of(function: Callable[[], object]) -> float:
    began = thread_time()
    function()
    return thread_time() - began


def updates(scale: Scale, tick: Tick, factor: int) -> Found:
    """Take updates in small steps, with one factor of merging."""
    graph = Graph(scale(NODES), scale(EDGES))
    small = Graph(100, 1_000)
    steps(loaded(small, factor, no_tick), small, 1_000, no_tick)
    runs = [_run(graph, scale(UPDATES), factor, tick) for _ in range(runs_of(factor))]
    seconds = np.array([took.sum() for took, _ in runs])
    found = Found(figures={
        "updates_per_s": BATCH * (scale(UPDATES) // BATCH) / seconds.mean(),
        "trace_over_live": runs[0][1] / graph.edges,
        "longest_of_one_run_ms": 1000 * max(took.max() for took, _ in runs),
    })  # fmt: skip
    found.note("step", np.min([took for took, _ in runs], axis=0))
    return found


def runs_of(factor: int) -> int:
    """Return the runs of a factor; no pause of the machine is as long as an immediate merge."""
    return 1 if factor == IMMEDIATE else 2


def _run(graph: Graph, count: int, factor: int, tick: Tick) -> tuple[Float64s, int]:
    arrangement = loaded(graph, factor, tick)
    as_worker()
    return steps(arrangement, graph, count, tick)


def steps(arrangement: Arrangement, graph: Graph, count: int, tick: Tick) -> tuple[Float64s, int]:
    """Return the seconds of each step, and the most rows that the trace had."""
    took, rows = np.empty(count // BATCH), 0
    for number in range(len(took)):
        changes = graph.changes(number * BATCH, BATCH)
        hashes = np.unique(hashes_of(changes.keys))
        began = thread_time()
        arrangement.step(changes, hashes)
        took[number] = thread_time() - began
        if number % SAMPLES == 0:
            rows = max(rows, len(arrangement.trace))
            tick(BATCH * min(SAMPLES, len(took) - number))
    return took, rows


def seek(scale: Scale, tick: Tick) -> Found:
    """Read keys at random, with the place of a key estimated and not; the share of finding it."""
    graph = Graph(scale(NODES), scale(EDGES))
    found = Found()
    for by_estimate in (True, False):
        arrangement = loaded(graph, 1, tick, by_estimate)
        steps(arrangement, graph, scale(UPDATES) // 10, tick)
        as_worker()
        for keys, turns in TURNS.items():
            seconds, locating = _gather(arrangement.trace, graph.nodes, keys, turns)
            name = f"{keys}_keys_{'estimated' if by_estimate else 'galloping'}"
            found.figures[f"seek_share_{name}"] = locating / seconds
            found.figures[f"gather_us_per_key_{name}"] = 1e6 * seconds / (keys * turns)
    return found


def _gather(trace: Trace, nodes: int, keys: int, turns: int) -> tuple[float, float]:
    """Return the seconds of reading keys in turns, and of finding their places alone."""
    chance, seconds = np.random.default_rng(0), 0.0
    with timed(kernels, "locate", thread_time) as locating:
        for _ in range(turns):
            hashes = np.unique(hashes_of(chance.integers(0, nodes, keys)))
            began = thread_time()
            trace.cursor().gather(hashes)
            seconds += thread_time() - began
    return seconds, locating.seconds
