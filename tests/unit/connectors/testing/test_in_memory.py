"""A flow of topics runs unchanged in memory: what goes in and comes out is as on Kafka's topics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from meander import Context, Flow, KafkaSink, KafkaSource, Stream, field, header
from meander.connectors.kafka.formats import TimeExtractor
from meander.connectors.testing.in_memory import TopicRecord
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError, SetupError
from meander.state.times.time import from_millis
from meander.testing import OriginalRecord, TestFlow

NOON = 1_357_041_600_000
"""Noon of 1 January 2013."""


def through(source: KafkaSource, sink: KafkaSink | None = None) -> Flow:
    """From a topic to a topic."""
    flow = Flow("f", bins=2)
    flow.source(source).sink(sink or KafkaSink("out"))
    return flow


def written(flow: Flow, *values: object, **more: Any) -> list[TopicRecord]:
    """What a flow makes of records."""
    with TestFlow(flow) as run:
        run.feed("in", *values, **more)
        run.run()
        return run.records("out")


# -- formats

READ: dict[str, tuple[KafkaSource, object, bytes]] = {
    "an object as JSON": (KafkaSource("in"), {"a": [1, None]}, b'{"a":[1,null]}'),
    "JSON as it is": (KafkaSource("in"), b'{"a": 1}', b'{"a":1}'),
    "text": (KafkaSource("in", value="str"), "caf\u00e9", '"caf\u00e9"'.encode()),
    "a function of bytes": (KafkaSource("in", value=len), b"abc", b"3"),
    "null": (KafkaSource("in", pairs=True), None, b'["k",null]'),
    "a key": (KafkaSource("in", pairs=True), 1, b'["k",1]'),
}


@pytest.mark.parametrize(("source", "value", "result"), READ.values(), ids=READ)
def test_what_is_fed_goes_through_the_formats_of_the_source(
    source: KafkaSource, value: object, result: bytes
) -> None:
    (record,) = written(through(source), value, key="k")
    assert record.value == result


WRITTEN: dict[str, tuple[KafkaSink, object, bytes | None, object]] = {
    "JSON": (KafkaSink("out"), {"a": (1, 2)}, b'{"a":[1,2]}', {"a": [1, 2]}),
    "text": (KafkaSink("out", value="str"), "caf\u00e9", "caf\u00e9".encode(), "caf\u00e9"),
    "bytes": (KafkaSink("out", value="bytes"), b"\xff", b"\xff", b"\xff"),
    "a function": (KafkaSink("out", value=lambda v: f"<{v}>".encode()), 7, b"<7>", b"<7>"),
    "null": (KafkaSink("out", value="str"), None, None, None),
}


@pytest.mark.parametrize(("sink", "value", "raw", "decoded"), WRITTEN.values(), ids=WRITTEN)
def test_results_are_there_as_bytes_and_decoded(
    sink: KafkaSink, value: object, raw: bytes | None, decoded: object
) -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in")).map(lambda _: value).sink(sink)
    with TestFlow(flow) as run:
        run.feed("in", 1)
        run.run()
        assert [record.value for record in run.records("out")] == [raw]
        assert run.values("out") == [decoded]


TIMES: dict[str, tuple[TimeExtractor | None, dict[str, object]]] = {
    "timestamp": (None, {"ms": NOON}),
    "header": (header("at"), {"headers": [("at", "1"), ("at", str(NOON))]}),
    "field": (field("at"), {}),
    "function": (lambda value: NOON + len(str(value)) - len(str({"at": NOON})), {}),
}


@pytest.mark.parametrize(("extract", "more"), TIMES.values(), ids=TIMES)
def test_a_records_time_is_where_the_user_says(
    extract: TimeExtractor | None, more: dict[str, object]
) -> None:
    (record,) = written(through(KafkaSource("in", time=extract)), {"at": NOON}, **more)
    assert dict(record.headers)["meander.time"] == b"%d" % NOON


def test_results_say_where_they_come_from_in_headers() -> None:
    flow = Flow("f", bins=2)
    keyed = flow.source(KafkaSource("in")).flat_map(lambda v: [v, v]).key_by(lambda v: ("k", v))
    keyed.fold("n", lambda: 0, lambda n, v: (n + 1, n)).sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("in", 6, 7, ms=5, partition=1)
        run.run()
        last = run.records("out")[-1]
        assert (last.key, last.value) == (b'["k",7]', b"1")
        assert dict(last.headers) == {
            "meander.time": b"5",
            "meander.sequence": b"0",
            "meander.origin": b"0",
            "meander.partition": b"1",
            "meander.offset": b"1",
            "meander.index": b"1",
            "meander.worker": b"0",
        }
        assert last.ms == 5
        result = run.results("out")[-1]
        assert result.place == (from_millis(5), 0, 1, 1, 1)
        assert (result.worker, result.key, result.value) == (0, last.key, 1)


def test_values_are_in_the_order_of_the_flow_whatever_the_schedule() -> None:
    came = set[tuple[bytes | None, ...]]()
    for seed in range(5):
        with TestFlow(through(KafkaSource("in")), workers=3, seed=seed, partitions=3) as run:
            for n in range(9):
                run.feed("in", n, ms=n, partition=n % 3)
            run.run()
            came.add(tuple(record.value for record in run.records("out")))
            assert run.values("out") == list(range(9))
    assert len(came) > 1, "they came in different orders"


def test_results_without_headers_have_none_and_still_have_their_place() -> None:
    with TestFlow(through(KafkaSource("in"), KafkaSink("out", origin=False))) as run:
        run.feed("in", 6, 7, ms=5)
        run.run()
        assert [record.headers for record in run.records("out")] == [(), ()]
        assert [result.offset for result in run.results("out")] == [0, 1]


def unless_empty(data: bytes) -> bytes:
    if not data:
        sys.exit("nothing to read")
    return data


UNREADABLE: dict[str, tuple[KafkaSource, bytes, object, str]] = {
    "value": (KafkaSource("in"), b"{oops", "k", "its value cannot be read: DecodeError"),
    "text": (KafkaSource("in", value="str"), b"\xff", "k", "its value cannot be read: Unicode"),
    "time": (KafkaSource("in", time=header("at")), b"1", "k", "its time cannot be read: Val"),
    "key": (KafkaSource("in", pairs=True), b"1", b"\xff", "its key cannot be read"),
    "exit": (KafkaSource("in", value=unless_empty), b"", "k", "its value cannot be read: Sys"),
}


@pytest.mark.parametrize("case", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_set_aside_as_it_was(
    case: tuple[KafkaSource, bytes, object, str],
) -> None:
    source, value, key, reason = case
    with TestFlow(through(source)) as run:
        run.feed("in", value, key=key)
        run.run()
        (letter,) = run.dead_letters
        assert (letter.operator, letter.value) == ("source in", value)
        assert letter.reason.startswith(reason)
        assert (letter.partition, letter.offset, run.counters["unreadable"]) == (0, 0, 1)
        assert run.records("out") == []


def test_a_source_that_is_to_fail_fast_ends_the_flow() -> None:
    with TestFlow(through(KafkaSource("in", fail_fast=True))) as run:
        run.feed("in", 1, b"{oops")
        with pytest.raises(MeanderError, match="topic 'in', partition 0, offset 1: its value"):
            run.run()


def test_a_result_that_cannot_be_written_is_set_aside_and_the_rest_goes_out() -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in")).map(lambda v: float("nan") if v == 2 else v).sink(
        KafkaSink("out")
    )
    with TestFlow(flow) as run:
        run.feed("in", 1, 2, 3)
        run.run()
        (letter,) = run.dead_letters
        assert letter.operator == "sink" and "cannot be written: ValueError" in letter.reason
        assert run.values("out") == [1, 3]


# -- as time passes


def sums(idle_after: float) -> Flow:
    flow = Flow("f", bins=4)
    options = SourceOptions(idle_after=idle_after)
    stream = flow.source(KafkaSource("in", options=options)).probe("read")
    keyed = stream.key_by(lambda v: v % 3)
    keyed.fold("sum", lambda: 0, lambda s, v: (s + v, s + v)).sink(KafkaSink("out"))
    return flow


def test_a_flow_is_fed_looked_at_and_fed_again() -> None:
    with TestFlow(sums(idle_after=30)) as run:
        run.feed("in", 1, 4, ms=NOON)
        run.run_until_idle()
        assert run.values("out") == [], "the other partition may still bring something earlier"
        run.advance(30)
        assert run.values("out") == [1, 5]
        assert run.states("sum") == {1: 5}
        assert run.frontier("read") == run.frontier("sink") == NOON
        run.feed("in", 2, 7, ms=NOON + 5)
        run.run()
        assert run.values("out") == [1, 5, 2, 12]
        assert run.states("sum") == {1: 12, 2: 2}
        assert run.frontier("sink") is None
        assert (run.counters["read"], run.counters["written"]) == (4, 4)


def test_keys_are_owned_by_whom_they_were_moved_to() -> None:
    with TestFlow(sums(0.002), workers=3) as run:
        for worker in (2, 0, 1):
            move = {"type": "migrate", "id": f"to {worker}", "bins": "all", "worker": worker}
            run.control(move)
            run.run_until_idle()
            assert {run.owner(key) for key in range(3)} == {worker}
            run.feed("in", 1)
            run.run_until_idle()
            assert run.results("out")[-1].worker == worker
        assert run.states("sum") == {1: 3}


def test_a_flow_that_reads_what_it_writes_gets_it() -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in")).map(lambda v: v + 1).sink(KafkaSink("between"))
    flow.source(KafkaSource("between")).map(lambda v: v * 10).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1, 2)
        run.run()
        assert sorted(map(int, map(str, run.values("out")))) == [20, 30]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_of_empty_topics_ends(workers: int) -> None:
    """I7."""
    with TestFlow(sums(0.002), workers) as run:
        run.run()
        assert (run.counters["read"], run.records("out"), run.frontier("sink")) == (0, [], None)


def test_a_loop_has_frontiers_too() -> None:
    def halved(stream: Stream[int]) -> tuple[Stream[int], Stream[int]]:
        even = stream.map(lambda n: n // 2).probe("round")
        again, done = even.split(lambda n: "done" if n % 2 else "again", "again", "done")
        return again, done

    flow = Flow("f")
    flow.source(KafkaSource("in")).iterate("halve", halved).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 24, 2, ms=NOON)
        run.feed("in", 20, ms=NOON + 7)
        run.run_until_idle()
        assert run.frontier("round") == NOON + 7
        run.run()
        assert run.values("out") == [3, 1, 5]
        assert run.frontier("round") is None


def test_lists_may_stand_beside_topics() -> None:
    flow, sink = Flow("f"), ListSink()
    flow.source(ListSource([[(1, "a")]])).sink(KafkaSink("out"))
    flow.source(KafkaSource("in")).sink(sink)
    with TestFlow(flow) as run:
        run.feed("in", "b")
        run.run()
        assert (run.values("out"), sink.values) == (["a"], ["b"])


# -- what a test cannot have

WRONG: dict[str, Sequence[object]] = {
    "topic 'nowhere': the flow does not read it; name one of in": ("feed", "nowhere", 1),
    "topic 'there': the flow does not use it; name one of in, out": ("values", "there"),
    "probe 'p': the flow has none of that name; name one of read, sink": ("frontier", "p"),
    "operator 'o': the flow has no stateful operator of that name; name one of sum": (
        "states",
        "o",
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_the_flow_does_not_have_is_named(says: str) -> None:
    asked, *words = WRONG[says]
    with TestFlow(sums(0.002)) as run, pytest.raises(SetupError, match=says):
        getattr(run, str(asked))(*words)


def test_states_are_shown_and_found_by_keys_that_no_dict_takes() -> None:
    flow = Flow("lists")
    pairs = flow.source(KafkaSource("in")).key_by(lambda value: {"id": [value], "by": "x"})
    pairs.fold("count", int, lambda n, _: (n + 1, n + 1)).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1, 2, 2)
        run.run_until_idle()
        states = run.states("count")
    assert states[{"by": "x", "id": [2]}] == 2, "in any order of its fields"
    assert {"by": "x", "id": [1]} in states
    assert {"by": "x", "id": [1.0]} not in states
    assert sorted(map(repr, states)) == ["{'by': 'x', 'id': [1]}", "{'by': 'x', 'id': [2]}"]
    assert states != {}
    with pytest.raises(KeyError):
        states[3]


def test_a_function_reads_bytes_only() -> None:
    with (
        TestFlow(through(KafkaSource("in", value=len))) as run,
        pytest.raises(SetupError, match="a function of the flow reads it, and not 7; feed bytes"),
    ):
        run.feed("in", 7)


def test_states_are_refused_behind_the_block_of_the_run() -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in")).key_by(lambda n: n).fold(
        "count", int, lambda count, n: (count + 1, n)
    ).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1)
        run.run()
    with pytest.raises(SetupError, match="read states within `with TestFlow"):
        run.states("count")


def test_a_dead_letter_names_its_topic_and_an_unreadable_record_keeps_its_key() -> None:
    flow = Flow("f")
    keyed = flow.source(KafkaSource(["a", "b"])).key_by(lambda n: n["n"])

    def ask(context: Context[int], state: int, _: object) -> int:
        context.timer(context.time_ms + 1)
        return state

    def refuse(context: Context[int], state: int) -> int:
        raise ValueError(context.key)

    keyed.process("asked", int, ask, refuse).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("b", {}, b"{oops", key="k")
        run.feed("a", {"n": 1})
        run.run()
        letters = {letter.operator: letter for letter in run.dead_letters}
    assert [letters[name].topic for name in ("source b", "key_by", "asked")] == ["b", "b", ""]
    unreadable = letters["source b"]
    assert (unreadable.value, unreadable.key) == (b"{oops", b"k")


def test_dead_letter_carries_the_record_of_its_topic() -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in")).key_by(str).map(lambda v: 1 // v).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1, 0, b"{oops", key="a", ms=NOON, headers=[("h", "1"), ("none", None)])
        run.run()
        found = {letter.operator: letter.original for letter in run.dead_letters}
    for operator, value in (("map", b"0"), ("source in", b"{oops")):
        original = OriginalRecord(b"a", value, [("h", b"1"), ("none", None)], NOON)
        assert found[operator] == original


def test_dead_letter_of_a_timer_has_its_key_and_no_record() -> None:
    flow = Flow("f")

    def remind(context: Context[str], state: int, _: object) -> int:
        context.timer(context.time_ms + 1)
        return state

    def fail(context: Context[str], _: int) -> int:
        raise TimeoutError(context.key)

    flow.source(KafkaSource("in")).key_by(str).process("p", int, remind, fail).sink(
        KafkaSink("out")
    )
    with TestFlow(flow) as run:
        run.feed("in", 7, ms=NOON)
        run.run()
        (letter,) = run.dead_letters
    assert (letter.key, letter.topic, letter.original) == ("7", "", None)
