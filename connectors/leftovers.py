"""Layers on the state topic that nobody can name: whoever wrote them failed before saying where.

Guarantees that nothing is erased but what one incarnation of a flow has written. Calls block. Cost:
all that has been written to the topic meanwhile is read again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import cast

from confluent_kafka import KafkaError, TopicPartition

from connectors import client
from connectors.checkpoints import DURABLE
from connectors.client import Fetched, Settings
from connectors.sender import Sender, noted
from connectors.topics import STATE_PARTITIONS
from schemas.errors import MeanderError
from state.ids import COORDINATOR, Incarnation, LayerId


def ends(settings: Settings, topic: str) -> list[int]:
    """By partition of a state topic, where the next record will lie."""
    with contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer:
        return [client.watermarks(consumer, topic, p)[1] for p in range(STATE_PARTITIONS)]


def erase(settings: Settings, topic: str, since: Sequence[int], incarnation: Incarnation) -> None:
    """Have compaction take off a state topic what an incarnation's coordinator has had written from
    these offsets on. Raises MeanderError where the broker does not answer."""
    layers = LayerId(incarnation, COORDINATOR, 0).key(0).removesuffix(b"0/0")
    contact, unread = client.contact(settings), set(range(STATE_PARTITIONS))
    with (
        contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer,
        contextlib.closing(Sender(settings, topic)) as sender,
    ):
        consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(since)])
        deadline = time.monotonic() + DURABLE
        while unread:
            contact.check()
            sender.pump()
            message = cast(Fetched | None, consumer.poll(0.5))
            if message is None:
                if time.monotonic() > deadline:
                    raise MeanderError(
                        f"topic {topic!r}", f"nothing came from it for {DURABLE:g} s",
                        "see whether its brokers answer",
                    )  # fmt: skip
                continue
            deadline = time.monotonic() + DURABLE
            error = message.error()
            if error is None:
                key = message.key() or b""
                if key.startswith(layers) and message.value() is not None:
                    sender.send(None, key, noted, [], message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif not client.transient(error):
                raise client.translate(error, f"topic {topic!r}")
        sender.flush(DURABLE)
