"""The common base of producers: a producer for one topic, or for the topics of a sink.

Guarantees that a poll raises the first failure of a record. The producer waits for the end of an
outage. It accepts no more bytes than a bound (I6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka.client import (
    GRACE,
    Settings,
    contact,
    is_transient,
    producer,
    translate,
)
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.schemas.errors import MeanderError

Header = tuple[str, bytes | str | None]
Headers = list[Header]
Report = Callable[[KafkaError | None, Message], None]
ANY_PARTITION = -1
"""A value that lets librdkafka choose the partition."""
RECORD_OVERHEAD = 64
"""The bytes of a record, and of each header, in librdkafka besides their own, approximately."""
MAX_IN_FLIGHT = 1 << 30
"""The default bound of bytes in flight."""
PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""The errors of records that the end of a producer, or of a transaction, has dropped."""


class RecordsRefused(Exception):
    """An error that reports records that a topic refuses: for a missing key, or for their size.

    A refusal for size names a batch, and no record. A record as large as the limit of batches was
    alone in its batch, so it is too large itself. Without such a record, smaller batches tell.
    """

    def __init__(self, refused: Sequence[Message], batch_bytes: int) -> None:
        """`refused` are the records, and `batch_bytes` is the limit of their batches."""
        super().__init__("a topic refuses records")
        self.keyless = next((one for one in refused if not _is_too_large(error_of(one))), None)
        """A record that is refused without a key."""
        alone = [one for one in refused if payload_bytes(one) >= batch_bytes]
        self.record = self.keyless or min(alone, key=payload_bytes, default=None)
        """That record, else the smallest one that is too large, where one is known."""
        self.batch_bytes = batch_bytes if self.record else batch_bytes // 2
        """The limit of batches for another attempt."""


def is_beyond_limits(error: KafkaError, record: Message) -> bool:
    """Return whether a refusal is one for size, or one of a record without a key."""
    keyless = error.code() == KafkaError.INVALID_RECORD and record.key() is None
    return _is_too_large(error) or keyless


def _is_too_large(error: KafkaError) -> bool:
    return error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def error_of(record: Message) -> KafkaError:
    """Return why a record was refused."""
    error = record.error()
    assert error is not None
    return error


def batch_limit(settings: Settings, max_batch_bytes: int) -> int:
    """Return the most bytes of a batch of a producer with these settings."""
    own = settings.get("batch.size", "")
    return min(max_batch_bytes, int(own)) if own.isdecimal() else max_batch_bytes


def payload_bytes(record: Message) -> int:
    """Return the bytes of a record's key and value."""
    return len(record.key() or b"") + len(record.value() or b"")


def size_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> int:
    """Return the bytes of many records in librdkafka, approximately."""
    size = sum(map(len, chain(filter(None, values), filter(None, keys))))
    extra = len(values) + (0 if headers is None else sum(map(len, headers)))
    return size + RECORD_OVERHEAD * extra


class BaseProducer:
    """A producer that tracks its bytes in flight and its first failure."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        max_bytes: int,
        subject: str = "",
        **tuning: str | float,
    ) -> None:
        """`topic` is the topic of records that name none, and `subject` stands in errors in place
        of it."""
        self.topic, self._subject = topic, subject or f"topic {topic!r}"
        self._producer = producer(settings, **tuning)
        self._contact = contact(settings)
        self._limit = MemoryLimit(self._subject, max_bytes)
        self._bytes = 0
        self._failure: MeanderError | None = None
        self._connect()

    @property
    def full(self) -> bool:
        """Return whether the bytes in flight exceed half of the bound."""
        return 2 * self._bytes >= self._limit.max_bytes

    def close(self) -> None:
        """Drop unsent records and release connections."""
        # The producer's own `close` would wait for the records. A purge of records in flight counts
        # as a gap, which is an error. Deletion ends the producer at once.
        del self._producer

    def _reserve(self, size: int) -> None:
        self._bytes += size
        self._limit.check(self._bytes, "records wait for the broker to accept them")

    def _produce(
        self,
        value: bytes | None,
        key: bytes | None,
        report: Report,
        headers: Headers | None,
        partition: int = ANY_PARTITION,
        topic: str = "",
        timestamp: int = 0,
    ) -> bool:
        """Send one record to librdkafka; return whether its queue had room. Raise MeanderError for
        a refused record."""
        try:
            self._producer.produce(
                topic or self.topic, value, key, partition, report, timestamp=timestamp,
                headers=headers,
            )  # fmt: skip
        except BufferError:
            return False
        except KafkaException as error:
            # The next poll reports the reason why a producer has ended for good.
            if error.args[0].code() == KafkaError._FATAL:
                return False
            raise translate(error, f"topic {topic or self.topic!r}") from None
        return True

    def _poll(self) -> None:
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._record_failure(error.args[0])

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._contact.check()

    def _record_failure(self, error: KafkaError, topic: str = "") -> None:
        """Record the first failure, unless `close` caused it. `topic` is that of the record."""
        if self._failure is None and error.code() not in PURGED:
            self._failure = translate(error, f"topic {topic!r}" if topic else self._subject)

    def _record_answer(self) -> None:
        if self._contact.lost:
            self._contact.record_answer()

    def _connect(self) -> None:
        """Connect before the first use. An idempotent producer without a connection retries only
        after half a second. A later call waits for an absent broker."""
        try:
            self._producer.list_topics(self.topic or None, timeout=GRACE)
        except KafkaException as error:
            if not is_transient(error.args[0]):
                raise translate(error, self._subject) from None
            self._poll()
            self._contact.check()
