"""A full read of a topic with one partition, at the start of an execution.

Guarantees all records that were committed at the time of the call, except for deleted ones. Where a
running flow deletes records meanwhile, the read gives what one begun after that gives. Transactions
leave their own markers on a topic, so its end is where the broker reports it. Cost: some 200,000
records a second.
"""

from __future__ import annotations

import contextlib
import time
from typing import cast

from confluent_kafka import KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.topics.deleted_start import offset_after

_BATCH_RECORDS = 10_000
READ_TIMEOUT = 60.0
"""The seconds without an answer of a broker after which the read fails."""


def read_all(settings: Settings, topic: str) -> list[bytes]:
    """Return the values of all records of a topic, in order. Raise MeanderError.

    A read that meets deleted records continues at the new start of the topic. No reader needs the
    records before it: `MarkerRetention` deletes only markers that no restart needs.
    """
    found: list[bytes] = []
    answered_at = time.monotonic()
    with contextlib.closing(client.reader(settings, topic)) as consumer:
        low, high = client.watermarks(consumer, topic, 0)
        if low == high:
            return found
        consumer.assign([TopicPartition(topic, 0, low)])
        following = low
        while time.monotonic() - answered_at < READ_TIMEOUT:
            first = consumer.poll(0.5)
            more = [] if first is None else [first, *consumer.consume(_BATCH_RECORDS, 0)]
            for message in cast(list[ConsumedMessage], more):
                error = message.error()
                if error is None:
                    answered_at = time.monotonic()
                    found.append(message.value() or b"")
                    following = message.offset() + 1
                    if following >= high:
                        return found
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= high:
                    return found
                elif (start := offset_after(error, consumer, topic, following)) > following:
                    following = start
                    # Records before a gap would not tell what was deleted behind them.
                    found.clear()
                    if following >= high:
                        return found
    raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")
