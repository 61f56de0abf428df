"""Records that wait come out once, when their time has passed, in the one total order (I3)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.operators.buffer.rows import ARRIVED, PendingRows, Rows, not_passed
from meander.dataflow.records.batch import ROW_BYTES, Batch
from meander.state.encoding import codec
from meander.state.times.antichain import Antichain
from tests.support.sim.operator_bench import records

Place = tuple[int, int, int, int, int, int]
"""time, origin, partition, offset, index, side"""
SMALL = st.integers(0, 2)
ENTRIES = st.lists(
    st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, st.integers(0, 3)), max_size=12
)


def rows_of(entries: list[tuple[int, ...]]) -> Rows:
    columns = np.array(entries, np.int64).reshape(-1, 7).T
    times, origins, partitions, offsets, indexes, sides, values = columns
    # When a record came says nothing of its place.
    tags = (sides << ARRIVED) | np.arange(len(entries))
    return Rows(
        Batch(times, origins, partitions, offsets, indexes, list(map(_value, values.tolist()))),
        tags,
    )


def _value(n: int) -> object:
    """Values whose own order is not that of their bytes, and some that have none."""
    return [300, -1, "a", (None,)][n]


def entries_of(rows: Rows) -> list[tuple[Place, bytes]]:
    b = rows.batch
    places = zip(
        *(
            c.tolist()
            for c in (b.times, b.origins, b.partitions, b.offsets, b.indexes, rows.inputs)
        ),
        strict=True,
    )
    return list(zip(places, map(codec.encode, b.values), strict=True))


@given(ENTRIES)
def test_the_total_order_ends_with_the_bytes_of_the_value(
    entries: list[tuple[int, ...]],
) -> None:
    """I3: so that two records are in one order on every worker, however they came."""
    rows = rows_of(entries)
    assert entries_of(rows.sorted()) == sorted(entries_of(rows))


@given(ENTRIES)
def test_the_inputs_come_right_behind_the_time_where_an_operator_asks_for_it(
    entries: list[tuple[int, ...]],
) -> None:
    """I3: so that at each time all records of an input precede those of the next one."""

    def place(entry: tuple[Place, bytes]) -> tuple[object, ...]:
        (time, *rest, side), value = entry
        return time, side, *rest, value

    rows = rows_of(entries)
    assert entries_of(rows.sorted(inputs_first=True)) == sorted(entries_of(rows), key=place)


@given(ENTRIES, st.integers(0, 9))
def test_the_order_does_not_depend_on_the_order_of_arrival(
    entries: list[tuple[int, ...]], seed: int
) -> None:
    """I3."""
    mixed = entries[:]
    random.Random(seed).shuffle(mixed)
    assert entries_of(rows_of(mixed).sorted()) == entries_of(rows_of(entries).sorted())


def test_values_that_cannot_be_compared_are_ordered_all_the_same() -> None:
    rows = rows_of([(1, 0, 0, 0, 0, 0, v) for v in (3, 2, 0, 1)])
    expected = sorted(rows.batch.values, key=codec.encode)
    assert rows.sorted().batch.values == expected


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=6),
    st.lists(st.integers(0, 11), max_size=4),
)
def test_what_waits_comes_out_once_when_its_time_has_passed(
    batches: list[list[int]], frontiers: list[int]
) -> None:
    """I3, I6: nothing is lost, doubled or early, and what still waits is what `least` says."""
    waiting = PendingRows()
    waits: list[tuple[int, int]] = []
    for b, times in enumerate(batches):
        batch = records([(b, i) for i in range(len(times))], times)
        waiting.add(Rows.of(replace(batch, size=10 * len(times)), input_number=0))
        waits += [(time, b) for time in times]
    for frontier in [*sorted(frontiers), 99]:
        came = [
            (int(time), value[0])
            for rows in waiting.pop_passed(Antichain.of(frontier))
            for time, value in zip(rows.batch.times, rows.batch.values, strict=True)
            if isinstance(value, tuple)
        ]
        assert sorted(came) == sorted(entry for entry in waits if entry[0] < frontier)
        assert [b for _, b in came] == sorted(b for _, b in came), "in the order of arrival"
        waits = [entry for entry in waits if entry[0] >= frontier]
        assert waiting.least == min((time for time, _ in waits), default=None)
        assert waiting.size == (10 + ROW_BYTES) * len(waits)


def test_the_empty_frontier_has_passed_everything() -> None:
    waiting = PendingRows()
    waiting.add(Rows.of(records([1, 2], [5, 1 << 62]), input_number=1))
    ((rows),) = waiting.pop_passed(Antichain())
    assert rows.batch.values == [1, 2] and rows.inputs.tolist() == [1, 1]
    assert waiting.pop_passed(Antichain()) == [] and waiting.least is None


def test_no_record_waits_of_an_empty_batch() -> None:
    waiting = PendingRows()
    waiting.add(Rows.of(records([]), input_number=0))
    assert (waiting.least, waiting.size, waiting.pop_passed(Antichain())) == (None, 0, [])


@given(st.lists(st.integers(0, 9)), st.integers(0, 10))
def test_later_is_what_a_frontier_has_not_passed(times: list[int], frontier: int) -> None:
    assert not_passed(np.array(times, np.int64), Antichain.of(frontier)).tolist() == [
        time >= frontier for time in times
    ]


@given(ENTRIES, ENTRIES, st.integers(0, 99))
def test_taking_splitting_and_joining_keep_every_column_of_a_record(
    left: list[tuple[int, ...]], right: list[tuple[int, ...]], seed: int
) -> None:
    """I3, I4: a record's place, value and side stay together."""
    rows = Rows.concat([rows_of(left), rows_of(right)])
    entries = entries_of(rows)
    assert entries == entries_of(rows_of(left)) + entries_of(rows_of(right))
    chance = random.Random(seed)
    mask = np.array([chance.random() < 0.5 for _ in entries], np.bool_)
    chosen, others = rows.split(mask)
    assert entries_of(chosen) == [e for e, m in zip(entries, mask, strict=True) if m]
    assert entries_of(others) == [e for e, m in zip(entries, mask, strict=True) if not m]
    order = np.array(chance.sample(range(len(entries)), len(entries)), np.int64)
    assert entries_of(rows.take(order)) == [entries[i] for i in order]


def test_keys_and_hashes_go_with_their_records() -> None:
    batch = records([1, 2, 3], [1, 2, 3], ["a", "b", "c"])
    assert batch.keys is not None and batch.hashes is not None
    taken = batch.take(np.array([2, 0]))
    assert taken.keys == [batch.keys[2], batch.keys[0]]
    assert taken.hashes is not None
    assert taken.hashes.tolist() == [batch.hashes[2], batch.hashes[0]]
    both = Batch.concat([taken, batch])
    assert both.keys == [*taken.keys, *batch.keys]
    assert both.hashes is not None and len(both.hashes) == 5
