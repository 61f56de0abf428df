"""Folds over columns equal the same fold written per record, to the last bit, however records fall
into batches; and a value that does not fit is set aside alone (I5)."""

from __future__ import annotations

import math
import operator
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from meander import Flow, columns
from meander.dataflow.control.command import MoveBins
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.keyed.column_fold import ColumnFold, ColumnStep
from meander.dataflow.operators.keyed.columnar import Columnar
from meander.dataflow.operators.keyed.logic import Sealing
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError, SetupError
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.operator_bench import Dead, bins_of, calls, contents, guard, records, store
from tests.support.sim.start import Start

Entry = tuple[int, object]
"""A key and a value."""
States = dict[bytes, object]
"""By encoded key."""


def bits(value: object) -> object:
    """A value with its type, in which two floats are equal only bit for bit."""
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else ("float", struct.pack("<d", value))
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(bits, value))
    return (type(value).__name__, value)


def run(fold: ColumnFold, batches: list[list[Entry]]) -> tuple[list[object], States, Dead]:
    """All results in order, the final states, and what was set aside."""
    errors, dead, _ = guard("dead_letter", "fold")
    logic = Columnar(fold, Sealing(PLAIN), errors)
    states = store(layout=fold.layout if fold.layout.numbers else None)
    results: list[object] = []
    for batch in batches:
        rows = records([value for _, value in batch], keys=[key for key, _ in batch])
        results += logic.apply(states, bins_of(rows), Rows.of(rows, 0), calls()).results.values
    return results, {key: whole(state) for key, state in contents(states).items()}, dead


def whole(state: object) -> object:
    """A lone number stands for a tuple of one."""
    return state if isinstance(state, tuple) else (state,)


def by_record(
    init: object, step: Callable[[Any, Any], tuple[object, object]], batches: list[list[Entry]]
) -> tuple[list[object], States]:
    """The same as a loop."""
    states: States = {}
    results = []
    for key, value in (entry for batch in batches for entry in batch):
        k = codec.encode(key)
        states[k], result = step(states.get(k, init), value)
        results.append(result)
    return results, states


def batches_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Entry]]]:
    entries = st.tuples(st.integers(0, 3), values)
    return st.lists(st.lists(entries, min_size=1, max_size=9), max_size=4)


# -- the shipped folds, per record


def _count(state: Any, value: Any) -> tuple[object, object]:
    return (state[0] + 1,), state[0] + 1


def _sum(state: Any, value: Any) -> tuple[object, object]:
    return (state[0] + value,), state[0] + value


def _mean(state: Any, value: Any) -> tuple[object, object]:
    count, total = state[0] + 1, state[1] + float(value)
    return (count, total), total / count


def _last(state: Any, value: Any) -> tuple[object, object]:
    return (value,), value


def _least(state: Any, value: Any) -> tuple[object, object]:
    seen, best = state
    best = best if seen and (best < value or math.isnan(best)) else value
    return (1, best), best


def _greatest(state: Any, value: Any) -> tuple[object, object]:
    seen, best = state
    best = best if seen and (best > value or math.isnan(best)) else value
    return (1, best), best


def numbered(n: float, text: str) -> object:
    return {"n": n, "text": text}


def _max_by(state: Any, value: Any) -> tuple[object, object]:
    best, held = state
    number = value["n"] + 0.0 if isinstance(value["n"], float) else value["n"]
    if number >= best:
        held = (*held, value) if number == best else (value,)
    return (max(best, number), held), [*held]


def _struct(state: Any, value: Any) -> tuple[object, object]:
    counted: Any = _count(state[:1], value["n"])
    best: Any = _max_by(state[1:3], value)
    after = (*counted[0], *best[0], value["n"])
    return after, {"sold": counted[1], "best": best[1], "now": value["n"]}


