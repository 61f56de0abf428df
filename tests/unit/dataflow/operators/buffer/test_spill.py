"""I3, I6: what waits on disk comes back equal, in order, and within a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import Flow
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.rows import ARRIVED, Rows
from meander.dataflow.operators.buffer.spill import SLICE_BYTES, SLICE_ROWS, RowOrder
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListSink
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.encoding.value_columns import ValueColumns, Values
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from tests.support.sim.manual_flow import ManualSource, keyed
from tests.support.sim.operator_bench import pool, records
from tests.support.sim.start import Start

Place = tuple[int, ...]
VALUES = [None, -(1 << 70), (1, {"a": {2.5}}), "ä\ud800", b"\0", [1, [2]], frozenset({3})]


def rows_of(places: list[Place], first: int = 0) -> Rows:
    """Records at (time, partition, offset, side), of which each has a value of its own."""
    columns = [np.array(column, np.int64) for column in zip(*places, strict=True)]
    times, partitions, offsets, sides = columns
    zeros = np.zeros(len(places), np.int64)
    values: list[object] = [
        (first + n, VALUES[(first + n) % len(VALUES)]) for n in range(len(places))
    ]
    keys = [codec.encode(n % 3) for n in range(len(places))]
    hashes = BinSpace().hash_keys(keys)
    batch = Batch(times, zeros, partitions, offsets, zeros, values, keys, hashes)
    # When a record came says nothing of its place.
    arrived = np.arange(first, first + len(places)) * 7919 % 1000
    return Rows(batch, (sides << ARRIVED) | arrived)


def told(rows: Rows) -> list[Any]:
    """All that is known of each record."""
    b = rows.batch
    columns = (b.times, b.origins, b.partitions, b.offsets, b.indexes, b.hashes, rows.tags)
    numbers = zip(*(column.tolist() for column in columns if column is not None), strict=True)
    return list(zip(numbers, b.keys or (), b.values, strict=True))


def drained(waiting: SpillBuffer, frontier: Antichain, order: RowOrder) -> list[Any]:
    """All that a frontier has passed, as an operator applies it."""
    found: list[Any] = []
    more = True
    while more:
        rows, more = waiting.pop_passed(frontier)
        if rows:
            one = Rows.concat(rows)
            found += told(one if order == "arrival" else one.sorted(order == "inputs_first"))
    return found


PLACES = st.tuples(st.integers(0, 6), st.integers(-2, 2), st.integers(0, 3), st.integers(0, 1))
STEPS = st.lists(
    st.one_of(
        st.lists(PLACES, min_size=1, max_size=8),
        st.just("shed"),
        st.integers(0, 7),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.sampled_from(["total", "inputs_first"]))
def test_the_total_order_is_the_same_wherever_records_wait(
    steps: list[Any], order: RowOrder
) -> None:
    """I3: as if all had been in memory; and nothing comes before its time has passed."""
    spilling, memory = pool(order), pool(order)
    count = 0
    passed = 0
    for step in [*steps, 8]:
        if step == "shed":
            spilling.spill_some()
        elif isinstance(step, int):
            passed = max(passed, step)
            frontier = Antichain.of(passed)
            assert drained(spilling, frontier, order) == drained(memory, frontier, order)
        else:
            # What comes has a time that has not passed (I1).
            rows = rows_of([(max(time, passed), *rest) for time, *rest in step], count)
            count += len(rows)
            spilling.add(rows)
            memory.add(rows)
        assert spilling.least == memory.least
    assert not spilling.spilled


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_each_partition_keeps_its_order_wherever_its_records_wait(steps: list[Any]) -> None:
    """I3, where records are applied as they arrive: times of a partition never decrease."""
    waiting = pool("arrival")
    count = passed = 0
    newest: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    for step in [*steps, 8]:
        if step == "shed":
            waiting.spill_some()
        elif isinstance(step, int):
            passed = max(passed, step)
            for numbers, _, value in drained(waiting, Antichain.of(passed), "arrival"):
                seen.setdefault(numbers[2], []).append(value[0])
        else:
            places = []
            for time, partition, *rest in step:
                newest[partition] = max(time, passed, newest.get(partition, 0))
                places.append((newest[partition], partition, *rest))
            waiting.add(rows_of(places, count))
            count += len(places)
    assert sum(map(len, seen.values())) == count
    assert all(a < b for numbers in seen.values() for a, b in pairwise(numbers))


def test_what_has_passed_comes_back_in_slices() -> None:
    """I6: no more is in memory at once than a slice, and what stands at one place."""
    waiting = pool("total")
    for n in range(20):
        waiting.add(Rows.of(records(["x" * 1000] * 1000, [n] * 1000, [0] * 1000, n), 0))
        while waiting.size:
            waiting.spill_some()
    sizes = []
    while waiting.least is not None:
        rows, _ = waiting.pop_passed(Antichain())
        sizes.append(sum(map(len, rows)))
    assert sum(sizes) == 20_000
    assert max(sizes) <= min(SLICE_ROWS, SLICE_BYTES // 1000 + 1)


def test_what_has_been_read_back_is_free_again() -> None:
    waiting = pool(most=100_000)
    for n in range(10):
        waiting.add(Rows.of(records(["x" * 60_000], [n], [0]), 0))
        waiting.spill_some()
        assert drained(waiting, Antichain(), "arrival")
    waiting.add(Rows.of(records(["x" * 60_000] * 2, [7, 8], [0, 0]), 0))
    with pytest.raises(MeanderError, match="operator 'op': 12\\d,\\d{3} bytes of this worker's"):
        waiting.spill_some()


def test_records_of_one_place_come_back_together_whenever_they_came() -> None:
    """I3: the bytes of their values order them, which no slice of them would know."""
    waiting = pool("total")
    count = SLICE_ROWS + 10
    many = records(range(count), [1] * count, [0] * count)
    batch = replace(many, offsets=np.zeros(count, np.int64))
    waiting.add(Rows(batch, np.arange(count)[::-1].copy()))
    while waiting.spill_some():
        pass
    (rows,), _ = waiting.pop_passed(Antichain.of(2))
    assert len(rows) == count
    assert sorted(rows.arrivals.tolist()) == list(range(count))


@pytest.mark.parametrize("order", get_args(RowOrder))
@pytest.mark.parametrize("keys", [None, ["a", "b", "c"]])
def test_value_columns_come_back_from_disk_as_columns(
    order: RowOrder, keys: list[str] | None
) -> None:
    columns = ValueColumns((np.array([1, -2, 3]), np.array([0.5, -0.0, np.inf])))
    written = records([*columns], [5, 6, 7], keys).with_values(columns)
    waiting = pool(order)
    for first in (0, 1):
        waiting.add(Rows.of(written.take(np.arange(first, 3)), 0))
        waiting.spill_some()
    (kept,) = [rows.batch for rows in waiting.rows()]
    (found,) = waiting.pop_passed(Antichain())[0]
    for batch in (kept, found.sorted().batch):
        assert isinstance(batch.values, ValueColumns) and batch.values.kinds == "if"
        assert sorted(map(repr, batch.values)) == sorted(map(repr, [*columns, *columns[1:]]))
        assert (batch.keys is None) == (keys is None)


def test_values_of_two_kinds_on_one_disk_come_back_as_a_list() -> None:
    waiting = pool("total")
    whole, half = ValueColumns((np.array([7]),)), ValueColumns((np.array([0.5]),))
    kinds: list[Values] = [whole, ["a"], half, whole]
    for time, values in enumerate(kinds):
        waiting.add(Rows.of(records(["x"], [time]).with_values(values), 0))
        waiting.spill_some()
    (rows,), _ = waiting.pop_passed(Antichain())
    assert rows.batch.values == [(7,), "a", (0.5,), (7,)]


def test_value_columns_of_one_place_are_in_the_order_of_their_bytes() -> None:
    """I3: as tuples would be."""
    columns = ValueColumns((np.array([300, 2, -1]),))
    batch = replace(records([*columns]), offsets=np.zeros(3, np.int64))
    expected = Rows.of(batch, 0).sorted().batch.values
    assert [*Rows.of(batch.with_values(columns), 0).sorted().batch.values] == expected


def test_a_value_that_cannot_go_to_disk_ends_the_flow_and_names_itself(start: Start) -> None:
    """It may stand behind an exchange while memory holds it, and nowhere else."""
    patient = SourceOptions(max_skew=100.0)
    source, other = ManualSource(options=patient), ManualSource(options=patient)
    source.feeds[0].busy = other.feeds[0].busy = True
    flow = Flow("f", bins=0, max_waiting=1000)
    strange = flow.source(source).key_by(lambda v: 0).map(lambda v: range(v))
    right = flow.source(other, "other").key_by(lambda v: 0)
    strange.connect(right, "both", lambda: 0, _keep, _keep).sink(ListSink())
    run = start(flow, workers=1)
    run.run_until_idle()
    source.give(0, *((1000, n) for n in range(30)), (2000, 0))
    with pytest.raises(MeanderError) as raised:
        run.run_until_idle()
    said = str(raised.value)
    assert said.startswith(
        "operator 'both': waiting records exceed its limit of 1,000 bytes, and not all"
    )
    assert "builtins.range" in said
    assert said.endswith("raise the flow's max_waiting, or give it plain Python values only.")


def _keep(context: Any, state: int, value: object) -> int:
    return state


def test_what_is_queued_is_in_the_total_order_wherever_it_has_waited(start: Start) -> None:
    """I3: slices from disk, and what has waited for a bin, come before what is later than they."""
    flow = Flow("f", bins=1)
    words = flow.source(ManualSource()).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, _: (n + 1, n)).sink(ListSink())
    operator = keyed(start(flow, workers=1).workers[0], "n")

    def queued() -> list[int]:
        return [time for _, rows in operator._queue for time in rows.batch.times.tolist()]

    def waiting(*times: int) -> Rows:
        return Rows.of(records([*times], [*times], keys=["x"] * len(times)), 0)

    operator._enqueue(waiting(60))
    operator.incoming._stashed[Bin(0)] = pool("total")
    operator.incoming._stashed[Bin(0)].add(waiting(50))
    operator.incoming._released.add(Bin(0))
    assert operator._enqueue_released()
    assert queued() == [50, 60]
    for time in (40, 41):
        operator._waiting.add(waiting(time))
        operator._waiting.spill_some()
    assert operator._waiting.spilled
    assert operator._enqueue_ready(Antichain.of(100))
    assert queued() == [40, 41, 50, 60]
