"""Results of windows have the last times of their windows, so windows of results hold them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from meander import (
    Flow,
    KafkaSink,
    KafkaSource,
    KeyedStream,
    WindowContext,
    columns,
    field,
    hopping,
    session,
    sliding,
    tumbling,
)
from meander.dataflow.api.windowed import WindowedStream
from meander.dataflow.windows.window import Windows
from meander.state.times.time import from_millis
from meander.testing import TestFlow


def fold(windowed: WindowedStream[Any, Any], **options: Any) -> KeyedStream[Any, Any]:
    return windowed.fold(int, lambda n, record: n + 1, merge=lambda a, b: a + b, **options)


def fold_columns(windowed: WindowedStream[Any, Any]) -> KeyedStream[Any, Any]:
    return windowed.fold(columns.count())


def process(windowed: WindowedStream[Any, Any]) -> KeyedStream[Any, Any]:
    def closed(context: WindowContext[str], n: int) -> None:
        context.emit({"start": context.window.start, "end": context.window.end})

    return windowed.process(int, lambda c, n, record: n + 1, closed, merge=lambda a, b: a + b)


def top(windowed: WindowedStream[Any, Any]) -> KeyedStream[Any, Any]:
    return windowed.fold(columns.count()).top(1).key_by(lambda result: "key")


@pytest.mark.parametrize("late", [0, 10])
@pytest.mark.parametrize(
    ("windows", "results"),
    [
        (tumbling, fold), (tumbling, fold_columns), (tumbling, process), (tumbling, top),
        (partial(hopping, every=20), fold_columns), (session, fold), (session, fold_columns),
        (sliding, fold),
    ],
)  # fmt: skip
def test_results_of_minutes_count_in_their_hour(windows: Any, results: Any, late: int) -> None:
    def listed(results: list[Any], result: Any) -> list[Any]:
        return [*results, [result["start"], result["end"]]]

    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    minutes = results(records.window("minute", windows(60, late=late)))
    minutes.map(lambda result: [result["start"], result["end"]]).sink(KafkaSink("minutes"))
    hours = minutes.window("hour", tumbling(3600, late=late)).fold(list, listed)
    hours.sink(KafkaSink("out"), "write")
    hours.side("late").sink(KafkaSink("late"), "write late")
    with TestFlow(flow, partitions=1) as run:
        # Both ends of an hour, and a record out of order.
        own = 59_000, 61_000, 3_480_000, 3_599_999, 3_600_000, 3_595_000, 7_199_999, 20_000_000
        run.feed("in", *({"at": at} for at in own))
        run.run()
        given: list[Any] = run.values("minutes")
        found: list[Any] = run.values("out")
        assert run.values("late") == []
    of_hours = [(hour["start"], end) for hour in found for _, end in hour["value"]]
    assert sorted(end for _, end in of_hours) == sorted(end for _, end in given)
    assert all(start < end <= start + 3_600_000 for start, end in of_hours)
    assert len({start for start, _ in of_hours}) > 2


@pytest.mark.parametrize("windows", [tumbling(0.1), session(0.001), sliding(0.001)], ids=str)
@pytest.mark.parametrize("results", [fold, fold_columns])
def test_a_window_holds_all_records_of_its_last_millisecond(windows: Windows, results: Any) -> None:
    """An idle advance divides a millisecond into times before and behind it."""
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    results(records.window("w", windows)).sink(KafkaSink("out"), "write")
    records.sink(KafkaSink("seen"), "write records")
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", {"at": 99})
        run.run_until_idle()
        run.feed("in", {"at": 99}, {"at": 100})
        run.run()
        _, second, _ = (one.time for one in run.results("seen"))
        assert from_millis(99) < second < from_millis(100)
        found: list[Any] = run.values("out")
    assert [one["value"] for one in found] == [2, 1]


def test_a_result_so_far_counts_where_it_is_given() -> None:
    flow = Flow("windows")
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: "key")
    sums = fold(records.window("long", tumbling(0.1, late=0.02)), emit=0.04)
    sums.window("short", tumbling(0.05, late=0.02)).reduce(lambda a, b: b).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *({"at": at} for at in (10, 50, 300)))
        run.run()
        results: list[Any] = run.values("out")
    # The results so far of 10 and 50 are from 39 and 79; that of the close is from 99.
    assert [(one["start"], one["value"]["value"]) for one in results][:2] == [(0, 1), (50, 2)]