RANKED = columns.max_by("n", dtype="int64")
LEAST = -(1 << 63)
FLOATS = st.floats(width=64)
INTS = st.integers(-(1 << 40), 1 << 40)
PLAIN_VALUES = st.one_of(
    st.none(), st.text(max_size=3), INTS, st.lists(INTS, max_size=3), st.tuples(INTS, INTS),
    st.dictionaries(st.text(max_size=2), INTS, max_size=2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("fold", "init", "step", "values"),
    [
        (columns.count(), (0,), _count, PLAIN_VALUES),
        (columns.sum(), (0.0,), _sum, FLOATS.map(float)),
        (columns.sum(dtype="int64"), (0,), _sum, INTS),
        (columns.mean(), (0, 0.0), _mean, st.one_of(FLOATS, INTS)),
        (columns.min(), (0, 0.0), _least, FLOATS),
        (columns.max(), (0, 0.0), _greatest, FLOATS),
        (columns.min(dtype="int64"), (0, 0), _least, INTS),
        (columns.max(dtype="int64"), (0, 0), _greatest, INTS),
        (columns.last(), (None,), _last, PLAIN_VALUES),
        (RANKED, (LEAST, ()), _max_by, st.builds(numbered, st.integers(0, 2), st.text())),
        (
            columns.max_by("n"),
            (-math.inf, ()),
            _max_by,
            st.builds(numbered, st.sampled_from([-math.inf, -0.0, 0.0, 1.5]), st.text()),
        ),
        (
            columns.struct(sold=columns.count(), best=RANKED, now=columns.last("n")),
            (0, LEAST, (), None),
            _struct,
            st.builds(numbered, st.integers(0, 2), st.text()),
        ),
    ],
    ids=[
        "count",
        "sum",
        "sum-int",
        "mean",
        "min",
        "max",
        "min-int",
        "max-int",
        "last",
        "max_by-int",
        "max_by",
        "struct",
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in add")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_column_fold_equals_the_loop_bit_for_bit(
    fold: ColumnFold,
    init: object,
    step: Callable[[Any, Any], tuple[object, object]],
    values: st.SearchStrategy[Any],
    data: st.DataObject,
) -> None:
    """I5: so that what a replay answers does not depend on how it cuts batches."""
    batches = data.draw(batches_of(values))
    results, states, dead = run(fold, batches)
    expected, final = by_record(init, step, batches)
    assert bits(results) == bits(expected)
    assert {k: bits(s) for k, s in states.items()} == {k: bits(s) for k, s in final.items()}
    assert dead.letters == []


@pytest.mark.filterwarnings("ignore:.*encountered in add")
@settings(max_examples=40)
@given(batches_of(FLOATS))
def test_how_records_fall_into_batches_does_not_matter(batches: list[list[Entry]]) -> None:
    """I5: one record a batch, as they came, or all in one."""
    entries = [entry for batch in batches for entry in batch]
    for fold in (columns.sum(), columns.mean(), columns.min(), columns.max()):
        singly = run(fold, [[entry] for entry in entries])
        for cut in (batches, [entries] if entries else []):
            assert bits(run(fold, cut)[0]) == bits(singly[0])
            assert list(map(bits, run(fold, cut)[1].values())) == list(
                map(bits, singly[1].values())
            )


@pytest.mark.parametrize("width", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("fold", [columns.min(), columns.max()])
def test_zeros_of_both_signs_are_the_same_in_a_wide_batch_as_alone(
    fold: ColumnFold, width: int
) -> None:
    """I5: vector instructions and scalar ones must agree."""
    first: list[list[Entry]] = [[(key, 0.0 if key % 2 else -0.0) for key in range(width)]]
    second: list[list[Entry]] = [[(key, -0.0 if key % 2 else 0.0) for key in range(width)]]
    wide = run(fold, first + second)
    narrow = run(fold, [[entry] for batch in first + second for entry in batch])
    assert bits(wide[0]) == bits(narrow[0])


# -- values of records


def test_a_field_is_taken_out_of_records() -> None:
    results, _, dead = run(columns.sum("v", "int64"), [[(0, {"v": 2}), (0, {"v": 3, "w": 9})]])
    assert (results, dead.letters) == ([2, 5], [])


class Priced(NamedTuple):
    v: int


class Sold(Struct):
    v: int


def test_a_field_is_an_item_of_a_dict_or_an_attribute_of_an_object() -> None:
    values: list[object] = [{"v": 1}, Priced(2), Sold(3), {"v": 4}]
    fold = columns.sum("v", "int64")
    together = run(fold, [[(0, value) for value in values]])[0]
    assert together == run(fold, [[(0, value)] for value in values])[0] == [1, 3, 6, 10]


def test_the_last_value_keeps_its_type() -> None:
    """I4: no number becomes numpy's on the way."""
    values: list[object] = [1, 1.0, True, "1", None, (1,), [1], {"a": 1}]
    results, states, _ = run(columns.last(), [[(0, value) for value in values]])
    assert bits(results) == bits(values)
    assert bits([*states.values()]) == bits([({"a": 1},)])


@pytest.mark.parametrize(
    ("fold", "bad", "says"),
    [
        (columns.sum("v"), {"w": 1}, "KeyError: 'v'"),
        (columns.sum("v"), {"v": None}, "None is not a number"),
        (columns.sum("v"), {"v": True}, "True is not a number"),
        (columns.sum("v"), {"v": "1"}, "'1' is not a number"),
        (columns.sum("v"), 7, "TypeError"),
        (columns.sum("v", "int64"), {"v": 1.5}, "1.5 is not an int"),
        (columns.sum("v", "int64"), {"v": 1 << 63}, "OverflowError"),
        (columns.mean("v"), {"v": 10**400}, "OverflowError"),
        (columns.max_by("v"), {"v": math.nan}, "NaN is neither"),
        (columns.max_by("v", of="w"), {"v": 3}, "KeyError: 'w'"),
        (columns.struct(n=columns.count(), v=columns.max("v")), {"v": "1"}, "is not a number"),
    ],
)
def test_a_value_that_does_not_fit_is_set_aside_alone(
    fold: ColumnFold, bad: object, says: str
) -> None:
    """I5: and says why."""
    good = {"v": 2, "w": 3}
    results, states, dead = run(fold, [[(0, good), (0, bad), (1, good), (0, good)]])
    alone = run(fold, [[(0, good), (1, good), (0, good)]])
    assert (bits(results), states) == (bits(alone[0]), alone[1])
    ((name, value, reason, trace),) = dead.letters
    assert (name, value) == ("fold", bad)
    assert says in reason and "Traceback" in trace


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_integers_that_leaves_int64_is_an_error_and_not_a_wrong_number(sign: int) -> None:
    """I5: only the key concerned, which keeps its state."""
    most = sign * ((1 << 63) - 1)
    batches: list[list[Entry]] = [[(0, most), (1, 5)], [(0, 2 * sign), (1, 6)], [(0, -sign)]]
    results, states, dead = run(columns.sum(dtype="int64"), batches)
    assert results == [most, 5, 11, most - sign]
    assert [value for _, value, _, _ in dead.letters] == [2 * sign]
    assert "leaves the range of int64" in dead.letters[0][2]
    assert states == {codec.encode(0): (most - sign,), codec.encode(1): (11,)}


# -- a user's own column step


def own(step: ColumnStep) -> ColumnFold:
    return ColumnFold((0,), step, ("int64",), "int64")


def _refuses_seven(states: columns.Columns, values: columns.Column) -> Any:
    if (values == 7).any():
        raise RuntimeError("seven")
    after = operator.add(states[0], values)
    return (after,), after


def test_the_record_at_which_a_column_step_fails_is_found_and_the_others_are_answered() -> None:
    """I5: and no state is changed twice by asking again."""
    batches: list[list[Entry]] = [[(0, 1), (1, 7), (2, 3), (1, 4), (0, 5)]]
    results, states, dead = run(own(_refuses_seven), batches)
    assert results == [1, 3, 4, 6]
    assert [(value, reason) for _, value, reason, _ in dead.letters] == [(7, "RuntimeError: seven")]
    assert set(states.values()) == {(3,), (4,), (6,)}


def test_a_worker_is_heard_of_before_each_call_of_a_column_step() -> None:
    """A round that fails is asked for again, row by row."""
    heard: list[str] = []

    def step(states: columns.Columns, values: columns.Column) -> Any:
        heard.append(f"step of {len(values)}")
        return _refuses_seven(states, values)

    errors = Guard(
        "fold",
        "skip",
        Dead(),
        Counter(),
        keepalive=Keepalive(lambda: heard.append("alive"), due=True),
    )
    logic = Columnar(own(step), Sealing(PLAIN), errors)
    batch, none = records([1, 7, 3], keys=[0, 1, 0]), calls()
    logic.apply(store(layout=own(step).layout), bins_of(batch), Rows.of(batch, 0), none)
    assert heard == [
        "alive", "step of 2", "alive", "step of 1", "alive", "step of 1", "alive", "step of 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "step",
    [
        lambda states, values: ((states[0][:1],), values),
        lambda states, values: ((states[0],), values[:0]),
        lambda states, values: ((states[0], states[0]), values[:-1]),
        lambda states, values: values,
        lambda states, values: None,
    ],
)
def test_a_step_that_returns_nonsense_changes_no_state(step: ColumnStep) -> None:
    """I4."""
    results, states, dead = run(own(step), [[(0, 1), (1, 2)]])
    assert (len(results) + len(dead.letters), len(states)) == (2, len(results))


def _half(states: columns.Columns, values: columns.Column) -> Any:
    after = operator.truediv(operator.add(states[0] * 2, values), 2)
    return (after,), after


def test_a_state_that_its_column_cannot_hold_is_refused_and_not_cut() -> None:
    """I4: 0.5 as int64 would be 0 in the next batch; 1.0 is 1."""
    results, states, dead = run(own(_half), [[(0, 2), (1, 1), (2, 4)], [(0, 2), (1, 2)]])
    assert results == [1.0, 2.0, 2.0, 1.0]
    assert bits(tuple(states.values())) == bits(((2,), (2,), (1,)))
    ((_, value, reason, _),) = dead.letters
    assert value == 1
    assert "ValueError: the state 0.5 would become 0 in a column of int64" in reason


@pytest.mark.parametrize(
    ("dtype", "state", "says"),
    [
        ("int8", 300, "OverflowError"),
        ("int64", math.nan, "ValueError"),
        ("int64", "5", "the state '5' would become 5"),
        ("int64", None, "TypeError"),
        ("float64", (1 << 53) + 1, "would become 9007199254740992.0"),
        ("float32", 0.1, "would become 0.10000000149011612"),
        ("int64", [5, 6], "ValueError"),
    ],
)
def test_no_state_is_bent_to_fit_its_column(dtype: str, state: object, says: str) -> None:
    def step(states: columns.Columns, values: columns.Column) -> Any:
        return (np.array([state] * len(values), "object"),), values

    results, states, dead = run(ColumnFold((0,), step, (dtype,), "int64"), [[(0, 1)]])
    assert (results, states) == ([], {})
    assert says in dead.letters[0][2]


@pytest.mark.parametrize(
    ("dtype", "state"), [("float64", math.nan), ("float64", 7), ("int8", True), ("float32", 0.5)]
)
def test_what_a_column_holds_exactly_may_be_returned_as_another_type(
    dtype: str, state: object
) -> None:
    def step(states: columns.Columns, values: columns.Column) -> Any:
        return (np.array([state] * len(values), "object"),), values

    _, states, dead = run(ColumnFold((0,), step, (dtype,), "int64"), [[(0, 1)]])
    expected = np.array([state], dtype).tolist()
    assert (dead.letters, bits(states[codec.encode(0)])) == ([], bits(tuple(expected)))


@pytest.mark.parametrize(
    ("init", "dtypes"),
    [
        ((0.5,), ("int64",)),
        ((0, 0), ("int64",)),
        ((None,), ("float64",)),
        ((1.5,), ("longdouble",)),
    ],
)
def test_a_fold_whose_init_does_not_fit_its_columns_is_refused(
    init: tuple[object, ...], dtypes: tuple[str, ...]
) -> None:
    with pytest.raises(SetupError, match="does not fit its dtypes"):
        ColumnFold(init, _half, dtypes, "int64")


def test_a_struct_without_folds_is_refused() -> None:
    with pytest.raises(SetupError, match="give folds over columns by name"):
        columns.struct()


def test_a_fold_without_a_column_of_states_is_refused() -> None:
    with pytest.raises(SetupError, match="it has no column of states"):
        ColumnFold((), _half, (), "int64")


def test_an_integer_column_of_any_width_takes_no_fraction() -> None:
    results, _, dead = run(columns.max(dtype="int32"), [[(0, 1.5), (0, 2)]])
    assert results == [2]
    assert "1.5 is not an int" in dead.letters[0][2]


def test_a_column_step_may_keep_what_it_was_given_without_harm() -> None:
    """I4: it gets columns of its own, and results that do not change later."""
    kept: list[columns.Column] = []

    def step(states: columns.Columns, values: columns.Column) -> Any:
        after = operator.add(states[0], values)
        kept.append(after)
        return (after,), after

    results, states, _ = run(own(step), [[(0, 1)], [(0, 2)]])
    for column in kept:
        column[...] = 99
    assert results == [1, 3] and states == {codec.encode(0): (3,)}


# -- in a flow


def test_a_column_fold_moves_with_its_bins_like_any_other(start: Start) -> None:
    """I2, I4: the state of one worker is what the other goes on with."""
    flow, sink = Flow("f", bins=1), ListSink()
    source = flow.source(ListSource([[(ms, {"k": ms % 3, "v": ms}) for ms in range(1, 31)]]))
    source.key_by(lambda r: r["k"]).fold("sum", columns.sum("v", "int64")).sink(sink)
    moves = [
        MoveBins(f"m{ms}", (Bin(0), Bin(1)), WorkerId(worker), from_millis(ms), "all-at-once")
        for ms, worker in ((10, 1), (20, 0))
    ]
    start(flow, commands=moves).run()
    totals, expected = [0, 0, 0], []
    for ms in range(1, 31):
        totals[ms % 3] += ms
        expected.append((ms, totals[ms % 3]))
    by_time = sorted(sink.results, key=lambda result: result.time)
    assert [(to_millis(r.time), r.value) for r in by_time] == expected
    assert {r.worker for r in by_time if 10 <= to_millis(r.time) < 20} == {1}
    assert {r.worker for r in by_time if to_millis(r.time) >= 20} == {0}


def test_a_column_fold_ends_the_flow_when_asked(start: Start) -> None:
    flow = Flow("f", bins=1)
    source = flow.source(ListSource([[(1, {"k": 0})]]))
    keyed = source.key_by(lambda r: r["k"])
    keyed.fold("sum", columns.sum("v"), on_error="fail").sink(ListSink())
    with pytest.raises(MeanderError, match=r"operator 'sum'.*offset 0.*KeyError"):
        start(flow).run()
