"""The original records of dead letters, read from the topics that they came from.

Guarantees that a record is the one of that offset on the topic of that id; a record that retention
or compaction has removed is absent. Cost: one pass per partition, with a seek where records lie far
apart. Memory: the queue of one consumer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.topic_metadata import find_topic
from meander.schemas.dead_letter import OriginalRecord, RecordPlace

GAP = 1000
"""The most offsets between two records that a pass reads rather than skips."""
READ_TIMEOUT = 30.0
"""The seconds without an answer of a broker after which a read fails."""
Found = Iterator[tuple[RecordPlace, OriginalRecord]]


class OriginalReader:
    """A reader that finds records at their places. It connects once, for all its reads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: client.Admin | None = None
        self._consumer: Consumer | None = None

    def read(self, places: Iterable[RecordPlace]) -> Found:
        """Yield the records at some places; absent ones are left out. Raises MeanderError where a
        topic cannot be read."""
        wanted = sorted(set(places), key=attrgetter("topic", "partition", "offset"))
        self._admin = self._admin or client.admin(self._settings)
        for topic, some in groupby(wanted, attrgetter("topic")):
            present = find_topic(self._admin, topic)
            readable = [
                one
                for one in some
                if one.topic_id in ("", present.id) and one.partition < present.partitions
            ]
            if not readable:
                continue
            consumer = self._consumer = self._consumer or client.reader(self._settings, topic)
            try:
                for partition, group in groupby(readable, attrgetter("partition")):
                    low, high = client.watermarks(consumer, topic, partition)
                    retained = [one for one in group if low <= one.offset < high]
                    yield from _read(consumer, retained, high)
            finally:
                consumer.unassign()

    def close(self) -> None:
        """Release the connections."""
        if self._consumer is not None:
            self._consumer.close()


def read_originals(
    settings: Settings, places: Iterable[RecordPlace]
) -> dict[RecordPlace, OriginalRecord]:
    """Return the records at some places; absent ones are left out. Raises MeanderError where a
    topic cannot be read."""
    wanted = set(places)
    if not wanted:
        return {}
    with contextlib.closing(OriginalReader(settings)) as reader:
        return dict(reader.read(wanted))


def _read(consumer: Consumer, places: Sequence[RecordPlace], high: int) -> Found:
    """Yield the records at places of one partition, in order of their offsets."""
    by_offset, reached = {one.offset: one for one in places}, -GAP - 1
    for place in places:
        if place.offset > reached + GAP:
            consumer.assign([TopicPartition(place.topic, place.partition, place.offset)])
            reached = place.offset
        while reached <= place.offset:
            message = _next(consumer, place.topic)
            error = message.error()
            if error is not None and client.is_expired(error):
                return  # retention has removed it since
            if error is not None:
                if message.offset() >= high:
                    return  # the end of the partition
                continue
            reached = message.offset() + 1
            if (one := by_offset.get(message.offset())) is not None:
                yield one, original_of(message)


def _next(consumer: Consumer, topic: str) -> ConsumedMessage:
    """Return the next record, or the message about the end of a partition or about an offset that
    it does not hold. Raise MeanderError."""
    deadline = time.monotonic() + READ_TIMEOUT
    while time.monotonic() < deadline:
        message = cast(ConsumedMessage | None, consumer.poll(0.5))
        error = None if message is None else message.error()
        if message is not None and (
            error is None or error.code() == KafkaError._PARTITION_EOF or client.is_expired(error)
        ):
            return message
        if error is not None and not client.is_transient(error):
            raise client.translate(error, f"topic {topic!r}")
    raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")


def original_of(message: ConsumedMessage) -> OriginalRecord:
    """Return the record of a message."""
    return OriginalRecord(
        message.key(), message.value(), list(message.headers() or ()), message.timestamp()[1]
    )
