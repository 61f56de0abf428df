"""Records for the benchmarks: the same for all that are compared."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

KEYS = 100_000
KEY = 7
"""Bytes of a key."""
START_MS = 1_700_000_000_000
PER_MS = 10
"""Records of one millisecond of logical time."""
BATCH = 20_000


def create(bootstrap: str, *topics: str, partitions: int) -> None:
    """Make topics; returns once all of them can be used. Raises KafkaException where that cannot
    be."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    made = admin.create_topics([NewTopic(topic, partitions) for topic in topics])
    for future in made.values():
        future.result()
    for topic in topics:
        while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < partitions:
            time.sleep(0.05)


def delete(bootstrap: str, *topics: str) -> None:
    """Take topics away, with what is on them. Raises KafkaException where that cannot be."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for future in admin.delete_topics(list(topics)).values():
        future.result()


def keys(seed: int) -> Iterator[bytes]:
    """Keys drawn evenly from `KEYS`, without end."""
    drawn = random.Random(seed)
    names = [b"k%06d" % number for number in range(KEYS)]
    while True:
        yield from drawn.choices(names, k=BATCH)


def fill(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Put records on a topic, evenly over its partitions, time ascending; value and key are one."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True,
            "queue.buffering.max.messages": 4_000_000, "queue.buffering.max.kbytes": 1 << 20,
        }
    )  # fmt: skip
    drawn = keys(seed=1)
    for n in range(records):
        at = START_MS + n // PER_MS
        name = next(drawn)
        producer.produce(topic, name, name, n % partitions, timestamp=at)
        if n % BATCH == 0:
            while len(producer) > 1_000_000:
                producer.poll(0.05)
    producer.flush()
