"""The status topic: events of commands, heartbeats of the flow, and claims of its drivers.

Guarantees that events arrive in the order written. Of all drivers that claim a flow, the first
claim without another live driver wins. A driver is live from its claim until its end event, or
until its silence exceeds its own lease by the broker's clock. All readers see one order, so all
agree on the holder. A read of recent events takes the same time after an hour and after a week.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, Message, TopicPartition

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.topics.deleted_start import offset_after
from meander.connectors.topics.internal_topics import expect_started
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Claimed, Event, Failed, Finished, Heartbeat, parse_event

log = LineLogger(__name__)

RECENT = 4096
"""The number of recent events: an hour and more of heartbeats alone."""


class StatusTopic:
    """A writer that appends the events of one flow."""

    def __init__(self, settings: Settings, topic: str) -> None:
        topic_metadata.partitions_of(client.admin(settings), topic)
        self._settings, self._topic = settings, topic
        self._producer = RecordProducer(settings, topic)
        self._last_millis: int | None = None
        self._silence = 0

    def claim(self, flow: str, claimed: Claimed) -> Holder:
        """Claim a flow; return its holder: this driver, or another that was first."""
        while True:
            self.write(claimed)
            self.flush(client.REQUEST_TIMEOUT)
            if (found := self.holder(flow)) is not None:
                return found
            # Another driver held the flow at this claim, and has ended meanwhile; so claim it
            # again.

    def holder(self, flow: str) -> Holder | None:
        """Return the holder of a flow."""
        with contextlib.closing(StatusReader(self._settings, self._topic, flow)) as reader:
            return holder(reader.recent())

    def write(self, event: Event) -> None:
        """Append one event without blocking."""
        self._producer.send(event.to_bytes(), event.key.encode(), self._delivered, [])

    def pump(self) -> None:
        """Send waiting events. Raise the broker's refusal."""
        self._producer.pump()

    def flush(self, seconds: float) -> None:
        """Wait until all events are written, at the end of a flow. Raise MeanderError after
        `seconds`."""
        self._producer.flush(seconds)

    def silence(self) -> float:
        """Return the longest gap between two events by the broker's clock since the last call,
        seconds. Another driver may have claimed the flow in a gap as long as the lease."""
        silence, self._silence = self._silence, 0
        return silence / 1000

    def close(self) -> None:
        """Drop unsent events and release connections."""
        self._producer.close()

    def _delivered(self, message: Message) -> None:
        last, self._last_millis = self._last_millis, message.timestamp()[1]
        if last is not None:
            self._silence = max(self._silence, self._last_millis - last)


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """An event that was read from the topic."""

    offset: int
    millis: int
    """The broker's time of arrival, milliseconds since 1970."""
    event: Event


class StatusReader:
    """A reader that reads the events of one flow; one iterator at a time.

    Raise SetupError where no flow of that name has run.
    """

    def __init__(self, settings: Settings, topic: str, flow: str) -> None:
        admin = client.admin(settings)
        expect_started(admin, topic, flow)
        self._topic, self._bootstrap, self._following = topic, admin.bootstrap, 0
        self._consumer = client.consumer(settings, "meander.status")
        try:
            self.low, self.high = client.watermarks(self._consumer, topic, 0)
        except MeanderError:
            self._consumer.close()
            raise

    def recent(self) -> list[StatusRecord]:
        """Return the last events at construction, in order.

        These are `RECENT` events, or more until one is a heartbeat; all if there are fewer.
        """
        step = RECENT
        while True:
            start = max(self.low, self.high - step)
            records = list(self._between(start, self.high))
            if start == self.low or any(isinstance(record.event, Heartbeat) for record in records):
                return records
            step *= 2

    def all(self) -> Iterator[StatusRecord]:
        """Yield all events at construction, in order."""
        return self._between(self.low, self.high)

    def follow(self) -> Iterator[StatusRecord | None]:
        """Yield the events since construction, without an end.

        Yield None about twice a second without events, so that the caller can check the clock or
        stop.
        """
        return self._from(self.high)

    def close(self) -> None:
        """Release connections."""
        self._consumer.close()

    def _between(self, start: int, end: int) -> Iterator[StatusRecord]:
        if start >= end:
            return
        answered_at = time.monotonic()
        for record in self._from(start):
            if record is not None and record.offset < end:
                yield record
                answered_at = time.monotonic()
            # Retention may have deleted all events before the end.
            if self._following >= end:
                return
            if time.monotonic() - answered_at > client.REQUEST_TIMEOUT:
                silence = KafkaError(KafkaError._TIMED_OUT)
                raise client.translate(silence, f"topic {self._topic!r}", self._bootstrap)

    def _from(self, start: int) -> Iterator[StatusRecord | None]:
        self._consumer.assign([TopicPartition(self._topic, 0, start)])
        self._following = start
        while True:
            message = cast(ConsumedMessage | None, self._consumer.poll(0.5))
            error = None if message is None else message.error()
            if message is not None and error is None:
                self._following = message.offset() + 1
                event = self._event(message)
                millis = message.timestamp()[1]
                yield None if event is None else StatusRecord(message.offset(), millis, event)
                continue
            if error is not None:
                # Where retention has deleted events, later heartbeats tell the flow's state.
                self._following = offset_after(error, self._consumer, self._topic, self._following)
            yield None

    def _event(self, message: ConsumedMessage) -> Event | None:
        """Return the event of a message, None for an event of another version of Meander."""
        try:
            return parse_event(message.value() or b"")
        except ValueError:
            log.warning(
                "record_ignored",
                topic=self._topic,
                offset=message.offset() or 0,
                reason="it is not an event of this version of Meander",
            )
            return None


@dataclass(frozen=True, slots=True)
class Holder:
    """The driver that holds a flow, as of its last event."""

    driver: str
    millis: int
    """The broker's time of that event, milliseconds since 1970."""
    heartbeat_timeout: float


def holder(records: Iterable[StatusRecord]) -> Holder | None:
    """Return the holder of the flow after these events. They are all, or contain a heartbeat."""
    found: Holder | None = None
    for record in records:
        match record.event:
            case Claimed() as event if found is None or _is_silent(found, record.millis):
                found = Holder(event.driver, record.millis, event.heartbeat_timeout)
            case Heartbeat() as event if found is None or found.driver == event.driver:
                # A heartbeat of another driver comes from an earlier holder whose lease has
                # expired.
                found = Holder(event.driver, record.millis, event.heartbeat_timeout)
            case Finished(driver=driver) | Failed(driver=driver):
                if found is not None and found.driver == driver:
                    found = None
    return found


def _is_silent(last: Holder, millis: int) -> bool:
    return millis - last.millis >= last.heartbeat_timeout * 1000
