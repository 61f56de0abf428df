"""One producer for one topic: what the ways out to Kafka have in common.

Guarantees that the first failure of a record is raised where the way is looked after, that an
outage is waited for and told once, and that no more bytes are taken over than a bound (I6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka.client import GRACE, Settings, contact, producer, transient, translate
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.schemas.errors import MeanderError

Header = tuple[str, bytes | str | None]
Headers = list[Header]
Report = Callable[[KafkaError | None, Message], None]
ANYWHERE = -1
"""librdkafka chooses the partition."""
OVERHEAD = 64
"""About what librdkafka keeps of a record, and of each of its headers, beside its bytes."""
MOST = 1 << 30
"""Bytes that may be under way where nobody says otherwise."""
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}


def size_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> int:
    """About how many bytes many records take that librdkafka has taken over."""
    size = sum(map(len, chain(filter(None, values), filter(None, keys)))) + OVERHEAD * len(values)
    return size + (0 if headers is None else OVERHEAD * sum(map(len, headers)))


class Producing:
    """A producer, the bytes that it has taken over, and its first failure."""

    def __init__(self, settings: Settings, topic: str, most: int, **tuning: str | float) -> None:
        self.topic = topic
        self._producer = producer(settings, **tuning)
        self._contact = contact(settings)
        self._bound = MemoryLimit(f"topic {topic!r}", most)
        self._bytes = 0
        self._failure: MeanderError | None = None
        self._connect()

    @property
    def full(self) -> bool:
        """Whether half of the bytes that may be under way are."""
        return 2 * self._bytes >= self._bound.most

    def close(self) -> None:
        """Give up what is under way."""
        # The producer's own `close` would wait for it, and a purge of what is in flight counts as
        # a gap, which ends it with an error; let go of, it ends at once.
        del self._producer

    def _take_over(self, size: int) -> None:
        self._bytes += size
        self._bound.check(self._bytes, "records wait for the broker to take them")

    def _produce(
        self,
        value: bytes | None,
        key: bytes | None,
        report: Report,
        headers: Headers | None,
        partition: int = ANYWHERE,
    ) -> bool:
        """Hand one record to librdkafka; whether its queue had room. Raises MeanderError for one
        that it refuses."""
        try:
            self._producer.produce(
                self.topic, value, key, partition, on_delivery=report, headers=headers
            )
        except BufferError:
            return False
        except KafkaException as error:
            # Why a producer has ended for good is told by its next poll.
            if error.args[0].code() == KafkaError._FATAL:
                return False
            raise translate(error, f"topic {self.topic!r}") from None
        return True

    def _poll(self) -> None:
        """Hear what has become of what is under way."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._failed(error.args[0])

    def _check(self) -> None:
        """Raises what the broker has refused."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()

    def _failed(self, error: KafkaError) -> None:
        """Remember the first failure, unless it is our own giving up."""
        if self._failure is None and error.code() not in _PURGED:
            self._failure = translate(error, f"topic {self.topic!r}")

    def _heard(self) -> None:
        """The broker has taken something."""
        if self._contact.lost:
            self._contact.heard()

    def _connect(self) -> None:
        """An idempotent producer that is used before it has a connection looks for one again only
        after half a second. A broker that is away is waited for later."""
        try:
            self._producer.list_topics(self.topic, timeout=GRACE)
        except KafkaException as error:
            if not transient(error.args[0]):
                raise translate(error, f"topic {self.topic!r}") from None
            self._poll()
            self._contact.check()
