"""Tombstones for orphans on the state topic and the in-flight topic.

Guarantees that one tombstone follows each orphan. Calls block. Cost: all records written to the
topic since then are read again, one partition after the other. Memory holds one key per deleted
record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.connectors.topics.checkpoints import WRITE_TIMEOUT
from meander.connectors.topics.internal_topics import STATE_PARTITIONS
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, ExecutionId, LayerId


def end_offsets(settings: Settings, topic: str) -> list[int]:
    """Return the end offset of each partition of a state topic."""
    with contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer:
        return [client.watermarks(consumer, topic, p)[1] for p in range(STATE_PARTITIONS)]


def written_by(execution: ExecutionId) -> Callable[[bytes], bool]:
    """Return a predicate for keys of layers that an execution's coordinator has written."""
    layers = LayerId(execution, COORDINATOR, 0).key(0).removesuffix(b"0/0")
    return lambda key: key.startswith(layers)


def _never(_: int) -> bool:
    return False


def delete_matching(
    settings: Settings,
    topic: str,
    spans: Sequence[range],
    matches: Callable[[bytes], bool],
    stop: Callable[[int], bool] = _never,
) -> None:
    """Let compaction delete the records whose keys match, within some offsets of each partition.
    `stop` receives the bytes of each record, and may end the scan. Raise MeanderError where the
    broker does not answer."""
    with (
        contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer,
        contextlib.closing(RecordProducer(settings, topic)) as producer,
    ):
        for partition, span in enumerate(spans):
            if stop(0):
                return
            low, high = client.watermarks(consumer, topic, partition)
            found = set[bytes]()
            first, end = max(low, span.start), min(high, span.stop)
            if first < end:
                start = TopicPartition(topic, partition, first)
                for key, size in _records(settings, consumer, start, end):
                    if matches(key):
                        (found.add if size is not None else found.discard)(key)
                    if stop(len(key) + (size or 0)):
                        return
            for key in found:
                producer.send(None, key, ignore_delivery, [], partition)
            producer.flush(WRITE_TIMEOUT)


def _records(
    settings: Settings, consumer: Consumer, start: TopicPartition, end: int
) -> Iterator[tuple[bytes, int | None]]:
    """Yield the keys between two offsets of a partition, with the bytes of each value, None for a
    tombstone."""
    contact, deadline = client.contact(settings), time.monotonic() + WRITE_TIMEOUT
    consumer.assign([start])
    while time.monotonic() < deadline:
        contact.check()
        message = cast(ConsumedMessage | None, consumer.poll(0.5))
        error = None if message is None else message.error()
        if message is None or (error is not None and client.is_transient(error)):
            continue
        deadline = time.monotonic() + WRITE_TIMEOUT
        if error is None:
            value = message.value()
            if message.offset() < end:
                yield message.key() or b"", None if value is None else len(value)
        elif error.code() != KafkaError._PARTITION_EOF:
            raise client.translate(error, f"topic {start.topic!r}")
        if message.offset() >= end - (error is None):
            return
    raise MeanderError(
        f"topic {start.topic!r}", f"it returned no record for {WRITE_TIMEOUT:g} s",
        "check that its brokers answer",
    )  # fmt: skip
