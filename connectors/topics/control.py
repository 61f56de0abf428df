"""The control topic and the decisions topic: commands come in, decisions go out.

Guarantees that a flow reads each command after its first start, in the order of the topic. The
caller supplies the offset to start from, as the group's offset expires. A decision's callback runs
only once the decision is durable, in the order of decisions. No call blocks except to open, start
and close. Each topic has one partition, so the order is total.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from confluent_kafka import (
    KafkaException,
    Message,
    TopicPartition,
)

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.connectors.topics.deleted_start import offset_after
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.schemas.errors import MeanderError

_MAX_COMMANDS = 100
"""The most commands per poll."""


@dataclass(frozen=True, slots=True)
class RawCommand:
    """A record of the control topic before its validation."""

    offset: int
    value: bytes | None
    millis: int
    """The time of its production, milliseconds since 1970."""


class ControlTopic:
    """A reader that reads the control topic of one flow, for the coordinator only."""

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self._topic = topic
        self._contact = client.contact(settings)
        topic_metadata.partitions_of(client.admin(settings), topic)
        self._group, self._following = group, 0
        # Commands are rare, and their topic never pauses: each wait costs the broker a request.
        self._consumer = client.consumer(settings, group, fetch_wait_max_ms=500)
        try:
            client.expect_group(settings, group)
        except MeanderError:
            self._consumer.close()
            raise

    def start(self, done: CommandsDoneDecision | None) -> CommandsDoneDecision:
        """Read from the first command on that is not done; return which commands are done.

        For None, commands before the group's committed offset are done, or, at a first start, all.
        """
        low, high = client.watermarks(self._consumer, self._topic, 0)
        if done is None:
            committed = client.retry_request(self._committed, f"consumer group {self._group!r}")
            done = CommandsDoneDecision(committed if committed >= 0 else high)
        if done.offset > high:
            # Another topic had these commands, before this one was created.
            done = CommandsDoneDecision(low)
        kept = tuple(offset for offset in done.pending if offset >= low)
        done = CommandsDoneDecision(max(low, done.offset), kept)
        self._following = done.first
        start = TopicPartition(self._topic, 0, done.first)
        self._consumer.assign([start])
        client.retry_request(
            lambda: self._consumer.commit(offsets=[start], asynchronous=False),
            f"consumer group {self._group!r}",
        )
        return done

    def poll(self) -> list[RawCommand]:
        """Return the commands since the last call. Raise MeanderError for a permanent error."""
        self._contact.check()
        commands = []
        for message in cast(list[ConsumedMessage], self._consumer.consume(_MAX_COMMANDS, 0)):
            error = message.error()
            if error is None:
                millis = message.timestamp()[1]
                commands.append(RawCommand(message.offset(), message.value(), millis))
                self._following = message.offset() + 1
            else:
                # Retention may have deleted commands that a flow did not read for a week.
                self._following = offset_after(error, self._consumer, self._topic, self._following)
        return commands

    def commit(self, offset: int) -> None:
        """Record the offset of the first command that is not done. Lag tools see it; a later start
        asks the decision log."""
        place = TopicPartition(self._topic, 0, offset)
        self._consumer.commit(offsets=[place], asynchronous=True)

    def close(self) -> None:
        """Release connections."""
        self._consumer.close()

    def _committed(self) -> int:
        place = TopicPartition(self._topic, 0)
        (committed,) = self._consumer.committed([place], timeout=client.REQUEST_TIMEOUT)
        if committed.error is not None:
            raise KafkaException(committed.error)
        return committed.offset


def submit(settings: Settings, topic: str, command: bytes) -> int:
    """Put a command on the control topic; return its offset. Raise MeanderError if it is not
    accepted."""
    delivered: list[Message] = []
    with contextlib.closing(RecordProducer(settings, topic)) as producer:
        producer.send(command, None, delivered.append, [])
        producer.flush(client.REQUEST_TIMEOUT)
    (message,) = delivered
    offset = message.offset()
    if offset is None:
        # A repeated send might execute the command twice.
        raise MeanderError(
            f"topic {topic!r}",
            "Kafka has received the command before, and does not report its offset",
            "check its outcome with meander status",
        )
    return offset


class DecisionTopic:
    """A writer that appends decisions to their topic, for the coordinator only."""

    def __init__(self, settings: Settings, topic: str) -> None:
        topic_metadata.partitions_of(client.admin(settings), topic)
        self._producer = RecordProducer(settings, topic)

    def append(self, decision: bytes, then: Callable[[], None]) -> None:
        """Write one decision; a later `pump` calls `then` once it is durable."""
        self._producer.send(decision, None, lambda _: then(), [])

    def write(self, decision: bytes, seconds: float = client.REQUEST_TIMEOUT) -> None:
        """Write one decision, and wait until it is durable. Raise Unreachable after `seconds`; the
        decision may still become durable."""
        self._producer.send(decision, None, ignore_delivery, [])
        self.flush(seconds)

    def flush(self, seconds: float = client.REQUEST_TIMEOUT) -> None:
        """Wait until all decisions are durable. Raise Unreachable after `seconds`."""
        self._producer.flush(min(seconds, client.REQUEST_TIMEOUT))

    def pump(self) -> None:
        """Call back for durable decisions. Raise the broker's refusal."""
        self._producer.pump()

    def close(self) -> None:
        """Drop unsent decisions and release connections."""
        self._producer.close()
