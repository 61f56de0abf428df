"""The status topic: what became of commands, and whether the flow lives.

Guarantees that events arrive in the order written. Whether another driver runs a flow is told by
the newest of its heartbeats, timed by the broker's clock, unless that driver has said that it is
finished or has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from connectors import client, topics
from connectors.client import Fetched, Settings
from connectors.outbox import Outbox
from schemas.errors import MeanderError
from schemas.status import Event, Failed, Finished, Heartbeat, parse_event

STEP = 256
"""Events looked at first, from the end backwards; doubled until a heartbeat is among them."""


class StatusTopic:
    """Writes the events of one flow."""

    def __init__(self, settings: Settings, topic: str) -> None:
        topics.partitions_of(client.admin(settings), topic)
        self._outbox = Outbox(settings, topic)

    def write(self, event: Event) -> None:
        """Append one event; never blocks."""
        self._outbox.send(event.to_bytes(), event.key.encode(), _done, [])

    def pump(self) -> None:
        """Send what waits. Raises what the broker refused."""
        self._outbox.pump()

    def flush(self, seconds: float) -> None:
        """Wait until all is written, at the end of a flow. Raises MeanderError if it takes more."""
        self._outbox.flush(seconds)

    def close(self) -> None:
        """Give up what is under way."""
        self._outbox.close()


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it was found on the topic."""

    offset: int
    millis: int
    """When the broker took it, milliseconds since 1970."""
    event: Event


def read_status(settings: Settings, topic: str, *, follow: bool) -> Iterator[Told | None]:
    """All events there are, in order; with `follow` what comes then too, for ever.

    None is yielded when all there was has been, and (with `follow`) about twice a second while
    nothing comes, so that whoever reads can look at the clock or stop.
    Raises SetupError for a missing topic.
    """
    topics.partitions_of(client.admin(settings), topic)
    consumer = client.consumer(settings, "meander.status")
    try:
        low, high = client.watermarks(consumer, topic, 0)
        yield from _read(consumer, topic, low, None if follow else high)
    finally:
        consumer.close()


def last_heartbeat(settings: Settings, topic: str) -> Told | None:
    """The newest heartbeat on a status topic; None if there is none, or its driver has ended.

    Raises SetupError for a missing topic.
    """
    topics.partitions_of(client.admin(settings), topic)
    consumer = client.consumer(settings, "meander.status")
    try:
        low, high = client.watermarks(consumer, topic, 0)
        start, step = high, STEP
        while start > low:
            start, step = max(low, high - step), step * 2
            told = [t for t in _read(consumer, topic, start, high) if t is not None]
            newest = _newest(told)
            if newest is not None:
                return newest if isinstance(newest.event, Heartbeat) else None
    finally:
        consumer.close()
    return None


def _newest(events: list[Told]) -> Told | None:
    """The last that says whether a driver lives: a heartbeat, or its end."""
    return next(
        (t for t in reversed(events) if isinstance(t.event, Heartbeat | Finished | Failed)), None
    )


def _read(consumer: Consumer, topic: str, start: int, end: int | None) -> Iterator[Told | None]:
    """Events from `start` to the first position at or behind `end`; the consumer is reassigned."""
    consumer.assign([TopicPartition(topic, 0, start)])
    position = start
    while end is None or position < end:
        message = cast(Fetched | None, consumer.poll(0.5))
        error = None if message is None else message.error()
        if message is None or error is not None:
            if message is not None and error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    position = message.offset()
                elif not client.transient(error):
                    raise client.translate(error, f"topic {topic!r}")
            yield None
            continue
        position = message.offset() + 1
        yield Told(message.offset(), message.timestamp()[1], _event(topic, message))


def _event(topic: str, message: Fetched) -> Event:
    try:
        return parse_event(message.value() or b"")
    except ValueError as error:
        raise MeanderError(
            f"topic {topic!r}, offset {message.offset()}", f"this is no event: {error}",
            "let nothing but Meander write there",
        ) from None  # fmt: skip


def _done(_: Message) -> None:
    """Events are not waited for one by one."""
