"""The suites of traces, joins and reductions can fail: each of these bugs is caught in few runs.

Compiled loops call each other directly, so bugs are planted in the code around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from meander.dataflow.collections import arrangement as arrangements
from meander.dataflow.collections.arrangement import Arrangement, ArrangementReader
from meander.dataflow.collections.join import IncrementalJoin
from meander.dataflow.collections.reduce import Reduction
from meander.dataflow.operators.collection.operator import CollectionOperator
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.records.loop_times import nested_time
from meander.state.collections import merge as merges
from meander.state.collections import trace as traces
from meander.state.collections.columns import Int64s
from meander.state.collections.frontiers import columns_of
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.collections.merge import Merge, layer_of
from meander.state.collections.trace import Trace, TraceReader
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME
from tests.support.collections import collection_run, trace_run
from tests.support.collections.columns import joined, rows_of
from tests.support.collections.graph_flows import GRAPH_FLOWS, random_case, run
from tests.support.property.planted import expect_caught

RUNS = 60
NODES, CHANGES = 7, 40
_columns_of, _result, _advance = columns_of, Merge.result, TraceReader.advance
_open, _start, _current_runs = Merge.__init__, Trace._start, Trace._current_runs
_pairs, _reduce, _install = IncrementalJoin._pairs, Reduction.step, Arrangement.install


def _one_element(frontier: Antichain, depth: int) -> Int64s:
    return _columns_of(frontier, depth)[:1]


def _early(merge: Merge) -> Layer:
    layer = _result(merge)
    updates = joined(layer.updates(), merge._depth)
    counts = Counter[tuple[int, int]]()
    for key, value, _, diff in rows_of([updates]):
        counts[key, value] += diff
    kept = [bool(counts[key, value]) for key, value, *_ in rows_of([updates])]
    return layer_of(updates.take(np.flatnonzero(kept)), layer.description)


def _beyond(reader: TraceReader, since: Antichain) -> None:
    later = [time + 1 if isinstance(time, int) else (time[0] + 1, *time[1:]) for time in since]
    _advance(reader, since)
    reader._since = Antichain.of(*later)


def _in_place(merge: Merge, earlier: Layer, later: Layer, since: Antichain, depth: int) -> None:
    for chunk in (*earlier.chunks, *later.chunks):
        if depth == 1:
            np.maximum(chunk.times, _columns_of(since, depth)[0], out=chunk.times)
    _open(merge, earlier, later, since, depth)


def _last_runs(trace: Trace) -> Any:
    if not trace._runs:
        _current_runs(trace)
    return [run for _, run in trace._runs.values()]


def _one_side(
    join: IncrementalJoin, batch: Layer, other: Any, before: Antichain, swapped: bool
) -> Iterator[Updates]:
    return iter(()) if swapped else _pairs(join, batch, other, before, swapped)


def _all_of(layer: Layer, _: Antichain) -> list[UpdateChunk]:
    return [*layer.chunks]


def _without_pending(reduction: Reduction, batch: Layer) -> Iterator[Updates]:
    yield from _reduce(reduction, batch)
    _, reduction._pending = reduction._pending.split(_columns_of(Antichain(), reduction._depth))


def _not_rewritten(trace: Trace) -> bool:
    return len(trace._levels) > 1 and _start(trace)


def _all_read(reader: ArrangementReader, bin: Bin, unread: Antichain) -> None:
    """Take all rows of a restored bin for rows that were read."""


def _by_time(arrangement: Arrangement, bin: Bin, updates: Updates, at: Antichain) -> None:
    lowest = Antichain.of(nested_time(MIN_TIME, (0,) * (arrangement.depth - 1)))
    for reader in arrangement._readers:
        reader.restored[bin] = lowest
    _install(arrangement, bin, updates, at)


def _of_traces(seed: int) -> None:
    trace_run.run(trace_run.random_schedule(seed))


def _of_collections(seed: int) -> None:
    collection_run.run(collection_run.random_schedule(seed))


def _of_flows(name: str, first: int, seed: int) -> None:
    """Run a flow that is killed; `first` is a seed that shows the bug."""
    graph, case = GRAPH_FLOWS[name], random_case(first + seed, NODES, CHANGES)
    assert run(graph, *case).changes == run(graph, case.history, 1, case.seed).changes


Planted = tuple[Any, str, Any]
"""An owner, the name of what it has, and the bug in its place."""
PLANTED: dict[str, tuple[Planted, Callable[[int], None]]] = {
    "a compaction joins a time with one element of since alone": (
        (merges, "columns_of", _one_element), _of_traces,
    ),
    "a merge drops rows that cancel at a later time": ((Merge, "result", _early), _of_traces),
    "a reader gives up more than it says": ((TraceReader, "advance", _beyond), _of_traces),
    "a merge advances the times of its inputs in place": (
        (Merge, "__init__", _in_place), _of_traces,
    ),
    "a cursor reads the layers of an earlier one": (
        (Trace, "_current_runs", _last_runs), _of_traces,
    ),
    "a merge gets too little fuel": ((traces, "FUEL", 1), _of_traces),
    "an insert pays for a whole merge": ((traces, "FUEL", 1 << 40), _of_traces),
    "the last layer keeps its times": ((Trace, "_start", _not_rewritten), _of_traces),
    "a join forgets the older side": ((IncrementalJoin, "_pairs", _one_side), _of_collections),
    "an arrangement is read beyond its since": (
        (TraceReader, "advance", _beyond), _of_collections,
    ),
    "a reader gets rows from its position on": (
        (arrangements, "_before", _all_of), _of_collections,
    ),
    "a reduction forgets times at which changes join": (
        (Reduction, "step", _without_pending), _of_collections,
    ),
    "restored rows beyond the frontier are left out": (
        (Arrangement, "install", _by_time), partial(_of_flows, "bfs", 72),
    ),
    "restored rows that were not read are read twice": (
        (ArrangementReader, "restore", _all_read), partial(_of_flows, "shared", 4),
    ),
    "a reader in a loop passes the time at which a bin leaves": (
        (CollectionOperator, "start_departure", StatefulOperator.start_departure),
        partial(_of_flows, "shared", 362),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, recover = PLANTED[bug]
    expect_caught(monkeypatch, planted, recover, range(RUNS))
