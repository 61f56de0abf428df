"""Value columns stay columns between workers, on disk and in checkpoints; functions see tuples."""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
import pytest

from meander import Checkpointing, Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.buffer.spill import DiskRows
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.logic import Applied, Fold
from meander.dataflow.operators.stateless import Map
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.in_flight import Header, InFlightColumns
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.ids import Bin, WorkerId
from meander.state.store.store import Bins, Store
from meander.testing import TestFlow

RECORDS = 200
KEYS = 7
Value = tuple[int, float]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, type]]:
    """Each map gives columns. The kinds of values that folds and disks have got, by record."""
    seen = Counter[tuple[str, type]]()
    map_, fold, write, decode = Map.apply, Fold.apply, DiskRows.write, in_flight.decode

    def apply_map(self: Map, batch: Batch, guard: Guard) -> Batch:
        mapped = map_(self, batch, guard)
        pairs = cast(list[Value], mapped.values)
        first, second = zip(*pairs, strict=True)
        return mapped.with_values(ValueColumns((np.array(first), np.array(second))))

    def apply_fold(self: Fold, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        seen["fold", type(rows.batch.values)] += len(rows)
        return fold(self, store, bins, rows, calls)

    def write_rows(self: DiskRows, rows: Rows) -> None:
        seen["disk", type(rows.batch.values)] += len(rows)
        write(self, rows)

    def decode_piece(data: bytes) -> tuple[Header, InFlightColumns]:
        header, columns = decode(data)
        seen["in flight", type(columns.values)] += header.node == "sum"
        return header, columns

    monkeypatch.setattr(in_flight, "decode", decode_piece)
    monkeypatch.setattr(Map, "apply", apply_map)
    monkeypatch.setattr(Fold, "apply", apply_fold)
    monkeypatch.setattr(DiskRows, "write", write_rows)
    return seen


def summing(sink: ListSink, max_waiting: int = 1 << 20) -> Flow:
    flow = Flow(
        "sums", bins=2, max_waiting=max_waiting, checkpoints=Checkpointing(1e9, policy="unaligned")
    )
    source = ListSource([[(1000 + n, n) for n in range(p, RECORDS, 2)] for p in range(2)])
    pairs = flow.source(source).map(lambda n: (n, n / 2))
    pairs.key_by(lambda pair: pair[0] % KEYS).fold("sum", lambda: 0.0, add).sink(sink)
    return flow


def add(total: float, pair: Value) -> tuple[float, object]:
    whole, half = pair
    assert (type(pair), type(whole), type(half)) == (tuple, int, float)
    return total + half, (whole, total + half)


SUMS = {key: sum(range(key, RECORDS, KEYS)) / 2 for key in range(KEYS)}


@pytest.mark.parametrize("max_waiting", [1 << 20, 2000])
@pytest.mark.parametrize("seed", range(4))
def test_a_flow_of_value_columns_gives_one_result_per_record(
    seed: int, max_waiting: int, kinds: Counter[tuple[str, type]]
) -> None:
    sink = ListSink()
    move = MoveBins("m", (Bin(0), Bin(1)), WorkerId(1))
    with TestFlow(summing(sink, max_waiting), 2, seed, commands=[move]) as run:
        run.run()
        assert run.states("sum") == SUMS
    assert sorted(n for n, _ in cast(list[Value], sink.values)) == [*range(RECORDS)]
    assert {result.worker for result in sink.results} == {0, 1}
    assert kinds["fold", ValueColumns] == RECORDS and not kinds["fold", list]
    assert bool(kinds["disk", ValueColumns]) == (max_waiting < 1 << 20)


@pytest.mark.parametrize("seed", range(4))
def test_value_columns_in_flight_come_back_after_a_restart(
    seed: int, kinds: Counter[tuple[str, type]]
) -> None:
    sink = ListSink()
    flow = summing(sink)
    with TestFlow(flow, 2, seed) as run:
        while run.counters["read"] < RECORDS // 2:
            run.act()
        run.inject(TakeCheckpoint())
        while not run.world.checkpoints:
            run.act()
        world = run.world
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert run.states("sum") == SUMS
    assert {n for n, _ in cast(list[Value], sink.values)} == {*range(RECORDS)}
    assert not kinds["fold", list]
    assert kinds["in flight", ValueColumns] and not kinds["in flight", list]
