"""The dead-letter topic: records that the flow could not read or process, with the reason in
headers.

Guarantees that a record gets one dead letter per failure, and that `delivered` names a dead letter
only once all dead letters up to it are durable. An unreadable record keeps its key, bytes and
headers. The dead letter of a record that a function refused names the record by topic, partition
and offset, which costs the hot path nothing. Its value is that at the operator, as JSON or else its
repr. `meander.schemas.dead_letter` lists the headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Message

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.formats import encoder, plain_key
from meander.connectors.kafka.sink.producer import Headers
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.operators.error_policy import failure, safe_repr
from meander.dataflow.records.batch import Batch
from meander.schemas import dead_letter
from meander.schemas.log_lines import LineLogger
from meander.state.encoding import codec
from meander.state.times.time import to_millis

if TYPE_CHECKING:
    from meander.dataflow.api.plan import Plan

log = LineLogger(__name__)

PartitionName = Callable[[int], str]
"""Gives the name of a partition of a source beside Kafka, by its number; '' where none is known."""

MAX_LOGGED = 300
"""The most characters of a reason in the log."""
MAX_TRACE = 8 * 1024
"""The most characters of a traceback. Its end remains, as it names the cause."""
MAX_DEAD_RECORD = 16 << 20
"""The most bytes of a record on the dead-letter topic; longer records are cut."""
MAX_VALUE = MAX_DEAD_RECORD // 2
"""The most bytes of a value, from its start. The rest of a record serves its key and headers."""
MAX_KEY = MAX_HEADERS = MAX_DEAD_RECORD // 8
"""The most bytes of a key, from its start, and of the record's own headers."""
_json = encoder("json")


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A malformed record of a reader, as the value of a batch's row."""

    topic: str
    """Its topic; '' for a record of a source beside Kafka."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition_name: str = ""
    """The name of its partition in a source beside Kafka, such as the path of a file."""


def _unnamed(_: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """An origin of records: a topic that a source reads, or an operator with timers or changes."""

    name: str
    topic: str | None = None
    topic_id: str = ""
    """The id of the topic, or ''."""
    is_source: bool = False
    """Whether it is a source beside Kafka."""
    partition_name: PartitionName = _unnamed

    def headers(self, batch: Batch, row: int) -> Headers:
        """Return the headers that name the record of a row."""
        if self.topic is None and self.is_source:
            return [(dead_letter.KIND, "record"), *self._place(batch, row)]
        if self.topic is None:
            kind = "notification" if batch.offsets[row] else "timer"
            return [
                (dead_letter.KIND, kind if batch.keys is not None else "change"),
                (dead_letter.ORIGIN, self.name),
            ]
        place = [
            (dead_letter.KIND, "record"),
            (dead_letter.TOPIC, self.topic),
            (dead_letter.PARTITION, str(batch.partitions[row])),
            (dead_letter.OFFSET, str(batch.offsets[row])),
        ]
        return [*place, (dead_letter.TOPIC_ID, self.topic_id)] if self.topic_id else [*place]

    def _place(self, batch: Batch, row: int) -> Headers:
        return _place(self.name, self.partition_name(int(batch.partitions[row])), batch, row)


def _place(source: str, partition_name: str, batch: Batch, row: int) -> Headers:
    """Return the headers that name the place of a record of a source beside Kafka."""
    return [
        (dead_letter.ORIGIN, source),
        (dead_letter.PARTITION, str(batch.partitions[row])),
        *([(dead_letter.PARTITION_NAME, _header_text(partition_name))] if partition_name else []),
        (dead_letter.OFFSET, str(batch.offsets[row])),
    ]


Origins = Mapping[int, Origin]
"""The origins of the records of a flow, by number."""
NO_ORIGINS: Origins = {}
"""The origins of a flow that names none."""
UNNAMED: Mapping[str, PartitionName] = {}
"""The names of a flow without sources beside Kafka."""


def origins_of(
    plan: Plan, ids: Mapping[str, str], names: Mapping[str, PartitionName] = UNNAMED
) -> Origins:
    """Return the origins of a flow. `ids` holds the ids of the topics that it reads, and `names`
    names the partitions of its sources beside Kafka, by source."""
    topics = {source.name: getattr(source.spec, "topic", None) for source in plan.sources}
    return {
        number: Origin(
            name,
            topic,
            ids.get(topic or "", ""),
            name in topics and topic is None,
            names.get(name, _unnamed),
        )
        for number, name in enumerate(plan.origins)
        for topic in (topics.get(name),)
    }


class KafkaDeadLetters:
    """A writer that sends a worker's dead letters to the topic of its flow; implements
    `DeadLetterTopic`."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        worker: int,
        max_waiting: int,
        origins: Origins = NO_ORIGINS,
    ) -> None:
        self._worker, self._named, self._origins = worker, set[str](), origins
        self.added = self._delivered = 0
        self._arrived = set[int]()
        """The tickets of durable dead letters behind one that is not durable."""
        self._producer = RecordProducer(
            settings, topic, max_waiting, message_max_bytes=MAX_DEAD_RECORD
        )

    @staticmethod
    def open(context: WorkerContext, topic: str, origins: Origins = NO_ORIGINS) -> KafkaDeadLetters:
        """Return the dead letters of one worker."""
        return KafkaDeadLetters(
            context.settings, topic, context.worker, context.max_waiting, origins
        )

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Send one record as a dead letter without blocking. Raise the broker's refusal of an
        earlier one."""
        self._producer.pump()
        value = batch.values[row]
        if isinstance(value, MalformedRecord):
            key = value.key
        else:
            key = None if batch.keys is None else _key(batch.keys[row])
        if operator not in self._named:
            self._named.add(operator)
            log.warning(
                "dead_letter_written",
                operator=operator,
                partition=int(batch.partitions[row]),
                offset=int(batch.offsets[row]),
                key=(key or b"")[:MAX_LOGGED].decode("utf-8", "backslashreplace"),
                topic=self._producer.topic,
                reason=reason[:MAX_LOGGED],
                others="counted only",
            )
        added: Headers = [
            (dead_letter.REASON, _header_text(reason[:MAX_TRACE])),
            (dead_letter.OPERATOR, operator),
            (dead_letter.TIME, str(to_millis(int(batch.times[row])))),
            (dead_letter.WORKER, str(self._worker)),
        ]
        if trace:
            added.append((dead_letter.TRACE, _header_text(trace)[-MAX_TRACE:]))
        if isinstance(value, MalformedRecord):
            added += [
                (dead_letter.KIND, "unreadable"),
                (dead_letter.TOPIC, value.topic),
                (dead_letter.PARTITION, str(batch.partitions[row])),
                (dead_letter.OFFSET, str(batch.offsets[row])),
            ] if value.topic else [
                (dead_letter.KIND, "unreadable"),
                *_place(operator.partition(" ")[2], value.partition_name, batch, row),
            ]  # fmt: skip
            self._send(value.value, key, _within_bound(value.headers), added)
        else:
            number = int(batch.origins[row])
            origin = self._origins.get(number, Origin(f"origin {number}"))
            self._send(_encoded_value(value), key, [], [*added, *origin.headers(batch, row)])

    def _send(
        self, value: bytes | None, key: bytes | None, headers: Headers, added: Headers
    ) -> None:
        if value is not None and len(value) > MAX_VALUE:
            added.append((dead_letter.TRUNCATED, str(len(value))))
            value = value[:MAX_VALUE]
        if key is not None and len(key) > MAX_KEY:
            added.append((dead_letter.KEY_TRUNCATED, str(len(key))))
            key = key[:MAX_KEY]
        self.added += 1
        done = partial(self._note_delivered, self.added)
        self._producer.send(value, key, done, [*headers, *added])

    def delivered(self) -> int:
        """Return the last ticket up to which all dead letters are durable. Raise MeanderError when
        the broker refused one."""
        if self._delivered < self.added:
            self._producer.pump()
        return self._delivered

    def has_room(self) -> bool:
        """Send waiting dead letters; return whether more than half of their room is free. Raise
        MeanderError when the broker refused one."""
        self.delivered()
        return not self._producer.full

    def _note_delivered(self, ticket: int, _: Message) -> None:
        self._arrived.add(ticket)
        while self._delivered + 1 in self._arrived:
            self._delivered += 1
            self._arrived.remove(self._delivered)

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._producer.close()


def _within_bound(headers: Headers) -> Headers:
    """Return the headers of a record within their bound, with the number of omitted headers."""
    found, room = Headers(), MAX_HEADERS
    for name, value in headers:
        room -= len(name) + len(value or b"")
        if room >= 0:
            found.append((name, value))
    omitted = len(headers) - len(found)
    return [*found, (dead_letter.HEADERS_LEFT_OUT, str(omitted))] if omitted else found


def _header_text(text: str) -> bytes:
    """Encode text as a header, including text that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")


def _key(key: bytes) -> bytes | None:
    try:
        return plain_key(key)
    except (ValueError, TypeError):
        return _header_text(safe_repr(codec.decode(key)))


def _encoded_value(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return _json(value)
    except failure():  # the value's own code may run
        return _header_text(safe_repr(value))
