"""The dead-letter topic: records that the flow could not read or process, with the reason in
headers.

Guarantees that a record gets one dead letter per failure, in order, and that `delivered` names a
dead letter only once all up to it are durable. A dead letter carries its record: key, bytes,
headers and timestamp. That of a record at an operator waits until a thread has read the record from
its topic, which costs the hot path nothing. It names the record alone where the topic no longer has
it or does not answer in time. `meander.schemas.dead_letter` lists the headers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice

from confluent_kafka import Message

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.formats import encoder, plain_key
from meander.connectors.kafka.original_reads import (
    MAX_BYTES,
    MAX_PLACES,
    UNANSWERED,
    OriginalReads,
)
from meander.connectors.kafka.origins import (
    NO_ORIGINS,
    Origin,
    Origins,
    header_text,
    place_headers,
)
from meander.connectors.kafka.sink.producer import RECORD_OVERHEAD, Headers
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.operators.error_policy import failure, safe_repr
from meander.dataflow.records.batch import Batch
from meander.schemas import dead_letter
from meander.schemas.dead_letter import MAX_DEAD_RECORD, OriginalRecord, RecordPlace
from meander.schemas.log_lines import LineLogger
from meander.state.encoding import codec
from meander.state.times.time import to_millis

log = LineLogger(__name__)

MAX_LOGGED = 300
"""The most characters of a reason in the log."""
MAX_TRACE = 8 * 1024
"""The most characters of a traceback. Its end remains, as it names the cause."""
MAX_VALUE = MAX_DEAD_RECORD // 2
"""The most bytes of a value, from its start. The rest of a record serves its key and headers."""
MAX_KEY = MAX_HEADERS = MAX_DEAD_RECORD // 8
"""The most bytes of a key, from its start, and of the record's own headers."""
MAX_OPERATOR_VALUE = MAX_DEAD_RECORD // 16
"""The most bytes of a key and of a value at the operator, beside those of a record."""
NO_ROOM = "dead letters have no room to wait for it"
TOO_LARGE = "it is larger than the room of dead letters"
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


@dataclass(slots=True)
class _WaitingLetter:
    """A dead letter that waits for its record, or behind one that does."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    """The record's own headers."""
    added: Headers
    place: RecordPlace | None
    """Where its record lies; None for a dead letter that carries all that it can."""
    found: OriginalRecord | str | None = None
    """The record, or why there is none; None until that is known."""

    @property
    def size(self) -> int:
        """Return about the bytes in memory, without the record."""
        added = sum(len(value or b"") for _, value in self.added)
        return len(self.value or b"") + len(self.key or b"") + added + RECORD_OVERHEAD


