"""What a plain loop makes of the chunks that a migration moves: written to a topic, then read."""

from __future__ import annotations

import time
from contextlib import closing
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from benchmarks import load
from benchmarks.running import Running
from meander.connectors.topics.topics import MAX_STATE_RECORD

MOST = 512 << 20
"""Bytes of chunks at most: more take longer, at the same speed."""


def plainly(flow: Running) -> dict[str, float]:
    """Bytes per second, of the chunks on a flow's state topic."""
    with closing(_reader(flow.bootstrap)) as reader:
        chunks = _read(reader, flow.names.state)
    topic = f"raw-{uuid4().hex[:8]}"
    load.create(flow.bootstrap, topic, partitions=1, max_message_bytes=str(MAX_STATE_RECORD))
    writer = _writer(flow.bootstrap)
    with closing(_reader(flow.bootstrap)) as reader:
        # Both know the topic before the clock runs.
        load.partitions(writer, topic)
        load.partitions(reader, topic)
        began = time.monotonic()
        for chunk in chunks:
            writer.produce(topic, chunk)
        writer.flush()
        written = time.monotonic()
        read = _read(reader, topic)
        ended = time.monotonic()
    assert read == chunks
    load.delete(flow.bootstrap, topic)
    size = sum(map(len, chunks))
    return {
        "raw_bytes_per_s": size / (ended - began),
        "raw_write_bytes_per_s": size / (written - began),
        "raw_read_bytes_per_s": size / (ended - written),
    }


def _writer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0,
            "message.max.bytes": MAX_STATE_RECORD, "queue.buffering.max.kbytes": 1 << 20,
        }
    )  # fmt: skip


def _reader(bootstrap: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": "raw", "enable.partition.eof": True}
    return Consumer(settings)


def _read(reader: Consumer, topic: str) -> list[bytes]:
    """What a topic holds, up to `MOST` bytes; compaction leaves gaps in its offsets."""
    left = set(range(load.partitions(reader, topic)))
    reader.assign([TopicPartition(topic, n, 0) for n in left])
    chunks: list[bytes] = []
    size = 0
    while left and size < MOST:
        for message in reader.consume(1000, 0.05):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
            elif (value := message.value()) is not None:
                chunks.append(value)
                size += len(value)
    return chunks
