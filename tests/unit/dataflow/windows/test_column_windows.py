"""A window gives the same results by columns as record by record, also where records fail."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from meander import (
    Flow,
    KafkaSink,
    KafkaSource,
    SetupError,
    columns,
    count,
    field,
    hopping,
    session,
    sliding,
    tumbling,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.windows.aggregation import WindowColumns
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.dataflow.windows.logic import Emission
from meander.dataflow.windows.window import Counts, Hopping, Sessions, Windows
from meander.testing import TestFlow

TIMES = [0, 12, 5, 31, 30, 3, 60, 44, 90, 91, 140, 20, 141]


def ran(
    windows: Windows, fold: ColumnFold, records: list[dict[str, Any]], in_columns: bool
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the results, the late records and the dead letters."""
    flow = Flow("columns", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: record["k"])
    windowed = keyed.window("w", windows)
    if in_columns:
        made = windowed.fold(fold)
    else:
        made = windowed._with("w", WindowColumns(fold), True, Emission())
    made.sink(KafkaSink("out"), "write")
    made.side("late").sink(KafkaSink("late"), "write late")
    is_columnar = isinstance(Plan(flow).keyed[0].logic, ColumnarWindows)
    assert is_columnar == in_columns
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *records)
        run.run()
        assert run.states("w") == {}, "a window that has closed leaves no state"
        letters = [letter.value for letter in run.dead_letters]
        assert run.counters["window_late"] == len(run.values("late"))
        return run.values("out"), run.values("late"), letters


def records_of(values: list[Any]) -> list[dict[str, Any]]:
    return [
        {"k": n % 2, "at": at, "v": value}
        for n, (at, value) in enumerate(zip(TIMES, values, strict=True))
    ]


NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
OVERLAPPING = hopping(0.02, every=0.006, late=0.005)
WINDOWS = [
    tumbling(0.02), tumbling(0.02, late=0.01, offset=0.003), OVERLAPPING,
    session(0.01), session(0.01, longest=0.025, late=0.03), session(0.004, late=0.01),
]  # fmt: skip


FOLDS = [
    columns.count(), columns.sum("v"), columns.sum("v", "int64"), columns.min("v"),
    columns.max("v", "int64"), columns.mean("v"), columns.last("v"), columns.approx_distinct("v"),
    columns.quantiles(0.5, 1.0, of="v"), columns.max_by("v", of="at"), columns.max_by("v"),
    columns.struct(n=columns.count(), best=columns.max_by("v", "at", "int64")),
    columns.struct(n=columns.struct(n=columns.count(), last=columns.last()), t=columns.sum("v")),
]  # fmt: skip
CASES = [
    (windows, fold)
    for n, fold in enumerate(FOLDS)
    for windows in (WINDOWS[n % 3], WINDOWS[3 + n % 3])
]


@pytest.mark.parametrize(("windows", "fold"), CASES, ids=lambda one: getattr(one, "name", str(one)))
def test_results_in_columns_equal_those_of_single_records(
    windows: Windows, fold: ColumnFold
) -> None:
    found = ran(windows, fold, records_of(NUMBERS), in_columns=True)
    assert found == ran(windows, fold, records_of(NUMBERS), in_columns=False)
    assert found[0]


