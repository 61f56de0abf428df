"""The original records of dead letters, read from the topics that they came from.

Guarantees that a record is the one of that offset on the topic of that id; a record that retention
or compaction has removed is absent. Cost: one pass per partition, with a seek where records lie far
apart.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.topic_metadata import find_topic
from meander.connectors.topics.dead_letters import READ_TIMEOUT, ReadHeaders, RecordPlace

GAP = 1000
"""The most offsets between two records that a pass reads rather than skips."""


@dataclass(frozen=True, slots=True)
class OriginalRecord:
    """A record as its producer wrote it."""

    key: bytes | None
    value: bytes | None
    headers: ReadHeaders
    time_ms: int


def read_originals(
    settings: Settings, places: Iterable[RecordPlace]
) -> dict[RecordPlace, OriginalRecord]:
    """Return the records at some places; absent ones are left out. Raises MeanderError where a
    topic cannot be read."""
    wanted = sorted(set(places), key=attrgetter("topic", "partition", "offset"))
    found = dict[RecordPlace, OriginalRecord]()
    admin = client.admin(settings)
    for topic, some in groupby(wanted, attrgetter("topic")):
        present = find_topic(admin, topic)
        readable = [
            one
            for one in some
            if one.topic_id in ("", present.id) and one.partition < present.partitions
        ]
        with contextlib.closing(client.reader(settings, topic)) as consumer:
            for partition, group in groupby(readable, attrgetter("partition")):
                low, high = client.watermarks(consumer, topic, partition)
                retained = [one for one in group if low <= one.offset < high]
                found.update(_read(consumer, retained, high))
    return found


def _read(
    consumer: Consumer, places: Sequence[RecordPlace], high: int
) -> Iterator[tuple[RecordPlace, OriginalRecord]]:
    """Yield the records at places of one partition, in order of their offsets."""
    by_offset, reached = {one.offset: one for one in places}, -GAP - 1
    for place in places:
        if place.offset > reached + GAP:
            consumer.assign([TopicPartition(place.topic, place.partition, place.offset)])
            reached = place.offset
        while reached <= place.offset:
            message = _next(consumer, place.topic)
            if message.error() is not None:
                if message.offset() >= high:
                    return  # the end of the partition
                continue
            reached = message.offset() + 1
            if (one := by_offset.get(message.offset())) is not None:
                yield one, _original(message)


def _next(consumer: Consumer, topic: str) -> ConsumedMessage:
    """Return the next record, or the message about the end of a partition. Raise MeanderError."""
    deadline = time.monotonic() + READ_TIMEOUT
    while time.monotonic() < deadline:
        message = cast(ConsumedMessage | None, consumer.poll(0.5))
        error = None if message is None else message.error()
        if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
            return message
        if error is not None and not client.is_transient(error):
            raise client.translate(error, f"topic {topic!r}")
    raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")


def _original(message: ConsumedMessage) -> OriginalRecord:
    return OriginalRecord(
        message.key(), message.value(), list(message.headers() or ()), message.timestamp()[1]
    )
