"""Stateful operators: what they do to state, in which order, and what they answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from meander import Flow, KeyedStream
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.operators.keyed.logic import Fold, Sealing
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN
from tests.support.sim.manual_flow import ManualSource
from tests.support.sim.one_key_flow import KEY, Entry, run_process
from tests.support.sim.operator_bench import bins_of, calls, contents, guard, records, store
from tests.support.sim.start import Start

# -- fold


def _fold(step: Callable[[Any, Any], tuple[object, object]], values: list[object]) -> Any:
    errors, dead, _ = guard("dead_letter")
    logic = Fold(list, step, Sealing(PLAIN), errors)
    batch, states = records(values, keys=[KEY] * len(values)), store()
    results = logic.apply(states, bins_of(batch), Rows.of(batch, 0), calls()).results.values
    return results, contents(states)[codec.encode(KEY)], dead


def test_a_function_that_fails_half_way_leaves_the_state_as_it_was() -> None:
    """I4, I5: also a state that it has changed in place."""

    def step(state: list[object], value: int) -> tuple[object, object]:
        state.append(value)
        return state, 6 // value

    results, state, dead = _fold(step, [1, 0, 2])
    assert (results, state) == ([6, 3], [1, 2])
    assert [letter[1] for letter in dead.letters] == [0]


def test_a_result_that_is_the_state_does_not_change_with_it() -> None:
    """I5: what was answered stays answered."""

    def step(state: list[object], value: int) -> tuple[object, object]:
        state.append(value)
        return state, state

    assert _fold(step, [1, 2, 3])[0] == [[1], [1, 2], [1, 2, 3]]


def test_what_a_function_keeps_of_a_state_cannot_change_it_later() -> None:
    """I4."""
    kept: list[list[object]] = []

    def step(state: list[object], value: int) -> tuple[object, object]:
        for old in kept:
            old.append("late")
        kept.append(state)
        return [*state, value], value

    assert _fold(step, [1, 2, 3])[1] == [1, 2, 3]


def test_what_is_not_a_pair_is_the_functions_failure() -> None:
    def step(state: list[object], value: int) -> Any:
        return ([*state, value], value) if value else None

    results, state, dead = _fold(step, [1, 0])
    assert (results, state, len(dead.letters)) == ([1], [1], 1)


def _append(state: Any, value: object) -> tuple[object, object]:
    return [*state, value], value


def test_each_key_begins_with_a_state_of_its_own() -> None:
    errors, _, _ = guard()
    logic = Fold(list, _append, Sealing(PLAIN), errors)
    batch, states = records([1, 2, 3], keys=["a", "b", "a"]), store()
    logic.apply(states, bins_of(batch), Rows.of(batch, 0), calls())
    assert {codec.decode(k): state for k, state in contents(states).items()} == {
        "a": [1, 3],
        "b": [2],
    }


# -- order


def _trail(state: list[object], value: object) -> tuple[list[object], list[object]]:
    state.append(value)
    return state, list(state)


@pytest.mark.parametrize("seed", range(5))
def test_records_of_one_key_from_several_partitions_are_applied_in_the_total_order(
    start: Start, seed: int
) -> None:
    """I3: by time, then partition, then offset, however they come."""
    chance = random.Random(seed)
    partitions: list[list[Entry]] = [
        [(ms, (p, i)) for i, ms in enumerate(sorted(chance.choices(range(4), k=12)))]
        for p in range(3)
    ]
    flow, sink = Flow("f", bins=1), ListSink()
    stream = flow.source(ListSource(partitions)).key_by(lambda v: KEY)
    stream.fold("trail", list, _trail).sink(sink)
    run = start(flow)
    run.run()
    places = sorted((r.time, r.partition, r.offset) for r in sink.results)
    trail = [(partition, offset) for _, partition, offset in places]
    assert trail in sink.values and len(trail) == 36


def test_more_records_than_a_turn_takes_are_applied_once_each_and_in_order(start: Start) -> None:
    """I3: 3000 of one key become ready at once."""
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=1)
    flow.source(source).key_by(lambda v: KEY).fold(
        "n", lambda: -1, lambda n, v: (v, v == n + 1)
    ).sink(sink)
    run = start(flow)
    source.give(0, *((1 + i // 1000, i) for i in range(3000)))
    run.finish(source)
    assert len(sink.values) == 3000 and all(sink.values)


def test_processing_order_answers_before_time_has_passed(start: Start) -> None:
    """I3: and "event" does not, as an earlier record may still come from elsewhere."""
    source, sinks = ManualSource(partitions=2), {}
    source.feeds[1].busy = True
    flow = Flow("f", bins=1)
    stream = flow.source(source).key_by(lambda v: KEY)
    for order in ("event", "processing"):
        sinks[order] = ListSink()
        stream.fold(order, list, _trail, order=order).sink(sinks[order])
    run = start(flow)
    source.give(0, (10, "ten"))
    run.run_until_idle()
    assert sinks["processing"].values == [["ten"]]
    assert sinks["event"].values == []
    source.give(1, (5, "five"))
    run.finish(source)
    assert sinks["processing"].values == [["ten"], ["ten", "five"]]
    assert sinks["event"].values == [["five"], ["five", "ten"]]


# -- process


def test_any_number_of_results_stand_at_the_place_of_their_record(start: Start) -> None:
    """I3: and a flat_map behind them goes on from there."""
    source, sink = ListSource([[(1, 2), (2, 0), (3, 1)]]), ListSink()
    flow = Flow("f", bins=1)

    def step(context: Context, state: int, value: int) -> int:
        for i in range(value):
            context.emit((context.time_ms, context.key, i))
        return state

    stream = flow.source(source).key_by(lambda v: KEY).process("p", lambda: 0, step)
    stream.flat_map(lambda v: [v, v]).sink(sink)
    run = start(flow)
    run.run()
    assert sorted((r.offset, r.index, r.value) for r in sink.results) == [
        (0, 0, (1, KEY, 0)), (0, 1, (1, KEY, 0)),
        (0, 1 << 20, (1, KEY, 1)), (0, (1 << 20) + 1, (1, KEY, 1)),
        (2, 0, (3, KEY, 0)), (2, 1, (3, KEY, 0)),
    ]  # fmt: skip


def test_what_a_failing_function_has_emitted_or_set_is_undone(start: Start) -> None:
    """I5: all of a record or nothing."""

    def step(context: Any, state: list[object], value: int) -> list[object]:
        state.append(value)
        context.emit(value)
        context.timer(value + 5)
        _ = 1 // value
        return state

    def ring(context: Any, state: list[object]) -> list[object]:
        context.emit(("ring", list(state)))
        return state

    run, got = run_process(start, [[(0, 0), (1, 1)]], step, ring)
    assert [value for _, value, _ in got] == [1, ("ring", [1])]
    assert run.counters["dead_letters"] == len(run.dead_letters) == 1


# -- two inputs


def _left(context: Any, state: list[object], value: object) -> list[object]:
    state.append(("left", value))
    context.emit(list(state))
    return state


def _right(context: Any, state: list[object], value: object) -> list[object]:
    state.append(("right", value))
    return state


def test_two_streams_share_the_state_of_a_key(start: Start) -> None:
    """I3: records of one time go by the order in which the sources were defined."""
    first, second, sink = ManualSource(), ManualSource(), ListSink()
    flow = Flow("f", bins=1)
    left = flow.source(first, "left").key_by(lambda v: KEY)
    right = flow.source(second, "right").key_by(lambda v: KEY)
    left.connect(right, "both", list, _left, _right).sink(sink)
    run = start(flow)
    first.give(0, (1, "a"), (3, "c"))
    second.give(0, (1, "A"), (2, "B"))
    second.end()
    run.finish(first)
    assert sink.values == [
        [("left", "a")],
        [("left", "a"), ("right", "A"), ("right", "B"), ("left", "c")],
    ]


def test_a_stream_may_meet_itself(start: Start) -> None:
    """I3: of one record by both ways, the first input's comes first."""
    flow, sink = Flow("f", bins=1), ListSink()
    stream = flow.source(ListSource([[(1, "a"), (1, "b")]])).key_by(lambda v: KEY)
    stream.connect(stream.map(str.upper), "both", list, _left, _right).sink(sink)
    start(flow).run()
    assert sink.values == [
        [("left", "a")],
        [("left", "a"), ("right", "A"), ("left", "b")],
    ]


