"""The way out to Kafka: records leave in the order given, and nothing waits for them.

Guarantees that `send` neither blocks nor loses a record: what librdkafka's queue cannot take waits
here, in order, for the next `pump`, up to a bound of bytes beyond which `send` fails (I6); a source
stops reading long before. What is shipped together leaves once all that left before has arrived:
batches grow with the load by themselves, and librdkafka, whose thread spins while many requests
wait for one another, never has many. Callbacks run in `pump`, on the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

from confluent_kafka import KafkaError, KafkaException, Message

from connectors.client import (
    GRACE,
    Settings,
    contact,
    producer,
    transient,
    translate,
)
from dataflow.bound import Bound
from schemas.errors import MeanderError

Delivered = Callable[[Message], None]
"""Called once a record is durable; the message has its partition and offset."""
Header = tuple[str, bytes | str | None]
Headers = list[Header]
_Report = Callable[[KafkaError | None, Message], None]
_Record = tuple[bytes | None, bytes | None, _Report | None, Headers | None, int]
ANYWHERE = -1
"""librdkafka chooses the partition."""
MOST = 1 << 30
"""Bytes that may be under way where nobody says otherwise."""
OVERHEAD = 64
"""About what librdkafka keeps of a record, and of each of its headers, beside its bytes."""
_TOGETHER = 20_000, 16 << 20
"""Records, and bytes of them, that librdkafka's queue always takes."""
_QUEUE = {"queue.buffering.max.messages", "queue.buffering.max.kbytes"}
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


class Shipment:
    """Records that are under way together; librdkafka calls it for the last of each partition."""

    __slots__ = ("_heard", "_outbox", "count", "left", "size")

    def __init__(self, outbox: Outbox, count: int, size: int, calls: int) -> None:
        self._outbox = outbox
        self.count, self.size, self.left = count, size, calls
        self._heard = True

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        """All of one partition are durable, or one of them will never be."""
        self.left -= 1
        if error is not None:
            self._heard = False
            self._outbox.failed(error)
        if not self.left:
            self._outbox.arrived(self.count, self.size, self._heard)


@dataclass(frozen=True, slots=True)
class _Load:
    """The records of a shipment that has not left."""

    shipment: Shipment
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    partitions: Sequence[int]
    headers: Sequence[Headers] | None


