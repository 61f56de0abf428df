"""A live auction house: each event goes to its topic when it is due, whatever became of others.

Guarantees that the time of an event is the millisecond at which it is due. A process of its own
sends, so a slow flow slows no event.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from heapq import merge
from itertools import cycle, repeat

from confluent_kafka import Producer

from benchmarks.nexmark.events import TOPICS, Generator
from benchmarks.running import PARTITIONS

TICK = 0.001
AHEAD = 2.0
"""Seconds in which a sender makes its events."""


def feed(bootstrap: str, prefix: str, rate: int, seconds: float) -> int:
    """Send events at a rate; return when the first was due, in milliseconds since 1970."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_send, bootstrap, prefix, rate, seconds).result()


def _send(bootstrap: str, prefix: str, rate: int, seconds: float) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for topic in TOPICS:
        producer.list_topics(prefix + topic, timeout=10)
    began = round(1000 * (time.time() + AHEAD))
    events = [*_events(Generator(rate, began), prefix, round(rate * seconds))]
    assert 1000 * time.time() < began, "the events were not made in time"
    for due, topic, partition, value in events:
        while (ahead := due / 1000 - time.time()) > 0:
            producer.poll(0)
            time.sleep(min(ahead, TICK))
        producer.produce(topic, value, partition=partition, timestamp=due)
    left = producer.flush(30)
    assert not left, f"{left} events were not sent"
    return began


def _events(
    generator: Generator, prefix: str, events: int
) -> Iterator[tuple[int, str, int, bytes]]:
    """Yield the times, topics, partitions and values of events in the order of time."""
    turns = {topic: cycle(range(PARTITIONS)) for topic in TOPICS}
    for block in generator.blocks(events):
        parts = (
            zip(block.times[topic].tolist(), repeat(prefix + topic), turns[topic],
                block.values[topic], strict=False)
            for topic in TOPICS
        )  # fmt: skip
        yield from merge(*parts, key=lambda event: event[0])
