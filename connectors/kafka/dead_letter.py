"""The dead-letter topic: records that the flow could not read or process, with the reason in
headers.

Guarantees that a record gets one dead letter per failure, and that `delivered` names a dead letter
only once all dead letters up to it are durable. An unreadable record keeps its bytes and headers.
For a record that a function refused, the dead letter holds the value as JSON, or else its repr. It
has the headers meander.reason, .operator, .topic or .origin, .partition, .offset, .time, .worker
and .trace. A cut value also has .truncated, its original length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from confluent_kafka import Message

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.formats import encoder, plain_key
from meander.connectors.kafka.sink.producer import Headers
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.operators.error_policy import failure, safe_repr
from meander.dataflow.records.batch import Batch
from meander.schemas.log_lines import LineLogger
from meander.state.encoding import codec

log = LineLogger(__name__)

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
    key: bytes | None
    value: bytes | None
    headers: Headers


class KafkaDeadLetters:
    """A writer that sends a worker's dead letters to the topic of its flow; implements
    `DeadLetters`."""

    def __init__(self, settings: Settings, topic: str, worker: int, max_waiting: int) -> None:
        self._worker, self._named = worker, set[str]()
        self.added = self._delivered = 0
        self._arrived = set[int]()
        """The tickets of durable dead letters behind one that is not durable."""
        self._producer = RecordProducer(
            settings, topic, max_waiting, message_max_bytes=MAX_DEAD_RECORD
        )

    @staticmethod
    def open(context: WorkerContext, topic: str) -> KafkaDeadLetters:
        """Return the dead letters of one worker."""
        return KafkaDeadLetters(context.settings, topic, context.worker, context.max_waiting)

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
            ("meander.reason", _header_text(reason[:MAX_TRACE])),
            ("meander.operator", operator),
            ("meander.partition", str(batch.partitions[row])),
            ("meander.offset", str(batch.offsets[row])),
            ("meander.time", str(batch.times[row])),
            ("meander.worker", str(self._worker)),
        ]
        if trace:
            added.append(("meander.trace", _header_text(trace)[-MAX_TRACE:]))
        if isinstance(value, MalformedRecord):
            added.append(("meander.topic", value.topic))
            self._send(value.value, key, _within_bound(value.headers), added)
        else:
            added.append(("meander.origin", str(batch.origins[row])))
            self._send(_encoded_value(value), key, [], added)

    def _send(
        self, value: bytes | None, key: bytes | None, headers: Headers, added: Headers
    ) -> None:
        if value is not None and len(value) > MAX_VALUE:
            added.append(("meander.truncated", str(len(value))))
            value = value[:MAX_VALUE]
        if key is not None and len(key) > MAX_KEY:
            added.append(("meander.key_truncated", str(len(key))))
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
    return [*found, ("meander.headers_left_out", str(omitted))] if omitted else found


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