@pytest.mark.parametrize("fold", [columns.mean("v"), columns.last("v")], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "windows",
    [
        hopping(0.02, every=0.005), OVERLAPPING,
        hopping(0.02, every=0.0151, late=0.013, offset=0.002),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_records_out_of_order_count_for_their_open_windows_alone(
    windows: Windows, fold: ColumnFold, seed: int
) -> None:
    rng, now, records = random.Random(seed), 0, list[dict[str, Any]]()
    for n in range(80):
        now += rng.choice([0, 1, 2, 5])
        at = max(0, now - rng.choice([0, 0, 0, 3, 9, 30]))
        records.append({"k": n % 3, "at": at, "v": rng.randrange(10)})
    found = ran(windows, fold, records, in_columns=True)
    assert found == ran(windows, fold, records, in_columns=False)
    assert found[0] and found[1]


def test_panes_whose_sum_overflows_are_one_dead_letter() -> None:
    most = (1 << 63) - 1
    records = [{"k": k, "at": at, "v": v} for k, at, v in [(0, 5, most), (0, 15, 1), (1, 15, 2)]]
    fold = columns.sum("v", "int64")
    results, _, letters = ran(hopping(0.02, every=0.01), fold, records, in_columns=True)
    assert [(one["key"], one["start"], one["value"]) for one in results] == [
        (0, -10, most), (1, 0, 2), (0, 10, 1), (1, 10, 2),
    ]  # fmt: skip
    assert letters == [{"key": 0, "start": 0, "end": 20, "state": [(most,), (1,)]}]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_a_record_that_fails_changes_no_window(windows: Windows) -> None:
    most = 3 if windows == OVERLAPPING else 1 << 62
    values = [3, "x", most, 1, most, 9, 2, 6, True, 3, 5, most, most]
    found = ran(windows, columns.sum("v", "int64"), records_of(values), in_columns=True)
    assert found == ran(windows, columns.sum("v", "int64"), records_of(values), in_columns=False)
    assert {"x", True} <= {letter["v"] for letter in found[2]}


@pytest.mark.parametrize("fold", [*FOLDS[:3], *FOLDS[5:]], ids=lambda fold: fold.name)
def test_a_record_between_sessions_merges_their_states(fold: ColumnFold) -> None:
    # 28 merges the sessions of 20 and 35, then 10 this one with that of 0; 90 stays alone.
    records = [{"k": 0, "at": at, "v": 100 - at} for at in (0, 20, 35, 90, 28, 10)]
    windows = session(0.011, late=0.2)
    found = ran(windows, fold, records, in_columns=True)
    assert found == ran(windows, fold, records, in_columns=False)
    assert [(one["start"], one["end"]) for one in found[0]] == [(0, 46), (90, 101)]
    values = {"count": 5, "sum": 407, "mean": 81.4, "last": 90, "approx_distinct": 5}
    assert values.get(fold.name, found[0][0]["value"]) == found[0][0]["value"]


def test_a_late_session_closes_in_the_span_of_its_record() -> None:
    records = [{"k": "b", "at": 82}, {"k": "a", "at": 5}]
    results, late, _ = ran(session(0.08), columns.count(), records, in_columns=True)
    assert [(one["key"], one["end"]) for one in results] == [("a", 85), ("b", 162)]
    assert late == []


def spread(states: Any, values: Any) -> Any:
    least, most = np.minimum(states[0], values), np.maximum(states[1], values)
    return (least, most), most - least


SPREAD = ColumnFold((1e9, -1e9), spread, ("float64", "float64"), "float64", "v")


def test_a_fold_of_the_user_gives_its_state_or_its_result() -> None:
    records = [{"k": 0, "at": at, "v": at % 7} for at in (0, 3, 9, 10, 40)]
    first, *_ = ran(tumbling(0.02), SPREAD, records, in_columns=True)[0]
    assert first["value"] == [0.0, 3.0]
    fold = ColumnFold(
        SPREAD.init, spread, SPREAD.dtypes, "float64", "v", result=lambda s: np.subtract(s[1], s[0])
    )
    first, *_ = ran(tumbling(0.02), fold, records, in_columns=True)[0]
    assert first["value"] == 3.0


def test_a_window_whose_result_fails_is_a_dead_letter_with_its_state() -> None:
    def result(states: Any) -> Any:
        if (states[0] > 1).any():
            raise ValueError("too many")
        return states[0]

    fold = ColumnFold((0,), columns.count().step, ("int64",), "object", result=result)
    records = [{"k": 0, "at": at} for at in (0, 1, 10, 20)]
    results, _, letters = ran(tumbling(0.01), fold, records, in_columns=True)
    assert [one["start"] for one in results] == [10, 20]
    assert letters == [{"key": 0, "start": 0, "end": 10, "state": (2,)}]


def test_a_window_whose_close_fails_is_a_dead_letter_with_its_state() -> None:
    def on_close(context: Any, state: list[int]) -> None:
        raise ValueError("never")

    flow = Flow("closes", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: record["k"])
    made = keyed.window("w", tumbling(0.01)).process(
        list, lambda _, state, record: [*state, record["at"]], on_close
    )
    made.sink(KafkaSink("out"), "write")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"k": "a", "at": 3}, {"k": "a", "at": 4})
        run.run()
        (letter,) = run.dead_letters
        assert letter.value == {"key": "a", "start": 0, "end": 10, "state": [3, 4]}


