"""The record producer: sends records to Kafka one by one, with a callback for each.

Guarantees that `send` neither blocks nor loses a record. Records beyond librdkafka's queue wait
here, in order, for the next `pump`. Beyond a bound of bytes `send` fails (I6); a source stops
reading long before. Callbacks run in `pump`, on the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from confluent_kafka import KafkaError, Message

from meander.connectors.kafka.client import Settings, Unreachable
from meander.connectors.kafka.sink.producer import (
    ANY_PARTITION,
    MAX_IN_FLIGHT,
    RECORD_OVERHEAD,
    BaseProducer,
    Headers,
    Report,
)
from meander.state.layers.topic import RecordLocation

Delivered = Callable[[Message], None]
"""A callback for a durable record; the message has its partition and offset."""
_Record = tuple[bytes | None, bytes | None, Report, Headers, int]


class RecordProducer(BaseProducer):
    """A producer that sends records to one topic; `max_bytes` bounds the bytes in flight."""

    def __init__(
        self, settings: Settings, topic: str, max_bytes: int = MAX_IN_FLIGHT, **tuning: str | float
    ) -> None:
        super().__init__(settings, topic, max_bytes, "", **tuning)
        self._backlog: deque[_Record] = deque()
        self._in_flight = 0

    def __len__(self) -> int:
        """Return the number of records that are not delivered."""
        return self._in_flight

    def send(
        self,
        value: bytes | None,
        key: bytes | None,
        done: Delivered,
        headers: Headers,
        partition: int = ANY_PARTITION,
    ) -> None:
        """Accept one record. A later `pump` calls `done`.

        Raise MeanderError where the bytes in flight exceed the bound.
        """
        size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD * (1 + len(headers))
        self._in_flight += 1
        self._reserve(size)
        record = value, key, partial(self._delivered, done, size), headers, partition
        if self._backlog or not self._produce(*record):
            self._backlog.append(record)

    def append(
        self,
        value: bytes,
        key: bytes | None,
        done: Callable[[int], None],
        partition: int = ANY_PARTITION,
    ) -> None:
        """Send a record as `send` does; `done` receives its offset. A broker may report no offset
        for a record whose answer was lost. The record is then sent again, and exists twice."""

        def delivered(message: Message) -> None:
            offset = message.offset()
            if offset is None:
                self.append(value, key, done, partition)
            else:
                done(offset)

        self.send(value, key, delivered, [], partition)

    def delete(self, locations: Iterable[RecordLocation]) -> None:
        """Send a tombstone for each of some records to its partition, without a callback."""
        for location in locations:
            self.send(None, location.key, ignore_delivery, [], location.partition)

    def pump(self) -> None:
        """Process delivery reports and send waiting records. Raise the broker's refusal."""
        self._poll()
        while self._backlog and self._produce(*self._backlog[0]):
            self._backlog.popleft()
        self._check()

    def flush(self, seconds: float) -> None:
        """Wait until all records are durable, at a start or an end. Raise Unreachable after
        `seconds`.

        The call also sends the records that wait beyond librdkafka's queue.
        """
        deadline = time.monotonic() + seconds
        self.pump()
        while self._in_flight and time.monotonic() < deadline:
            self._producer.flush(max(0.0, deadline - time.monotonic()))
            self.pump()
        if self._in_flight:
            raise Unreachable(
                f"topic {self.topic!r}",
                f"{self._in_flight} records could not be delivered within {seconds:g} s",
                "check that its brokers answer",
            )

    def _delivered(
        self, done: Delivered, size: int, error: KafkaError | None, message: Message
    ) -> None:
        self._in_flight -= 1
        self._bytes -= size
        if error is not None:
            self._record_failure(error)
            return
        self._record_answer()
        done(message)


def ignore_delivery(_: Message) -> None:
    """Do nothing, as the producer counts its records."""
