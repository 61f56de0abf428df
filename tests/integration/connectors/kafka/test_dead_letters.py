"""A record that an operator could not take lies on the dead-letter topic with all that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meander.connectors.kafka.dead_letter import (
    MAX_KEY,
    MAX_TRACE,
    MAX_VALUE,
    KafkaDeadLetters,
    MalformedRecord,
)
from meander.connectors.kafka.origins import Origin
from meander.connectors.kafka.sink.producer import Headers
from meander.dataflow.records.batch import Batch
from meander.schemas.dead_letter import MAX_DEAD_RECORD
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig, batch
from tests.support.kafka.topics import Record, consume_all, until


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    made = Rig(broker.bootstrap, prefix)
    made.topic("flow.dead", max_message_bytes=str(MAX_DEAD_RECORD))
    return made


ORIGINS = {3: Origin("source", "flights", "id")}


def set_aside(rig: Rig, records: Batch, row: int, trace: str = "") -> Record:
    dead = KafkaDeadLetters.open(rig.context(worker=1, workers=2), rig.dead_topic, ORIGINS)
    dead.add("per_plane", records, row, "KeyError: 'tailnum'", trace)
    until(lambda: dead.delivered() == dead.added, "it is durable")
    dead.close()
    (record,) = consume_all(rig.bootstrap, rig.dead_topic)
    return record


def test_it_says_which_record_which_operator_and_why(rig: Rig) -> None:
    record = set_aside(rig, batch([{"a": 1}, {"b": 2}], ["x", "y"], millis=5), 1, "the trace")
    assert (record.key, record.value) == (b"y", b'{"b":2}')
    assert dict(record.headers) == {
        "meander.reason": b"KeyError: 'tailnum'",
        "meander.operator": b"per_plane",
        "meander.kind": b"record",
        "meander.topic": b"flights",
        "meander.topic_id": b"id",
        "meander.partition": b"1",
        "meander.offset": b"1",
        "meander.time": b"5",
        "meander.not_carried": b"its topic no longer holds the record",
        "meander.worker": b"1",
        "meander.trace": b"the trace",
    }


def test_a_value_without_json_is_written_as_it_looks_in_python(rig: Rig) -> None:
    assert set_aside(rig, batch([{("a", 1): {float("nan")}}]), 0).value == b"{('a', 1): {nan}}"


@pytest.mark.parametrize("key", [float("nan"), (b"\xff", 1), "\ud800"])
def test_a_key_without_json_is_written_as_it_looks_in_python(rig: Rig, key: object) -> None:
    keyed = replace(batch([1], ["x"]), keys=[codec.encode(key)])
    assert set_aside(rig, keyed, 0).key == repr(key).encode("utf-8", "backslashreplace")


def test_what_no_encoding_takes_is_escaped(rig: Rig) -> None:
    record = set_aside(rig, batch(["\ud800"]), 0, trace="ValueError: \ud800")
    assert dict(record.headers)["meander.trace"] == b"ValueError: \\ud800"


@pytest.mark.parametrize(("size", "kept"), [(2 << 20, 2 << 20), (MAX_DEAD_RECORD, MAX_VALUE)])
def test_a_long_value_is_kept_as_far_as_the_topic_takes_it(rig: Rig, size: int, kept: int) -> None:
    record = set_aside(rig, batch([b"x" * size]), 0)
    assert record.value == b"x" * kept
    cut = dict(record.headers).get("meander.truncated")
    assert cut == (None if size == kept else b"%d" % size)


def test_a_long_key_and_many_headers_are_kept_as_far_as_there_is_room(rig: Rig) -> None:
    """Of a record that its source's topic took, though a dead letter with all of it would not be
    taken."""
    long = b"x" * (MAX_DEAD_RECORD // 2 + 1)
    headers: Headers = [("first", b"1"), ("long", long), ("last", b"2")]
    record = set_aside(rig, batch([MalformedRecord("lines", long, long, headers)]), 0)
    assert (record.key, record.value) == (long[:MAX_KEY], long[:MAX_VALUE])
    said = dict(record.headers)
    assert (said["first"], "long" in said) == (b"1", False)
    assert said["meander.key_truncated"] == said["meander.truncated"] == b"%d" % len(long)
    assert said["meander.headers_left_out"] == b"2"


def test_settings_of_sinks_do_not_bound_what_is_set_aside(rig: Rig) -> None:
    context = rig.context(worker=1, workers=2)
    context = replace(context, settings={**context.settings, "message.max.bytes": "2000000"})
    dead = KafkaDeadLetters.open(context, rig.dead_topic)
    dead.add("per_plane", batch([b"x" * 3_000_000]), 0, "no", "")
    until(lambda: dead.delivered() == dead.added, "it is durable")
    dead.close()


def test_bytes_are_kept_as_they_are(rig: Rig) -> None:
    assert set_aside(rig, batch([b"\xff\x00"]), 0).value == b"\xff\x00"


def test_a_worker_that_never_asks_what_is_pending_still_learns_of_a_refusal(rig: Rig) -> None:
    small = rig.topic("small", max_message_bytes="1000")
    dead = KafkaDeadLetters.open(rig.context(), small)

    def add_another() -> bool:
        dead.add("per_plane", batch([b"x" * 5_000]), 0, "reason", "")
        return False

    with pytest.raises(MeanderError, match=f"topic '{small}': a record exceeds its size limit"):
        until(add_another, "the refusal")
    dead.close()


def test_dead_letters_lack_room_until_half_of_it_is_free_and_leave_without_another(
    rig: Rig,
) -> None:
    """I6: a burst waits beyond the queue of the client, and each look for room sends some."""
    few = {**rig.context().settings, "queue.buffering.max.messages": "10"}
    dead = KafkaDeadLetters(few, rig.dead_topic, 0, 100_000, rig.wakeup)
    assert dead.has_room()
    for _ in range(60):
        dead.add("per_plane", batch([b"x" * 1_000]), 0, "reason", "")
    assert not dead.has_room()
    until(lambda: dead.has_room() and dead.delivered() == dead.added, "all are durable")
    dead.close()


def test_of_a_long_traceback_the_end_is_kept(rig: Rig) -> None:
    record = set_aside(rig, batch([1]), 0, "x" * MAX_TRACE + "the cause")
    trace = dict(record.headers)["meander.trace"]
    assert isinstance(trace, bytes)
    assert len(trace) == MAX_TRACE and trace.endswith(b"the cause")
