"""Topics of one partition that are read as a whole, at the start of a flow's life.

Guarantees that what is returned is all that was committed when the call was made: transactions
leave marks of their own on a topic, so where they come last its end is where the broker says so.
Cost: some 200,000 records a second.
"""

from __future__ import annotations

import contextlib
import time
from typing import cast

from confluent_kafka import KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings

_AT_ONCE = 10_000
SILENCE = 60.0
"""Seconds without a word of a broker after which no more is expected."""


def whole(settings: Settings, topic: str) -> list[bytes]:
    """The values of all records of a topic, in order. Raises MeanderError."""
    found: list[bytes] = []
    heard = time.monotonic()
    with contextlib.closing(client.reader(settings, topic)) as consumer:
        low, high = client.watermarks(consumer, topic, 0)
        if low == high:
            return found
        consumer.assign([TopicPartition(topic, 0, low)])
        while time.monotonic() - heard < SILENCE:
            first = consumer.poll(0.5)
            more = [] if first is None else [first, *consumer.consume(_AT_ONCE, 0)]
            for message in cast(list[ConsumedMessage], more):
                error = message.error()
                if error is None:
                    heard = time.monotonic()
                    found.append(message.value() or b"")
                    if message.offset() >= high - 1:
                        return found
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= high:
                    return found
                elif error.code() != KafkaError._PARTITION_EOF and not client.transient(error):
                    raise client.translate(error, f"topic {topic!r}")
    raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")
