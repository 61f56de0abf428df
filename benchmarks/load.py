"""Topics of the benchmarks and their records: the same for all that are compared."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from uuid import uuid4

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from meander.state.layers.topic import MAX_STATE_RECORD

KEYS = 100_000
KEY = 9
"""Bytes of a key."""
START_MS = 1_700_000_000_000
PER_MS = 10
"""Records of one millisecond of logical time."""
BATCH = 20_000
ANSWER = 30.0
"""Seconds that a broker gets to answer."""


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def create(bootstrap: str, *topics: str, partitions: int, **settings: str) -> None:
    """Make topics; returns once all of them can be used. `settings` have _ for the dots. Raises
    KafkaException where that cannot be."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = _admin(bootstrap)
    made = admin.create_topics([NewTopic(topic, partitions, config=config) for topic in topics])
    for future in made.values():
        future.result()
    for topic in topics:
        while partitions_of(admin, topic) < partitions:
            time.sleep(0.05)


def delete(bootstrap: str, prefix: str) -> None:
    """Take all topics away whose names begin so. Raises KafkaException where that cannot be."""
    admin = _admin(bootstrap)
    topics = [one for one in admin.list_topics(timeout=ANSWER).topics if one.startswith(prefix)]
    for future in admin.delete_topics(topics).values():
        future.result()


def empty(bootstrap: str, topic: str) -> None:
    """Delete all records of a topic, which keeps its id and its offsets. Raises KafkaException
    where that cannot be."""
    admin = _admin(bootstrap)
    places = [TopicPartition(topic, n, OFFSET_END) for n in range(partitions_of(admin, topic))]
    for future in admin.delete_records(places).values():
        future.result()


@contextmanager
def topic(bootstrap: str, name: str, partitions: int, **settings: str) -> Iterator[str]:
    """A new topic, named after `name`, for the block."""
    topic = f"{name}-{uuid4().hex[:8]}"
    create(bootstrap, topic, partitions=partitions, **settings)
    yield topic
    delete(bootstrap, topic)


def partitions_of(client: AdminClient | Producer | Consumer, topic: str) -> int:
    """How many a topic has; also has the client know it."""
    return len(client.list_topics(topic, timeout=ANSWER).topics[topic].partitions)


def name(number: int) -> bytes:
    """One key.

    >>> name(7), len(name(7)) == KEY
    (b'k00000007', True)
    """
    return b"k%08d" % number


def keys(seed: int, count: int = KEYS, *, skewed: bool = False) -> Iterator[bytes]:
    """Keys drawn from so many, without end: evenly, or if `skewed` the n-th as often as 1/n."""
    drawn = np.random.default_rng(seed)
    while True:
        if skewed:
            yield from map(name, (count ** drawn.random(BATCH)).astype(int).tolist())
        else:
            yield from map(name, drawn.integers(0, count, BATCH).tolist())


def fill(
    bootstrap: str, topic: str, records: int, count: int = KEYS, size: int = KEY, apart: int = 0
) -> None:
    """Put records of so many keys on a topic, evenly over its partitions, time ascending, `apart`
    milliseconds from one to the next or `PER_MS` a millisecond; a value is its key, made as long as
    `size` says."""
    names = (key.ljust(size, b".") for key in islice(keys(seed=1, count=count), records))
    aged = ((one, START_MS + (n * apart or n // PER_MS)) for n, one in enumerate(names))
    write(bootstrap, topic, aged)


def write(bootstrap: str, topic: str, records: Iterable[tuple[bytes, int]]) -> float:
    """Put records on a topic, in turns on its partitions, with times in milliseconds, 0 for now;
    what begins a value is its key. How many seconds it took."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True,
            "message.max.bytes": MAX_STATE_RECORD, "queue.buffering.max.messages": 4_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )  # fmt: skip
    spread = partitions_of(producer, topic)
    began = time.monotonic()
    for n, (value, at) in enumerate(records):
        producer.produce(topic, value, value[:KEY], n % spread, timestamp=at)
        if n % BATCH == 0:
            while len(producer) > 1_000_000:
                producer.poll(0.05)
    producer.flush()
    return time.monotonic() - began


def count(bootstrap: str, topic: str) -> int:
    """How many records a topic has, where none are deleted."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmarks"})) as reader:
        places = [TopicPartition(topic, n) for n in range(partitions_of(reader, topic))]
        ends = [reader.get_watermark_offsets(place, timeout=ANSWER) for place in places]
    return sum(end for _, end in ends)


@contextmanager
def reading(bootstrap: str, topic: str) -> Iterator[Iterator[Message]]:
    """What is committed on a topic, from its beginning to its end; the client has met the broker
    when the block begins."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "benchmarks", "log_level": 2,
            "enable.partition.eof": True, "isolation.level": "read_committed",
        }
    )  # fmt: skip
    with closing(reader):
        yield _messages(reader, topic, partitions_of(reader, topic))


def _messages(reader: Consumer, topic: str, partitions: int) -> Iterator[Message]:
    left = set(range(partitions))
    reader.assign([TopicPartition(topic, n, 0) for n in left])
    while left:
        for message in reader.consume(BATCH, 0.05):
            if (error := message.error()) is None:
                yield message
            else:
                # An offset at the end says nothing here: compaction leaves gaps.
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
