"""The record encoder: what a topic accepts decides about a record, and not about its checksum."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

import pytest

from meander import KafkaSink
from meander.connectors.kafka.sink.record_encoder import LimitError, RecordEncoder
from meander.connectors.kafka.sink.record_limits import RecordLimits
from meander.connectors.kafka.sink.topic_directory import ASK_INTERVAL, TopicDirectory
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.schemas.row_error import RowError
from meander.state.keys.ids import WorkerId
from tests.support.kafka.connector_rig import Rig, batch

DAY, YEAR = 86_400_000, 365 * 86_400_000


def encoder(sink: KafkaSink, settings: Mapping[str, str], *topics: str) -> RecordEncoder:
    """An encoder for a cluster that has these topics, with these settings."""
    context = Rig("", "").context(outside=dict.fromkeys(topics, settings))
    limits, directory = partial(RecordLimits.of, context=context), TopicDirectory(topics.count)
    return RecordEncoder(sink, WorkerId(0), NO_KEEPALIVE, limits, directory)


def timestamp(settings: Mapping[str, str], millis: int) -> int:
    records = encoder(KafkaSink("out"), settings, "out").encode(batch([1], millis=millis))
    assert records.timestamps is not None
    return records.timestamps[0]


def test_a_timestamp_is_the_logical_time_within_the_bounds_of_the_topic() -> None:
    now = int(time.time() * 1000)
    after, before = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
    difference = "message.timestamp.difference.max.ms"
    assert timestamp({}, now - YEAR) == now - YEAR
    assert timestamp({}, 0) == 1, "the client takes 0 for its own clock"
    assert timestamp({after: str(2 * YEAR)}, now + YEAR) == now + YEAR
    for settings in ({}, {after: str(DAY)}, {difference: str(DAY)}):
        assert now < timestamp(settings, now + YEAR) < now + DAY
    for settings in ({before: str(DAY)}, {difference: str(DAY)}):
        assert now - DAY < timestamp(settings, now - YEAR) < now


def test_results_older_than_the_retention_of_their_topic_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    young, old = (batch([1], millis=int(time.time() * 1000) - ms) for ms in (0, 8 * DAY))
    for settings in ({"retention.ms": "-1"}, {"retention.ms": "9", "cleanup.policy": "compact"}):
        encoder(KafkaSink("out", key=str), settings, "out").encode(old)
    one = encoder(KafkaSink("out"), {"retention.ms": str(7 * DAY)}, "out")
    one.encode(young)
    assert not caplog.messages
    one.encode(old)
    one.encode(old)
    (said,) = caplog.messages
    assert "retention_exceeded" in said and "topic=out" in said and "time='wall'" in said


def test_a_record_with_large_headers_of_its_own_is_refused() -> None:
    sink = KafkaSink("out", headers=lambda v: {"h": b"x" * v}, origin=False)
    one = encoder(sink, {"max.message.bytes": "1000"}, "out")
    with pytest.raises(RowError, match=r"more than 939 \(max.message.bytes") as refused:
        one.encode(batch([10, 1000, 20]))
    assert [error.row for error in refused.value.all] == [1]


def test_an_absent_topic_or_partition_counts_in_the_checksum() -> None:
    sink = KafkaSink(lambda v: f"out-{v}", topics="out-.", partition=lambda v: v - 1)
    there, absent = encoder(sink, {}, "out-1", "out-2"), encoder(sink, {}, "out-2")
    results = batch([1, 2])
    with pytest.raises(LimitError, match="'out-1': the result .* names it, and it does not") as one:
        absent.encode(results)
    assert [error.row for error in one.value.all] == [0, 1]
    assert "topic 'out-2': the result" in str(one.value.all[1])
    assert "is for partition 1; have the sink's partition function return 0 to 0" in str(
        one.value.all[1]
    )
    assert there.checksum(results) == absent.checksum(results)


def test_the_checksum_tells_topics_apart_where_a_function_chooses_them() -> None:
    names = iter("abba")
    sink = KafkaSink(lambda _: next(names), topics=["a", "b"])
    one = encoder(sink, {}, "a", "b")
    results = batch([1, 1])
    assert one.checksum(results) == one.checksum(results), "the order of results does not count"
    names = iter("aabb")
    assert one.checksum(results) != one.checksum(results)


def test_a_topic_that_comes_later_is_found_some_seconds_after_its_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, topics, asked = [0.0], dict[str, int](), list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def ask(topic: str) -> int | None:
        asked.append(topic)
        return topics.get(topic)

    directory = TopicDirectory(ask)
    assert not directory.has("a")
    topics["a"] = 1
    assert not directory.has("a")
    now[0] += ASK_INTERVAL
    assert directory.has("a") and not directory.has("a", 1)
    topics["a"] = 2
    now[0] += ASK_INTERVAL
    assert directory.has("a", 1)
    assert asked == ["a"] * 3
