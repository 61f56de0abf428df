"""Stateless steps: each record keeps its place in the total order, whatever becomes of it (I3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.operators.stateless import (
    INDEX_BITS,
    Filter,
    FlatMap,
    Inspect,
    KeyBy,
    Map,
    Step,
    Steps,
    append_index,
)
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.simulator import SimClock
from meander.state.encoding import codec
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.bins import BinSpace
from tests.support.sim.operator_bench import Bench, guard, records


def applied(step: Step, batch: Batch) -> Batch:
    return step.apply(batch, guard()[0])


def flat(function: Callable[[Any], list[object]]) -> FlatMap:
    return FlatMap("split", function, "fail")


def some(values: list[object]) -> Batch:
    return records(values, range(10, 10 + len(values)), keys=values)


# -- what each does


def test_map_gives_each_record_another_value_and_the_same_place() -> None:
    batch = applied(Map("m", lambda v: v * 2, "fail"), some([1, 2, 3]))
    assert batch.values == [2, 4, 6]
    assert batch.offsets.tolist() == [0, 1, 2] and batch.times.tolist() == [10, 11, 12]
    assert batch.keys == [codec.encode(key) for key in (1, 2, 3)]


def test_filter_keeps_whole_records() -> None:
    batch = applied(Filter("f", lambda v: v % 2, "fail"), some([1, 2, 3]))
    assert (batch.values, batch.offsets.tolist()) == ([1, 3], [0, 2])
    assert batch.keys == [codec.encode(1), codec.encode(3)]


def test_functions_see_value_columns_as_tuples_and_filter_and_key_by_keep_the_columns() -> None:
    columns = ValueColumns((np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5])))
    batch = some([1, 2, 3]).with_values(columns)
    assert applied(Map("m", lambda v: v, "fail"), batch).values == [(1, 0.5), (2, 1.5), (3, 2.5)]
    assert applied(flat(list), batch).values == [1, 0.5, 2, 1.5, 3, 2.5]
    kept = applied(Filter("f", lambda v: v[0] % 2, "fail"), batch)
    keyed = applied(KeyBy("k", lambda v: v[0], "fail", BinSpace(8)), kept)
    assert isinstance(keyed.values, ValueColumns)
    assert [*keyed.values] == [(1, 0.5), (3, 2.5)]
    assert keyed.keys == [codec.encode(1), codec.encode(3)]


def test_inspect_sees_every_record_and_changes_none() -> None:
    seen: list[object] = []
    batch = some([1, 2])
    assert applied(Inspect("i", seen.append, "fail"), batch) is batch
    assert seen == [1, 2]


def test_key_by_encodes_keys_and_hashes_them_for_the_flows_bins() -> None:
    space = BinSpace(3)
    batch = applied(KeyBy("k", lambda v: (v, "x"), "fail", space), records(["a", "b"]))
    assert batch.keys == [codec.encode(("a", "x")), codec.encode(("b", "x"))]
    assert batch.hashes is not None
    assert space.bins_of(batch.hashes).tolist() == [space.bin_of(key) for key in batch.keys]


@given(st.lists(st.integers(0, 3), max_size=6))
def test_flat_map_gives_each_output_its_inputs_place_and_an_index(counts: list[int]) -> None:
    batch = applied(flat(lambda n: [(n, i) for i in range(n)]), some(list(counts)))
    expected = [(offset, i, (n, i)) for offset, n in enumerate(counts) for i in range(n)]
    got = zip(batch.offsets.tolist(), batch.indexes.tolist(), batch.values, strict=True)
    assert list(got) == expected


# -- indexes


@given(st.recursive(st.integers(0, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_indexes_of_chained_flat_maps_order_outputs_as_nested_loops_would(tree: object) -> None:
    """I3: three levels, each with its own 20 bits."""

    def unfold(value: object) -> list[object]:
        return list(value) if isinstance(value, list) else [value]

    batch, expected = records([tree]), [tree]
    for _ in range(3):
        batch = applied(flat(unfold), batch)
        expected = [inner for value in expected for inner in unfold(value)]
    order = np.argsort(batch.indexes, kind="stable")
    assert [batch.values[i] for i in order] == batch.values == expected
    assert len(set(batch.indexes.tolist())) == len(expected)


def test_an_index_holds_twenty_bits_a_level() -> None:
    most = (1 << INDEX_BITS) - 1
    first = append_index(np.array([0]), np.array([most]))
    second = append_index(first, np.array([most]))
    assert second.tolist() == [(1 << 40) - 1]
    third = append_index(second, np.array([most]))
    assert third.tolist() == [(1 << 60) - 1]


# -- when a function fails


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (Map("s", lambda v: 6 // v, "dead_letter"), [6, 3]),
        (Filter("s", lambda v: 6 // v == 3, "dead_letter"), [2]),
        (Filter("s", lambda v: np.array([v, v] if v == 0 else [v]), "dead_letter"), [1, 2]),
        (Inspect("s", lambda v: 6 // v, "dead_letter"), [1, 2]),
        (FlatMap("s", lambda v: [6 // v] * v, "dead_letter"), [6, 3, 3]),
        (FlatMap("s", lambda v: iter([6 // v]), "dead_letter"), [6, 3]),
        (FlatMap("s", lambda v: [v] if v else None, "dead_letter"), [1, 2]),  # type: ignore[arg-type,return-value]
        (KeyBy("s", lambda v: 6 // v, "dead_letter", BinSpace()), [1, 2]),
        (KeyBy("s", lambda v: v or object(), "dead_letter", BinSpace()), [1, 2]),
    ],
)
def test_the_record_that_a_function_cannot_take_is_set_aside_and_no_other(
    step: Step, kept: list[object]
) -> None:
    errors, dead, _ = guard("dead_letter", "s")
    batch = step.apply(records([1, 0, 2], [5, 6, 7]), errors)
    assert batch.values == kept
    assert len(batch.times) == len(kept) and 6 not in batch.times
    ((operator, value, reason, trace),) = dead.letters
    assert (operator, value) == ("s", 0)
    assert reason and "Traceback" in trace


def test_a_key_that_is_no_plain_value_is_named() -> None:
    errors, dead, _ = guard("dead_letter")
    KeyBy("k", lambda v: object(), "dead_letter", BinSpace()).apply(records([1]), errors)
    assert "builtins.object" in dead.letters[0][2]


# -- a chain as one operator


def test_a_chain_passes_a_batch_on_under_its_lower_bound() -> None:
    """I1, I3."""
    bench = Bench()
    chain: list[Step] = [
        Map("m", lambda v: v + 1, "fail"),
        Filter("f", lambda v: v != 2, "fail"),
        flat(lambda v: [v, -v]),
        KeyBy("k", lambda v: v, "fail", BinSpace()),
    ]
    steps = Steps(bench.inputs[0], bench.output, [(step, guard()[0]) for step in chain], SimClock())
    bench.put(records([1, 2, 3], [5, 6, 7]))
    assert steps.schedule() is True
    ((_, lower_bound, batch),) = bench.sent
    assert lower_bound == 5
    assert batch.values == [3, -3, 4, -4]
    assert batch.times.tolist() == [6, 6, 7, 7] and batch.indexes.tolist() == [0, 1, 0, 1]
    assert steps.schedule() is False


def test_a_batch_of_which_nothing_is_left_is_consumed_and_not_sent() -> None:
    """I7: its time is given up; and no step is asked about no records."""
    bench = Bench()
    asked: list[object] = []
    chain: list[Step] = [Filter("f", lambda v: False, "fail"), Inspect("i", asked.append, "fail")]
    steps = Steps(bench.inputs[0], bench.output, [(step, guard()[0]) for step in chain], SimClock())
    bench.put(records([1, 2], [5, 6]))
    steps.schedule()
    bench.pass_to(None)
    assert (bench.sent, asked, bench.held) == ([], [], ())
    assert bench.progress.is_quiescent()
