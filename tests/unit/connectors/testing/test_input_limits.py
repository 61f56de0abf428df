"""Input at the edges: what no time, index or layer can hold is one record's failure, or a record of
the future, and never the end of a flow, which would read it again in its next execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow, KafkaSink, KafkaSource, columns, field, header
from meander.connectors.kafka.source.chunks import times_of
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.operators.keyed.logic import LARGEST
from meander.dataflow.operators.stateless import MAX_OUTPUTS
from meander.dataflow.simulation.in_memory import ListSink
from meander.schemas.control import MAX_MILLIS
from meander.state.layers.layer_writer import KEY_LIMIT
from meander.state.times.time import MIN_TIME, from_millis
from meander.testing import TestFlow

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BEYOND = (MAX_MILLIS, MAX_MILLIS + 1, 1_760_000_000_000_000, (1 << 63) - 1)
"""Timestamps of the end of all times, and of behind it: microseconds, say."""


def move(run: TestFlow, key: object) -> None:
    """The bin of a key, and all others, to the other of two workers."""
    to = 1 - run.owner(key)
    run.control({"type": "migrate", "id": "m", "bins": "all", "worker": to})


def moved(run: TestFlow) -> bool:
    answer = run.answer("m")
    return answer is not None and answer.state == "completed"


# -- times


@given(st.lists(INT64))
def test_whatever_timestamp_a_topic_has_asks_for_a_time_that_there_is(stamps: list[int]) -> None:
    times = times_of(stamps).tolist()
    assert all(MIN_TIME <= time <= from_millis(MAX_MILLIS) for time in times)
    held = [(stamp, time) for stamp, time in zip(stamps, times, strict=True)
            if 0 <= stamp <= MAX_MILLIS]  # fmt: skip
    assert all(time == from_millis(stamp) for stamp, time in held)


@pytest.mark.parametrize("max_future", [1.0, float("inf")])
@pytest.mark.parametrize("ms", BEYOND)
def test_a_timestamp_beyond_all_times_counts_as_one_of_the_future(
    ms: int, max_future: float
) -> None:
    """I3: it wraps round to no other time, and moves nothing."""
    flow = Flow("f", bins=1)
    source = KafkaSource("in", options=SourceOptions(max_future=max_future))
    flow.source(source).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 1, ms=1_000)
        run.feed("in", 2, ms=ms)
        run.feed("in", 3, ms=2_000)
        run.run()
        times = [result.place[0] for result in run.results("out")]
        assert (run.counters["future_ignored"], run.values("out")) == (1, [1, 2, 3])
    assert times == [from_millis(1_000), from_millis(1_000), from_millis(2_000)]


@pytest.mark.parametrize("ms", [-1, *BEYOND])
def test_a_record_that_cannot_be_read_is_set_aside_whatever_its_timestamp(ms: int) -> None:
    flow = Flow("f", bins=1)
    flow.source(KafkaSource("in")).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 1, ms=1_000)
        run.feed("in", b"{no json", ms=ms)
        run.feed("in", 2, ms=2_000)
        run.run()
        assert (run.values("out"), len(run.dead_letters)) == ([1, 2], 1)


NO_TIMES = (MAX_MILLIS + 1, 1 << 63, 1 << 70, "later", 1.5)


def at(value: Any) -> Any:
    return value["at"]


TIMED: dict[str, KafkaSource] = {
    "field": KafkaSource("in", time=field("at")),
    "header": KafkaSource("in", time=header("at")),
    "function": KafkaSource("in", time=at),
}


@pytest.mark.parametrize("source", TIMED.values(), ids=TIMED)
def test_a_record_that_names_no_time_is_set_aside(source: KafkaSource) -> None:
    flow = Flow("f", bins=1)
    flow.source(source).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        for at in (5, *NO_TIMES, -5):
            run.feed("in", {"at": at}, headers=[("at", str(at))])
        run.run()
        assert [value["at"] for value in run.values("out") if isinstance(value, dict)] == [5, -5]
        assert len(run.dead_letters) == len(NO_TIMES)


def test_a_timer_beyond_all_times_is_its_records_failure() -> None:
    def set_timer(context: Any, state: int, ms: int) -> int:
        context.timer(ms)
        return state

    flow = Flow("f", bins=1)
    (
        flow.source(KafkaSource("in"))
        .key_by(str)
        .process("p", int, set_timer, on_timer=lambda context, n: emitting(context, n, ["due"]))
        .sink(KafkaSink("out"))
    )
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 2_000, MAX_MILLIS + 1, 1 << 63, -(1 << 70), ms=1_000)
        run.run()
        assert (run.values("out"), len(run.dead_letters)) == (["due"], 3)


def test_a_sum_beyond_its_column_is_its_records_failure() -> None:
    flow = Flow("f", bins=1)
    totals = flow.source(KafkaSource("in")).key_by(lambda _: "k")
    totals.fold("total", columns.sum(dtype="int64")).sink(KafkaSink("out"))
    most = (1 << 63) - 1
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", most, 1, 1 << 63, -1, -(1 << 70))
        run.run()
        assert (run.values("out"), len(run.dead_letters)) == ([most, most - 1], 3)


@pytest.mark.parametrize("state", [(1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 80])
def test_a_fold_keeps_whole_numbers_of_any_size(state: int) -> None:
    """I4."""
    flow = Flow("f", bins=0)
    keyed = flow.source(KafkaSource("in")).key_by(lambda _: "k")
    keyed.fold("newest", int, lambda before, _: (state, str(before))).sink(KafkaSink("out"))
    with TestFlow(flow, 2, partitions=1) as run:
        run.feed("in", 1)
        run.run_until_idle()
        move(run, "k")
        run.feed("in", 2)
        run.run()
        assert moved(run)
        assert run.values("out") == ["0", str(state)]


# -- outputs


def emitting(context: Any, state: int, outputs: Iterable[object]) -> int:
    for output in outputs:
        context.emit(output)
    return state


MULTIPLYING: dict[str, Callable[[Any, Callable[[Any], Iterable[object]]], Any]] = {
    "flat_map": lambda stream, outputs: stream.flat_map(outputs),
    "process": lambda stream, outputs: stream.key_by(str).process(
        "p", int, lambda context, state, value: emitting(context, state, outputs(value))
    ),
}


@pytest.mark.parametrize("multiply", MULTIPLYING.values(), ids=MULTIPLYING)
def test_a_record_with_more_outputs_than_an_index_tells_apart_is_set_aside(multiply: Any) -> None:
    """I3: two outputs in one place would be in no order. One without an end ends, too."""
    outputs = {0: [], 1: ["a"], 2: repeat("x", MAX_OUTPUTS + 1), 3: count()}
    flow = Flow("f", bins=1)
    multiply(flow.source(KafkaSource("in")), lambda n: outputs.get(n, ["b"])).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 0, 1, 2, 3, 4)
        run.run()
        assert (run.values("out"), len(run.dead_letters)) == (["a", "b"], 2)
        assert all("1,048,576" in letter.reason for letter in run.dead_letters)


@pytest.mark.parametrize("multiply", MULTIPLYING.values(), ids=MULTIPLYING)
def test_a_record_that_has_been_multiplied_too_often_is_set_aside(multiply: Any) -> None:
    """I3."""
    flow = Flow("f", bins=1)
    stream: Any = flow.source(KafkaSource("in"))
    for _ in range(3):
        stream = stream.flat_map(lambda n: repeat(n, n))
    multiply(stream, lambda n: [n]).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", 1, 5, 2)
        run.run()
        # Of five in the first place the last has an index that is full after three.
        assert sorted(map(int, map(str, run.values("out")))) == [1] + [2] * 8 + [5] * 100
        assert len(run.dead_letters) == 25
        assert all("more than three" in letter.reason for letter in run.dead_letters)


# -- keys


def test_a_key_too_large_to_move_is_set_aside_before_its_bin_moves() -> None:
    """I4: whether a flow goes on must not depend on where its bins are."""
    flow = Flow("f", bins=0)
    keyed = flow.source(KafkaSource("in")).key_by(lambda n: "k" * n)
    sink, head = ListSink(), 5
    keyed.fold("n", int, lambda state, n: (state + 1, n)).sink(sink)
    with TestFlow(flow, 2, partitions=1) as run:
        run.feed("in", 1, KEY_LIMIT - head, KEY_LIMIT - head + 1, 2)
        run.run_until_idle()
        move(run, "k")
        run.run()
        assert moved(run)
        assert sink.values == [1, KEY_LIMIT - head, 2]
        (letter,) = run.dead_letters
    assert "a bin moves only with keys of up to 4,194,304: make a shorter one" in letter.reason


@pytest.mark.parametrize("init", [str, lambda: ["s"]], ids=["fixed", "sealed"])
def test_a_key_and_its_state_must_fit_one_entry_together(init: Any) -> None:
    """I4."""
    key = "k" * 100_000
    room = LARGEST - len(key) - 5 - 8
    sizes = {1: room, 2: room + 20, 3: 10}
    flow = Flow("f", bins=0)
    keyed = flow.source(KafkaSource("in")).key_by(lambda _: key)

    def step(state: object, n: int) -> tuple[object, int]:
        text = "s" * sizes[n]
        return ([text] if isinstance(state, list) else text), n

    keyed.fold("n", init, step).sink(KafkaSink("out"))
    with TestFlow(flow, 2, partitions=1) as run:
        run.feed("in", 1, 2)
        run.run_until_idle()
        move(run, key)
        run.feed("in", 3)
        run.run()
        assert moved(run)
        assert (run.values("out"), [letter.value for letter in run.dead_letters]) == ([1, 3], [2])
        assert "and its key 100,005" in run.dead_letters[0].reason


def test_a_column_of_objects_and_its_key_must_fit_one_entry_too() -> None:
    """I4."""
    key, room = "k" * 100_000, LARGEST - 100_005 - 8
    flow = Flow("f", bins=0)
    keyed = flow.source(KafkaSource("in")).map(lambda n: "s" * n).key_by(lambda _: key)
    keyed.fold("newest", columns.last()).map(len).sink(KafkaSink("out"))
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", room - 10, room + 10, 3)
        run.run()
        assert (run.values("out"), len(run.dead_letters)) == ([room - 10, 3], 1)