@pytest.mark.parametrize("windows", [sliding(0.02), count(3)], ids=str)
def test_other_windows_take_folds_over_columns_record_by_record(windows: Windows) -> None:
    flow = Flow("others", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda _: 0)
    keyed.window("w", windows).fold(columns.mean("v")).sink(KafkaSink("out"), "write")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at, "v": at} for at in (10, 20, 30)))
        run.run()
        results: list[Any] = run.values("out")
        assert results[-1]["value"] == (25.0 if windows == sliding(0.02) else 20.0)


def _earliest(states: Any, values: Any, event_ms: Any) -> Any:
    return (np.minimum(states[0], event_ms),), event_ms


def _with_own_time(context: Any, state: int, result: Any) -> int:
    context.emit((result["value"], context.event_ms))
    return state


@pytest.mark.parametrize("emit", ["closed", "each"])
@pytest.mark.parametrize("windows", [sliding(1), count(3)], ids=str)
def test_a_fold_that_uses_own_times_gets_those_of_its_records(windows: Windows, emit: Any) -> None:
    earliest = columns.ColumnFold(
        (10**9,), _earliest, ("int64",), "int64", of="at", uses=("event_ms",)
    )
    flow = Flow("earliest", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda _: 0)
    results = keyed.window("w", windows).fold(earliest, emit=emit)
    with_own = results.process("own", int, _with_own_time, uses=["event_ms"])
    with_own.sink(KafkaSink("out"), "write")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (100, 400, 900)))
        run.run()
        found: list[Any] = run.values("out")
    is_last_alone = isinstance(windows, Counts) and emit == "closed"
    assert found == [[100, at] for at in (100, 400, 900)[-1 if is_last_alone else 0 :]]


def windowed(windows: Windows) -> Any:
    keyed = Flow("wrong").source(KafkaSource("in")).key_by(lambda record: record["k"])
    return keyed.window("w", windows)


@pytest.mark.parametrize(
    ("define", "cause"),
    [
        (lambda: windowed(session(1)).fold(SPREAD), "cannot merge"),
        (lambda: windowed(tumbling(1)).fold(columns.count(), int), "another step or merge"),
        (lambda: windowed(tumbling(1)).fold(int), "an init and a step"),
        (lambda: columns.quantiles(1.5), "fractions"),
        (lambda: columns.quantiles(), "fractions"),
    ],
)  # fmt: skip
def test_folds_that_cannot_work_are_refused(define: Any, cause: str) -> None:
    with pytest.raises(SetupError, match=cause):
        define()


def test_windows_share_panes_where_they_overlap_and_states_merge_in_any_order() -> None:
    def in_panes(windows: Windows, fold: ColumnFold) -> bool:
        assert isinstance(windows, Hopping | Sessions)
        return ColumnarWindows(windows, fold).in_panes

    folds = {fold.name: fold for fold in FOLDS}
    shared = [name for name, fold in folds.items() if in_panes(hopping(4, every=2), fold)]
    assert shared[:5] == ["count", "sum", "min", "max", "mean"]
    assert not any(in_panes(hopping(4, every=2), columns.struct(n=columns.count(), v=one)) for one
                   in (columns.last("v"), columns.max_by("v")))  # fmt: skip
    assert not any(in_panes(one, columns.count()) for one in (tumbling(4), session(4)))


def test_states_show_the_window_and_the_key() -> None:
    flow = Flow("shown", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: record["k"])
    keyed.window("w", tumbling(0.01)).fold(columns.count()).sink(KafkaSink("out"), "write")
    keyed.window("s", session(0.01)).fold(columns.count()).sink(KafkaSink("out"), "write s")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"k": "a", "at": 13}, {"k": "a", "at": 14})
        while not (run.states("w") and run.states("s")):
            run.act()
        assert run.states("w") in ({(10, "a"): 1}, {(10, "a"): 2})
        state: Any
        ((key, state),) = run.states("s").items()
        assert (key, state[0]) == ((0, "a"), 13)
