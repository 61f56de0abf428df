"""Ranges of Kafka's partitions, as batch reads by Spark read them.

Guarantees each committed record of a range once, in offset order. The position marks the end, as
transaction markers and compacted records occupy offsets. Cost: two requests for the ranges of all
partitions; one consumer per read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql.datasource import InputPartition

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import ConsumedMessage
from meander.schemas.errors import MeanderError

BATCH = 10_000
"""The records of an Arrow batch: enough to make Arrow's own cost vanish, about 5 MB at most."""
READ_TIMEOUT = 60.0
"""The seconds without an answer from the broker after which a read fails."""


@dataclass(frozen=True, slots=True)
class TopicRange(InputPartition):
    """A range of offsets [start, end) in one topic partition."""

    topic: str
    partition: int
    start: int
    end: int


def ranges_of(settings: Mapping[str, str], topics: Sequence[str]) -> list[TopicRange]:
    """Return the range of every partition as of now; its end is the last stable offset."""
    admin = client.admin(settings)
    every = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(topic_metadata.partitions_of(admin, topic))
    ]
    starts = _offsets(admin, every, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = _offsets(admin, every, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return [TopicRange(at.topic, at.partition, starts[at], ends[at]) for at in every]


def _offsets(
    admin: AdminClient, every: list[TopicPartition], which: OffsetSpec
) -> dict[TopicPartition, int]:
    answers = admin.list_offsets(
        dict.fromkeys(every, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=client.REQUEST_TIMEOUT,
    )
    return {at: answer.result().offset for at, answer in answers.items()}


def read_range(consumer: Consumer, span: TopicRange) -> Iterator[list[ConsumedMessage]]:
    """Yield the committed records of a range that the consumer is assigned to, in offset order.

    Raise MeanderError where the broker does not answer for `READ_TIMEOUT` seconds.
    """
    position = span.start
    buffered: list[ConsumedMessage] = []
    last_answer = time.monotonic()
    while position < span.end:
        # At the end of the log, `consume` waits for its whole timeout; `poll` does not.
        first = consumer.poll(1.0)
        found = [] if first is None else [first, *consumer.consume(BATCH, timeout=0)]
        for message in cast(list[ConsumedMessage], found):
            error = message.error()
            if error is None:
                buffered.append(message)
                position = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # Lower offsets that were not delivered hold no records.
                position = max(position, message.offset())
            elif not error.retriable():
                raise client.translate(error, f"topic '{span.topic}'")
        if found:
            last_answer = time.monotonic()
        elif time.monotonic() - last_answer > READ_TIMEOUT:
            raise MeanderError(
                f"partition {span.partition} of topic '{span.topic}'",
                f"no answer for {READ_TIMEOUT:.0f} s at offset {position} of {span.end}",
                "check that the broker runs",
            )
        if len(buffered) >= BATCH or position >= span.end:
            whole = [message for message in buffered if message.offset() < span.end]
            buffered = []
            if whole:
                yield whole
