"""The dead letters of a flow, as commands read them, and their marks.

Guarantees that a read gets each dead letter that was durable at its start, in order, then the marks
of those that were produced again. Cost: one pass over the topic.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.original_records import READ_TIMEOUT, read_originals
from meander.schemas import dead_letter
from meander.schemas.dead_letter import LetterKind, OriginalRecord, ReadHeaders, RecordPlace
from meander.schemas.errors import MeanderError

BATCH_RECORDS = 1000
_DAMAGED = dead_letter.TRUNCATED, dead_letter.KEY_TRUNCATED, dead_letter.HEADERS_LEFT_OUT


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The place, in a source beside Kafka, of the record that a dead letter is about."""

    partition: int
    partition_name: str
    """The name of the partition, such as the path of a file, or ''."""
    position: int
    """The position in the partition, such as a byte of a file."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter on the topic."""

    offset: int
    at_ms: int
    """The time of the failure, milliseconds since 1970."""
    operator: str
    kind: LetterKind
    reason: str
    trace: str
    time_ms: int
    """The timestamp of an unreadable record, or else the logical time."""
    key: bytes | None
    """The key at the operator, or that of an unreadable record."""
    value: bytes | None
    """The value at the operator, or that of an unreadable record."""
    headers: ReadHeaders
    """The own headers of the record, where the dead letter carries it."""
    place: RecordPlace | None
    """The place of the record on Kafka; None for other dead letters."""
    origin: str
    """The operator whose timer, notification or change it is, a source beside Kafka, or ''."""
    worker: int
    original: OriginalRecord | None
    """The record that the dead letter carries; None where it carries none, or a cut one."""
    not_carried: str = ""
    """Why it carries no record of its place, or ''."""
    source_place: SourcePlace | None = None
    """The place of the record in a source beside Kafka; None for other dead letters."""

    def record_in(self, read: Mapping[RecordPlace, OriginalRecord]) -> OriginalRecord | None:
        """Return the record that it carries, or else the one of its place among those read."""
        if self.original is not None or self.place is None:
            return self.original
        return read.get(self.place)


@dataclass(frozen=True, slots=True)
class ReplayMark:
    """A mark that names dead letters, by offset, which were produced again."""

    offsets: tuple[int, ...]

    def to_header(self) -> bytes:
        """Return the value of the header."""
        return msgspec.json.encode(self.offsets)


def read_dead_letters(
    settings: Settings, topic: str, since_ms: int | None = None
) -> Iterator[DeadLetterRecord | ReplayMark]:
    """Yield the dead letters of a flow, from a time of failure on, and the marks among them. Raises
    MeanderError."""
    with contextlib.closing(client.reader(settings, topic)) as consumer:
        low, high = client.watermarks(consumer, topic, 0)
        if since_ms is not None:
            low = _offset_at(consumer, topic, since_ms, high)
        if low < high:
            yield from _read(consumer, topic, low, high)


def read_missing(
    settings: Settings, letters: Iterable[DeadLetterRecord]
) -> dict[RecordPlace, OriginalRecord]:
    """Return the records that dead letters do not carry, where their topics still hold them. Raises
    MeanderError where a topic cannot be read."""
    places = (one.place for one in letters if one.original is None)
    return read_originals(settings, [place for place in places if place is not None])


def _read(
    consumer: Consumer, topic: str, low: int, high: int
) -> Iterator[DeadLetterRecord | ReplayMark]:
    consumer.assign([TopicPartition(topic, 0, low)])
    answered_at = time.monotonic()
    while time.monotonic() - answered_at < READ_TIMEOUT:
        first = consumer.poll(0.5)
        more = [] if first is None else [first, *consumer.consume(BATCH_RECORDS, 0)]
        for message in cast(list[ConsumedMessage], more):
            error = message.error()
            if error is None:
                answered_at = time.monotonic()
                if message.offset() < high:
                    yield parse(topic, message)
                if message.offset() >= high - 1:
                    return
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= high:
                return
            elif error.code() != KafkaError._PARTITION_EOF and not client.is_transient(error):
                raise client.translate(error, f"topic {topic!r}")
    raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")


def _offset_at(consumer: Consumer, topic: str, millis: int, high: int) -> int:
    place = TopicPartition(topic, 0, millis)

    def ask() -> int:
        (found,) = consumer.offsets_for_times([place], timeout=client.REQUEST_TIMEOUT)
        return found.offset

    offset = client.retry_request(ask, f"topic {topic!r}")
    return offset if offset >= 0 else high


def parse(topic: str, message: ConsumedMessage) -> DeadLetterRecord | ReplayMark:
    """Return a record of the dead-letter topic. Raises MeanderError for a record that no flow has
    written."""
    headers = list(message.headers() or ())
    names = [name for name, _ in headers]
    try:
        if names == [dead_letter.REPLAYED]:
            return ReplayMark(msgspec.json.decode(headers[0][1] or b"", type=tuple[int, ...]))
        first = len(names) - 1 - names[::-1].index(dead_letter.REASON)
        left_out = dead_letter.HEADERS_LEFT_OUT in names[first - 1 : first]
        return _letter(message, headers[:first], dict(headers[first:]), left_out)
    except (ValueError, KeyError) as error:
        raise MeanderError(
            f"topic {topic!r}, offset {message.offset()}", f"it is no dead letter ({error!r})",
            "find the program that wrote it",
        ) from error  # fmt: skip


def _letter(
    message: ConsumedMessage, own: ReadHeaders, data: dict[str, bytes | None], left_out: bool
) -> DeadLetterRecord:
    place, source_place, original = None, None, None
    key, value = message.key(), message.value()
    added = {name: (text or b"").decode(errors="replace") for name, text in data.items()}
    if dead_letter.OFFSET in added:
        partition, offset = int(added[dead_letter.PARTITION]), int(added[dead_letter.OFFSET])
        if dead_letter.TOPIC in added:
            id_ = added.get(dead_letter.TOPIC_ID, "")
            place = RecordPlace(added[dead_letter.TOPIC], id_, partition, offset)
        else:
            name = added.get(dead_letter.PARTITION_NAME, "")
            source_place = SourcePlace(partition, name, offset)
    kind = msgspec.convert(added[dead_letter.KIND], LetterKind)
    time_ms = int(added[dead_letter.TIME])
    carries = kind == "unreadable" or dead_letter.TIMESTAMP in added
    if carries and not left_out and not set(_DAMAGED) & added.keys():
        original = OriginalRecord(key, value, own, int(added.get(dead_letter.TIMESTAMP, time_ms)))
    if carries and kind != "unreadable":
        key, value = data.get(dead_letter.OPERATOR_KEY), data.get(dead_letter.OPERATOR_VALUE)
    return DeadLetterRecord(
        offset=message.offset(),
        at_ms=message.timestamp()[1],
        operator=added[dead_letter.OPERATOR],
        kind=kind,
        reason=added[dead_letter.REASON],
        trace=added.get(dead_letter.TRACE, ""),
        time_ms=time_ms,
        key=key,
        value=value,
        headers=own,
        place=place,
        origin=added.get(dead_letter.ORIGIN, ""),
        worker=int(added[dead_letter.WORKER]),
        original=original,
        not_carried=added.get(dead_letter.NOT_CARRIED, ""),
        source_place=source_place,
    )