def test_two_streams_wait_for_each_other(start: Start) -> None:
    """I3: a record is not applied while an earlier one may come on the other input."""
    first, second, sink = ManualSource(), ManualSource(), ListSink()
    first.feeds[0].busy = second.feeds[0].busy = True
    flow = Flow("f", bins=1)
    left = flow.source(first, "left").key_by(lambda v: KEY)
    right = flow.source(second, "right").key_by(lambda v: KEY)
    left.connect(right, "both", list, _left, _right).sink(sink)
    run = start(flow)
    first.give(0, (5, "five"))
    run.wait(0.01)
    assert sink.values == []
    second.give(0, (4, "four"))
    run.wait(0.01)
    assert sink.values == []
    second.give(0, (7, "seven"))
    first.give(0, (8, "eight"))
    run.run_until_idle()
    assert sink.values == [[("right", "four"), ("left", "five")]]
    second.end()
    run.finish(first)
    assert sink.values[1:] == [
        [("right", "four"), ("left", "five"), ("right", "seven"), ("left", "eight")]
    ]


def test_a_keyed_stream_stays_keyed() -> None:
    flow = Flow("f")
    stream = flow.source(ListSource([[]])).key_by(lambda v: v)
    for derived in (stream.map(str), stream.filter(bool), stream.flat_map(list)):
        assert isinstance(derived, KeyedStream)
