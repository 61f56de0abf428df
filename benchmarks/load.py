"""Records for the benchmarks: the same for all that are compared."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

KEYS = 100_000
KEY = 9
"""Bytes of a key."""
START_MS = 1_700_000_000_000
PER_MS = 10
"""Records of one millisecond of logical time."""
BATCH = 20_000


def create(bootstrap: str, *topics: str, partitions: int, **settings: str) -> None:
    """Make topics; returns once all of them can be used. `settings` have _ for the dots. Raises
    KafkaException where that cannot be."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    made = admin.create_topics([NewTopic(topic, partitions, config=config) for topic in topics])
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


def delete_all(bootstrap: str, prefix: str) -> None:
    """Take all topics away whose names begin so."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    delete(
        bootstrap, *[one for one in admin.list_topics(timeout=30).topics if one.startswith(prefix)]
    )


def partitions(client: Producer | Consumer, topic: str) -> int:
    """How many a topic has; also has the client know it."""
    return len(client.list_topics(topic, timeout=30).topics[topic].partitions)


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
    names = islice(keys(seed=1, count=count), records)
    _produce(bootstrap, topic, (key.ljust(size, b".") for key in names), aged=True, apart=apart)


def each(bootstrap: str, topic: str, count: int) -> None:
    """Put one record of each of so many keys on a topic, of the time when it is sent."""
    _produce(bootstrap, topic, map(name, range(count)), aged=False)


def _produce(
    bootstrap: str, topic: str, names: Iterable[bytes], aged: bool, apart: int = 0
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True,
            "queue.buffering.max.messages": 4_000_000, "queue.buffering.max.kbytes": 1 << 20,
        }
    )  # fmt: skip
    spread = partitions(producer, topic)
    for n, key in enumerate(names):
        at = START_MS + (n * apart or n // PER_MS) if aged else 0
        producer.produce(topic, key, key[:KEY], n % spread, timestamp=at)
        if n % BATCH == 0:
            while len(producer) > 1_000_000:
                producer.poll(0.05)
    producer.flush()
