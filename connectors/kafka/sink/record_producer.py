"""Records on their way to Kafka one by one: each is told of when it is durable.

Guarantees that `send` neither blocks nor loses a record: what librdkafka's queue cannot take waits
here, in order, for the next `pump`, up to a bound of bytes beyond which `send` fails (I6); a source
stops reading long before. Callbacks run in `pump`, on the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from confluent_kafka import KafkaError, Message

from meander.connectors.kafka.client import Settings, Unreachable
from meander.connectors.kafka.sink.producer import (
    ANYWHERE,
    MOST,
    OVERHEAD,
    Headers,
    Producing,
    Report,
)
from meander.state.layers.topic import RecordLocation

Delivered = Callable[[Message], None]
"""Called once a record is durable; the message has its partition and offset."""
_Record = tuple[bytes | None, bytes | None, Report, Headers, int]


class Sender(Producing):
    """One producer for one topic; `most` bounds the bytes under way."""

    def __init__(
        self, settings: Settings, topic: str, most: int = MOST, **tuning: str | float
    ) -> None:
        super().__init__(settings, topic, most, **tuning)
        self._backlog: deque[_Record] = deque()
        self._under_way = 0

    def __len__(self) -> int:
        """Records not yet delivered."""
        return self._under_way

    def send(
        self,
        value: bytes | None,
        key: bytes | None,
        done: Delivered,
        headers: Headers,
        partition: int = ANYWHERE,
    ) -> None:
        """Take one record over; `done` is called from a later `pump`.

        Raises MeanderError where more is under way than the bound.
        """
        size = len(value or b"") + len(key or b"") + OVERHEAD * (1 + len(headers))
        self._under_way += 1
        self._take_over(size)
        record = value, key, partial(self._delivered, done, size), headers, partition
        if self._backlog or not self._produce(*record):
            self._backlog.append(record)

    def place(
        self,
        value: bytes,
        key: bytes | None,
        done: Callable[[int], None],
        partition: int = ANYWHERE,
    ) -> None:
        """As `send`; `done` is called with the offset. A broker that has had a record before, whose
        answer was lost, may not know where: it is sent again then, and so lies there twice."""

        def placed(message: Message) -> None:
            offset = message.offset()
            if offset is None:
                self.place(value, key, done, partition)
            else:
                done(offset)

        self.send(value, key, placed, [], partition)

    def forget(self, places: Iterable[RecordLocation]) -> None:
        """Put a tombstone for each of some records behind it; nothing waits for these."""
        for place in places:
            self.send(None, place.key, noted, [], place.partition)

    def pump(self) -> None:
        """Serve what has been delivered and send what waits. Raises what the broker refused."""
        self._poll()
        while self._backlog and self._produce(*self._backlog[0]):
            self._backlog.popleft()
        self._check()

    def flush(self, seconds: float) -> None:
        """Wait until all is durable, at a start or an end. Raises Unreachable when it takes more.

        What waits here beyond librdkafka's queue is sent too.
        """
        deadline = time.monotonic() + seconds
        self.pump()
        while self._under_way and time.monotonic() < deadline:
            self._producer.flush(max(0.0, deadline - time.monotonic()))
            self.pump()
        if self._under_way:
            raise Unreachable(
                f"topic {self.topic!r}",
                f"{self._under_way} records could not be delivered within {seconds:g} s",
                "see whether its brokers answer",
            )

    def _delivered(
        self, done: Delivered, size: int, error: KafkaError | None, message: Message
    ) -> None:
        self._under_way -= 1
        self._bytes -= size
        if error is not None:
            self._failed(error)
            return
        self._heard()
        done(message)


def noted(_: Message) -> None:
    """The sender itself counts what is under way."""