class Outbox:
    """One producer for one topic; `most` bounds the bytes under way."""

    def __init__(
        self, settings: Settings, topic: str, most: int = MOST, **tuning: str | float
    ) -> None:
        self.topic = topic
        self._producer = producer(settings, **tuning)
        self._contact = contact(settings)
        self._backlog: deque[_Record] = deque()
        self._bound = Bound(f"topic {topic!r}", most)
        self._loads: deque[_Load] = deque()
        self._under_way = self._bytes = self._away = 0
        self._roomy = _QUEUE.isdisjoint(settings)
        self._failure: MeanderError | None = None
        self._connect()

    def __len__(self) -> int:
        """Records not yet delivered."""
        return self._under_way

    @property
    def full(self) -> bool:
        """Whether half of the bytes that may be under way are."""
        return 2 * self._bytes >= self._bound.most

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
        self._take_over(1, size)
        self._go((value, key, partial(self._delivered, done, size), headers, partition))

    def ship(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partitions: Sequence[int],
        headers: Sequence[Headers] | None,
    ) -> Shipment:
        """Take many records over; as `send`, for a third of the price and less.

        A call per record is half of that price, so only the last of each partition is called for:
        an idempotent producer delivers those of a partition in order, and one that could not would
        end for good (`enable.gapless.guarantee`).
        """
        size = _size(values) + _size(keys) + OVERHEAD * len(values)
        size += 0 if headers is None else OVERHEAD * sum(map(len, headers))
        places = set(partitions)
        shipment = Shipment(
            self, len(values), size, len(values) if ANYWHERE in places else len(places)
        )
        self._take_over(len(values), size)
        if values:
            self._loads.append(_Load(shipment, values, keys, partitions, headers))
            self._depart()
        return shipment

    def arrived(self, count: int, size: int, heard: bool) -> None:
        """One shipment of so many records and bytes is no longer under way."""
        self._away -= 1
        self._over(count, size, heard)

    def _over(self, count: int, size: int, heard: bool) -> None:
        """So many records and bytes are no longer under way; whether a broker has said so."""
        self._under_way -= count
        self._bytes -= size
        if heard and self._contact.lost:
            self._contact.heard()

    def failed(self, error: KafkaError) -> None:
        """Remember the first failure for `pump`, unless it is our own giving up."""
        if self._failure is None and error.code() not in _PURGED:
            self._failure = translate(error, f"topic {self.topic!r}")

    def pump(self) -> None:
        """Serve what has been delivered and send what waits. Raises what the broker refused."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self.failed(error.args[0])
        while self._backlog and self._produce(self._backlog[0]):
            self._backlog.popleft()
        self._depart()
        if self._failure is not None:
            raise self._failure
        self._contact.check()

    def flush(self, seconds: float) -> None:
        """Wait until all is durable, at a start or an end. Raises MeanderError when it takes more.

        What waits here beyond librdkafka's queue is sent too.
        """
        deadline = time.monotonic() + seconds
        self.pump()
        while self._under_way and time.monotonic() < deadline:
            self._producer.flush(max(0.0, deadline - time.monotonic()))
            self.pump()
        if self._under_way:
            raise MeanderError(
                f"topic {self.topic!r}",
                f"{self._under_way} records could not be delivered within {seconds:g} s",
                "see whether its brokers answer",
            )

    def close(self) -> None:
        """Give up what is under way."""
        # The producer's own `close` would wait for it, and a purge of what is in flight counts as
        # a gap, which ends it with an error; let go of, it ends at once.
        self._backlog.clear()
        self._loads.clear()
        del self._producer

    def _connect(self) -> None:
        """An idempotent producer that is used before it has a connection looks for one again only
        after half a second. A broker that is away is waited for later."""
        try:
            self._producer.list_topics(self.topic, timeout=GRACE)
        except KafkaException as error:
            if not transient(error.args[0]):
                raise translate(error, f"topic {self.topic!r}") from None

    def _take_over(self, count: int, size: int) -> None:
        self._under_way += count
        self._bytes += size
        self._bound.check(self._bytes, "records wait for the broker to take them")

    def _depart(self) -> None:
        """Send what has been shipped, unless some of what left before is under way."""
        if self._away or self._backlog:
            return
        count = size = 0
        while self._loads:
            load = self._loads[0]
            shipment = load.shipment
            count, size = count + shipment.count, size + shipment.size
            fits = count <= _TOGETHER[0] and size <= _TOGETHER[1]
            if self._away and not fits:
                return
            self._loads.popleft()
            self._away += 1
            if self._roomy and fits and load.headers is None and ANYWHERE not in load.partitions:
                self._produce_together(load)
            else:
                self._produce_each(load)

    def _produce_together(self, load: _Load) -> None:
        records: dict[int, list[dict[str, object]]] = {at: [] for at in load.partitions}
        for value, key, at in zip(load.values, load.keys, load.partitions, strict=True):
            records[at].append({"value": value, "key": key})
        for at, those in records.items():
            those[-1]["callback"] = load.shipment
            try:
                taken = self._producer.produce_batch(self.topic, those, at)
            except KafkaException as error:
                self.failed(error.args[0])
                return
            if taken < len(those):
                # Never for want of room: so much the queue takes when it is empty.
                refused = next(one["_error"] for one in those if "_error" in one)
                assert isinstance(refused, KafkaError)
                self.failed(refused)
                return

    def _produce_each(self, load: _Load) -> None:
        last = {at: row for row, at in enumerate(load.partitions)}
        calls: list[_Report | None] = [None] * len(load.values)
        for row in range(len(calls)) if ANYWHERE in last else last.values():
            calls[row] = load.shipment
        headers = repeat(None) if load.headers is None else load.headers
        for record in zip(load.values, load.keys, calls, headers, load.partitions, strict=False):
            self._go(record)

    def _go(self, record: _Record) -> None:
        if self._backlog or not self._produce(record):
            self._backlog.append(record)

    def _produce(self, record: _Record) -> bool:
        value, key, done, headers, partition = record
        try:
            self._producer.produce(
                self.topic, value, key, partition, on_delivery=done, headers=headers
            )
        except BufferError:
            return False
        except KafkaException as error:
            # Why a producer has ended for good is told by the next `pump`.
            if error.args[0].code() == KafkaError._FATAL:
                return False
            raise translate(error, f"topic {self.topic!r}") from None
        return True

    def _delivered(
        self, done: Delivered, size: int, error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            self.failed(error)
        self._over(1, size, error is None)
        if error is None:
            done(message)


def _size(many: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, many)))


def noted(_: Message) -> None:
    """The outbox itself counts what is under way."""