class KafkaDeadLetters:
    """A writer that sends a worker's dead letters to the topic of its flow; implements
    `DeadLetterTopic`."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        worker: int,
        max_waiting: int,
        wakeup: Wakeup,
        origins: Origins = NO_ORIGINS,
    ) -> None:
        self._worker, self._named, self._origins = worker, set[str](), origins
        self._max_waiting = max_waiting
        self.added = self._delivered = 0
        self._sent = 0
        """The ticket of the last dead letter that the producer has."""
        self._arrived = set[int]()
        """The tickets of durable dead letters behind one that is not durable."""
        self._producer = RecordProducer(
            settings, topic, max_waiting, message_max_bytes=MAX_DEAD_RECORD
        )
        self._reads = OriginalReads(settings, wakeup, min(MAX_BYTES, max_waiting // 8))
        self._waiting = deque[_WaitingLetter]()
        """The dead letters that the producer does not have, in order."""
        self._unread = deque[_WaitingLetter]()
        """Those of them that wait for their records."""
        self._bytes = 0
        """About the bytes of those in `_waiting`, without their records."""

    @staticmethod
    def open(context: WorkerContext, topic: str, origins: Origins = NO_ORIGINS) -> KafkaDeadLetters:
        """Return the dead letters of one worker."""
        return KafkaDeadLetters(
            context.settings, topic, context.worker, context.max_waiting, context.wakeup, origins
        )

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Accept one record as a dead letter without blocking. Raise the broker's refusal of an
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
        millis = str(to_millis(int(batch.times[row])))
        added: Headers = [
            (dead_letter.REASON, header_text(reason[:MAX_TRACE])),
            (dead_letter.OPERATOR, operator),
            (dead_letter.TIME, millis),
            (dead_letter.WORKER, str(self._worker)),
        ]
        if trace:
            added.append((dead_letter.TRACE, header_text(trace)[-MAX_TRACE:]))
        if isinstance(value, MalformedRecord):
            added += [
                (dead_letter.KIND, "unreadable"),
                (dead_letter.TOPIC, value.topic),
                (dead_letter.PARTITION, str(batch.partitions[row])),
                (dead_letter.OFFSET, str(batch.offsets[row])),
                (dead_letter.TIMESTAMP, millis),
            ] if value.topic else [
                (dead_letter.KIND, "unreadable"),
                *place_headers(operator.partition(" ")[2], value.partition_name, batch, row),
            ]  # fmt: skip
            letter = _WaitingLetter(value.value, key, value.headers, added, None)
        else:
            number = int(batch.origins[row])
            origin = self._origins.get(number, Origin(f"origin {number}"))
            added += origin.headers(batch, row)
            place = origin.place(batch, row)
            letter = _WaitingLetter(_encoded_value(value), key, [], added, place)
        self.added += 1
        self._accept(letter)

    def _accept(self, letter: _WaitingLetter) -> None:
        self._waiting.append(letter)
        self._bytes += letter.size
        if letter.place is not None:
            self._unread.append(letter)
        if 2 * self._bytes > self._max_waiting:
            self._read_no_more(NO_ROOM)
            self._forward(beyond_room=True)
        else:
            self._advance()

    def _advance(self) -> None:
        """Take the records that have been read, send the dead letters that have theirs, and ask
        for more records."""
        if (answer := self._reads.answer()) is not None:
            while self._unread and (place := self._unread[0].place) in answer:
                assert place is not None
                self._unread.popleft().found = answer[place]
        if self._unread and self._reads.overdue:
            self._read_no_more(UNANSWERED)
        self._forward()
        # Records that the producer has no room for would add up.
        if self._unread and not self._reads.busy and self._waiting[0] is self._unread[0]:
            some = (one.place for one in islice(self._unread, MAX_PLACES))
            self._reads.ask([place for place in some if place is not None])

    def _read_no_more(self, cause: str) -> None:
        """Let all dead letters that wait for their records leave without them."""
        for letter in self._unread:
            letter.found = cause
        self._unread.clear()

    def _forward(self, *, beyond_room: bool = False) -> None:
        """Send the first dead letters, up to one that waits for its record. They use half of the
        producer's bound, and with `beyond_room` all of it."""
        while self._waiting and (beyond_room or not self._producer.full):
            letter = self._waiting[0]
            if letter.place is not None and letter.found is None:
                return
            self._waiting.popleft()
            self._bytes -= letter.size
            self._send(letter)

    def _send(self, letter: _WaitingLetter) -> None:
        value, key, own, added = letter.value, letter.key, letter.headers, letter.added
        found = letter.found
        if isinstance(found, OriginalRecord) and 2 * found.size > self._max_waiting:
            found = TOO_LARGE
        if isinstance(found, OriginalRecord):
            added += _at_operator(key, value)
            added.append((dead_letter.TIMESTAMP, str(found.time_ms)))
            value, key, own = found.value, found.key, [*found.headers]
        elif found is not None:
            added.append((dead_letter.NOT_CARRIED, header_text(found)))
        if value is not None and len(value) > MAX_VALUE:
            added.append((dead_letter.TRUNCATED, str(len(value))))
            value = value[:MAX_VALUE]
        if key is not None and len(key) > MAX_KEY:
            added.append((dead_letter.KEY_TRUNCATED, str(len(key))))
            key = key[:MAX_KEY]
        self._sent += 1
        done = partial(self._note_delivered, self._sent)
        self._producer.send(value, key, done, [*_within_bound(own), *added])

    def delivered(self) -> int:
        """Return the last ticket up to which all dead letters are durable. Raise MeanderError when
        the broker refused one."""
        if self._delivered < self.added:
            self._producer.pump()
            self._advance()
        return self._delivered

    def has_room(self) -> bool:
        """Send waiting dead letters; return whether more than half of their room is free. Raise
        MeanderError when the broker refused one."""
        self.delivered()
        return not self._producer.full and 4 * self._bytes < self._max_waiting

    def _note_delivered(self, ticket: int, _: Message) -> None:
        self._arrived.add(ticket)
        while self._delivered + 1 in self._arrived:
            self._delivered += 1
            self._arrived.remove(self._delivered)

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._reads.close()
        self._producer.close()


def _at_operator(key: bytes | None, value: bytes | None) -> Headers:
    """Return the headers of a key and a value at the operator, which the record takes the place
    of."""
    headers: Headers = []
    if key is not None:
        headers.append((dead_letter.OPERATOR_KEY, key[:MAX_OPERATOR_VALUE]))
    if value is not None:
        headers.append((dead_letter.OPERATOR_VALUE, value[:MAX_OPERATOR_VALUE]))
    if value is not None and len(value) > MAX_OPERATOR_VALUE:
        headers.append((dead_letter.OPERATOR_VALUE_TRUNCATED, str(len(value))))
    return headers


def _within_bound(headers: Headers) -> Headers:
    """Return the headers of a record within their bound, with the number of omitted headers."""
    found, room = Headers(), MAX_HEADERS
    for name, value in headers:
        room -= len(name) + len(value or b"")
        if room >= 0:
            found.append((name, value))
    omitted = len(headers) - len(found)
    return [*found, (dead_letter.HEADERS_LEFT_OUT, str(omitted))] if omitted else found


def _key(key: bytes) -> bytes | None:
    try:
        return plain_key(key)
    except (ValueError, TypeError):
        return header_text(safe_repr(codec.decode(key)))


def _encoded_value(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return _json(value)
    except failure():  # the value's own code may run
        return header_text(safe_repr(value))
