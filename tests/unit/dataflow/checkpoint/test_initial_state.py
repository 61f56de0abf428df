"""A flow starts from states that it is given as if its own records had left them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from meander import Flow, columns
from meander.connectors.kafka.source.values import plain
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.initial_state import InitialStates
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Join
from meander.schemas.errors import SetupError
from meander.state.encoding import codec
from meander.state.times.time import from_millis
from meander.testing import TestFlow

States = Mapping[str, Mapping[object, object]]


def counting(words: list[list[tuple[int, object]]]) -> tuple[Flow, ListSink]:
    flow, sink = Flow("words", bins=4), ListSink()
    keyed = flow.source(ListSource(words)).key_by(lambda word: word)
    keyed.fold("n", lambda: 0, lambda n, word: (n + 1, (word, n + 1))).sink(sink)
    return flow, sink


WORDS: list[list[tuple[int, object]]] = [
    [(time, f"w{time * 7 % 50}") for time in range(400)],
    [(time, f"w{time * 11 % 60}") for time in range(400)],
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [1, 3])
def test_a_flow_goes_on_where_another_has_stopped(workers: int, seed: int) -> None:
    whole, expected = counting(WORDS)
    with TestFlow(whole, workers=1) as run:
        run.run()
    before, _ = counting([lane[:150] for lane in WORDS])
    with TestFlow(before, workers=1) as run:
        run.run()
        left = run.states("n")
    after, found = counting([lane[150:] for lane in WORDS])
    with TestFlow(after, workers, seed, commands=[Join()], states={"n": left}) as run:
        run.run()
    late = [r.value for r in expected.results if r.place[0] >= from_millis(150)]
    assert sorted(map(str, (r.value for r in found.results))) == sorted(map(str, late))


def test_no_record_is_read_before_all_states_are_there() -> None:
    flow, _ = counting([[(1, "a")], [(1, "b")]])
    with TestFlow(flow, workers=2, states={"n": {f"{i}": i for i in range(5000)}}) as run:
        done = [worker.restoring() for worker in run.workers]
        assert all(read == 0 < total for read, total in done)
        while loading := [worker for worker in run.workers if worker.loading]:
            assert not any(worker.counters["read"] for worker in loading)
            run.act()
        assert all(read == total for read, total in (w.restoring() for w in run.workers))
        run.run_until_idle()
        assert len(run.states("n")) == 5002


def test_states_of_an_operator_that_there_is_not_are_refused() -> None:
    flow, _ = counting([[]])
    with pytest.raises(
        SetupError, match="operator 'm': the flow has no stateful operator of that name; .* n"
    ):
        TestFlow(flow, states={"m": {"a": 1}})


class Upper:
    name = "upper"

    def encode(self, state: object, /) -> bytes:
        assert isinstance(state, str)
        return state.upper().encode()

    def decode(self, data: bytes, /) -> object:
        return data.decode().lower()


def initial(fold: ColumnFold | object, own: bool = False) -> InitialStates:
    flow = Flow("f")
    keyed = flow.source(ListSource([[]])).key_by(lambda value: value)
    if isinstance(fold, ColumnFold):
        keyed.fold("op", fold)
    else:
        how = {"codec": Upper()} if own else {}
        keyed.fold("op", lambda: fold, lambda state, _: (state, None), **how)  # type: ignore[call-overload]
    return InitialStates(Plan(flow).keyed[0], now_ms=0)


@pytest.mark.parametrize(
    ("fold", "given", "kept"),
    [
        (columns.mean(), (2, 5), (2, 5.0)),
        (columns.count(), 7, 7),
        (columns.count(), (7,), 7),
        (columns.sum(), 7, 7.0),
        (columns.max(), (1, 3), (1, 3.0)),
        (columns.last(), {"any": ["thing"]}, ({"any": ["thing"]},)),
        (0, (1, "a", [2]), (1, "a", [2])),
    ],
)
def test_a_state_is_written_as_the_operator_itself_would(
    fold: object, given: object, kept: object
) -> None:
    (data,) = initial(fold).states(["k"], [given])
    assert data == codec.encode(kept)


@pytest.mark.parametrize(
    ("fold", "state", "says"),
    [
        (columns.mean(), (2, 5, 7), "it has 3 values, and the fold's columns are int64, float64"),
        (columns.mean(), (2.5, 5.0), "2.5 would become 2 in a column of int64"),
        (columns.count(), "many", "its state does not fit"),
        (0, None, "its state is null"),
        (0, object(), "of type builtins.object"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_its_key(
    fold: object, state: object, says: str
) -> None:
    good = (1, 1.0) if isinstance(fold, ColumnFold) and len(fold.dtypes) == 2 else 1
    with pytest.raises(SetupError, match="operator 'op', key 'N1': .*" + says):
        initial(fold).states(["N0", "N1"], [good, state])


def test_keys_are_encoded_as_records_keys_are_and_null_is_none() -> None:
    keys = ["a", 7, ("a", 7)]
    assert initial(0).keys(keys) == codec.encode_keys(keys)
    with pytest.raises(SetupError, match="operator 'op', a key: it is null"):
        initial(0).keys(["a", None])


def test_what_an_own_codec_has_encoded_is_taken_as_it_is_and_nothing_else() -> None:
    own = initial("", own=True)
    assert own.encoded(["k"], [b"ABC"]) == [b"ABC"] == own.states(["k"], ["abc"])
    for data in (b"abc", b"\xff", "ABC"):
        with pytest.raises(SetupError, match="key 'N1': the codec has not written its state"):
            own.encoded(["N0", "N1"], [b"ABC", data])


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (pa.int32(), [1, None], [1, None]),
        (pa.float32(), [0.5], [0.5]),
        (pa.binary(), [b"a"], [b"a"]),
        (pa.list_(pa.struct({"a": pa.int64()})), [[{"a": 1}, None], None], [[(1,), None], None]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [[("a", [1])]], [{"a": [1]}]),
        (pa.struct({"a": pa.struct({"b": pa.string()})}), [{"a": {"b": "x"}}], [(("x",),)]),
        (pa.struct({"a": pa.int64()}), [{"a": None}, None], [(None,), None]),
        (pa.timestamp("us", tz="Europe/Berlin"), [MOMENT, None], [MOMENT, None]),
        (pa.timestamp("us"), [MOMENT.replace(tzinfo=None)], [MOMENT.replace(tzinfo=None)]),
        (pa.date32(), [date(2026, 1, 2)], [date(2026, 1, 2)]),
        (pa.decimal128(5, 2), [Decimal("1.50")], [Decimal("1.50")]),
    ],
)  # fmt: skip
def test_columns_become_plain_values_that_the_codec_takes(
    kind: pa.DataType, given: list[object], found: list[object]
) -> None:
    values = plain(pa.array(given, kind))
    assert values == found
    assert [codec.decode(codec.encode(value)) for value in values] == found
