"""A function that asks sees the own time of each record beside its logical time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.schemas.errors import SetupError
from meander.testing import TestFlow

Shown = list[tuple[object, int, int]]


def show(context: Any, state: int, value: object) -> int:
    context.emit([value, context.time_ms, context.event_ms])
    return state


def shown(run: TestFlow) -> list[object]:
    return run.values("out")


def flow_of(uses: tuple[str, ...] = ("event_ms",)) -> Flow:
    flow = Flow("own", bins=2)
    stream = flow.source(KafkaSource("in")).map(lambda v: v).key_by(lambda v: v % 3)
    stream.process("p", lambda: 0, show, uses=uses).sink(KafkaSink("out"))
    return flow


def test_a_late_record_has_its_own_time_and_a_later_logical_time() -> None:
    with TestFlow(flow_of(), workers=2, partitions=1) as run:
        for value, ms in ((1, 500), (2, 300), (3, 700), (4, 650)):
            run.feed("in", value, ms=ms)
        run.run()
    assert shown(run) == [[1, 500, 500], [2, 500, 300], [3, 700, 700], [4, 700, 650]]


def test_a_record_of_the_future_has_its_own_time_and_an_earlier_logical_time() -> None:
    with TestFlow(flow_of(), partitions=1) as run:
        future = run.sim.clock.now_ms() + 60_000
        run.feed("in", 1, ms=500)
        run.feed("in", 2, ms=future)
        run.run()
    assert shown(run) == [[1, 500, 500], [2, 500, future]]


def test_a_result_keeps_the_own_time_of_its_record_and_a_timer_has_its_own() -> None:
    flow = Flow("own", bins=2)

    def first(context: Any, state: int, value: int) -> int:
        context.emit(value)
        context.timer(context.time_ms + 100)
        return state

    def ring(context: Any, state: int) -> int:
        context.emit(-context.event_ms)
        return state

    stream = flow.source(KafkaSource("in")).key_by(lambda v: 0)
    results = stream.process("first", lambda: 0, first, ring, uses=["event_ms"])
    results.key_by(lambda v: 1).process("second", lambda: 0, show, uses=["event_ms"]).sink(
        KafkaSink("out")
    )
    with TestFlow(flow, workers=2, partitions=1) as run:
        run.feed("in", 1, ms=500)
        run.feed("in", 2, ms=300)
        run.run()
    assert shown(run) == [[1, 500, 500], [2, 500, 300], [-600, 600, 600]]


def test_records_keep_their_own_times_in_a_loop_and_through_flat_map() -> None:
    flow = Flow("own", bins=2)

    def body(stream: Any) -> Any:
        moved = stream.key_by(lambda v: v[0]).map(lambda v: [v[0], v[1] - 1])
        return moved.split(lambda v: "again" if v[1] else "done", "again", "done")

    numbers = flow.source(KafkaSource("in")).flat_map(lambda v: [[v, 1], [v, 3]])
    numbers.iterate("loop", body).key_by(lambda v: 0).process(
        "p", lambda: 0, show, uses=["event_ms"]
    ).sink(KafkaSink("out"))
    with TestFlow(flow, workers=2, partitions=1) as run:
        run.feed("in", 1, ms=500)
        run.feed("in", 2, ms=300)
        run.run()
    assert sorted(map(str, shown(run))) == sorted(
        map(str, [[[1, 0], 500, 500]] * 2 + [[[2, 0], 500, 300]] * 2)
    )


def test_a_fold_over_columns_gets_a_column_of_own_times() -> None:
    def latest(states: Any, values: Any, own: Any) -> Any:
        after = np.maximum(states[0], own)
        return (after,), after

    flow = Flow("own", bins=2)
    fold = ColumnFold((0,), latest, ("int64",), "object", uses=("event_ms",))
    flow.source(KafkaSource("in")).key_by(lambda v: v).fold("latest", fold).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        for value, ms in ((1, 500), (2, 300), (2, 400)):
            run.feed("in", value, ms=ms)
        run.run()
    assert not run.dead_letters
    assert shown(run) == [500, 300, 400]


def test_records_carry_no_own_times_where_no_function_asks() -> None:
    flow = flow_of(uses=())
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 1, ms=500)
        run.run()
        (letter,) = run.dead_letters
    assert "define the operator with uses=['event_ms']" in letter.reason


@pytest.mark.parametrize("uses", ["event_ms", ["tiem"]])
def test_an_unknown_property_is_refused_at_the_definition(uses: Any) -> None:
    with pytest.raises(SetupError, match="operator 'p': its uses are .*; list any of 'event_ms'"):
        flow_of(uses)
