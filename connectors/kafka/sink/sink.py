"""A Kafka topic as a sink of a flow.

Guarantees that the records of `write` arrive in the given order per key, once, while the process
runs: the producer is idempotent and retries forever. `delivered` names a ticket only once all
records up to it are durable. Headers name the origin of each record: meander.time, .origin,
.partition, .offset, .index (its place in the flow's order) and .worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Generic, Literal, TypeVar

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import (
    Encoder,
    Format,
    Place,
    ValueFormat,
    at_place,
    check_format,
    encode_all,
    encoder,
    is_user_code,
    plain_key,
)
from meander.connectors.kafka.sink.batch_producer import BatchProducer
from meander.connectors.kafka.sink.producer import Header, Headers, RecordsRefused
from meander.connectors.kafka.sink.record_limits import (
    HEADER_BYTES,
    RecordLimits,
    learned_limits,
    max_batch_bytes,
    with_limits,
)
from meander.dataflow.errors import WritesDropped
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.error_policy import describe, failure, safe_repr
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId

KeyWriter = Callable[[bytes], bytes]
MAX_QUOTATION = 60
"""The most characters of a key in a message."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A sink that writes a stream to a topic; implements `SinkSpec`.

    `value` encodes objects: "json", "str", "bytes" or a function; None is a null. `key` "plain"
    writes text and bytes unchanged and other keys as JSON; a function receives the key. A stream
    without keys writes records without keys. Without `headers`, records do not name their origin,
    and cost a third.

    >>> KafkaSink("totals").value
    'json'
    """

    topic: str
    value: Format | Encoder | ValueFormat[Any] = "json"
    key: Literal["plain"] | Encoder | ValueFormat[Any] = "plain"
    headers: bool = True

    def __post_init__(self) -> None:
        check_format(f"sink topic {self.topic!r}, value", self.value)
        check_format(f"sink topic {self.topic!r}, key", self.key, ["plain"])

    @property
    def formats(self) -> Iterator[tuple[ValueFormat[Any], Place]]:
        """Yield the formats that are objects, each with its place."""
        for part, form in (("value", self.value), ("key", self.key)):
            if isinstance(form, ValueFormat):
                yield form, Place(self.topic, part, "sink")

    @property
    def types(self) -> list[object]:
        """Return the types that the formats name."""
        return [kind for form, _ in self.formats for kind in form.types]

    def open(self, context: WorkerContext) -> KafkaWriter:
        """Return this worker's writer. Raise SetupError when the topic cannot be written."""
        topic_metadata.partitions_of(client.admin(context.settings), self.topic)
        return KafkaWriter(self, context)


class KafkaWriter:
    """A writer that sends one sink's results from one worker; implements `SinkWriter`."""

    def __init__(self, spec: KafkaSink, context: WorkerContext) -> None:
        self._spec = spec
        self._open(context, client.MAX_MESSAGE_BYTES)

    def _open(self, context: WorkerContext, batch_bytes: int) -> None:
        self._context, topic = context, self._spec.topic
        self._encoder = RecordEncoder.limited(self._spec, context)
        batch_bytes = min(batch_bytes, max_batch_bytes([topic], context.sink_topics))
        self._producer = BatchProducer(context.settings, topic, context.max_waiting, batch_bytes)

    def write(self, batch: Batch) -> int:
        """Accept one batch; return its ticket: 1, 2, 3, ...

        Raise RowError, before any record is sent, for a row that cannot be written.
        """
        return self._producer.send(*self._encoder.encode(batch))

    @property
    def full(self) -> bool:
        """Return whether the bytes in flight exceed half of the bound."""
        return self._producer.full

    def delivered(self) -> int:
        """Return the last ticket up to which all records are durable. Raise the broker's refusal,
        and WritesDropped once smaller records or batches may succeed."""
        try:
            return self._producer.delivered()
        except RecordsRefused as refused:
            ended, context, limits = self._producer, self._context, dict[str, dict[str, str]]()
            if refused.record is not None:
                topic, headers = self._spec.topic, header_bytes(self._spec)
                limits[topic] = learned_limits(topic, context, refused, headers)
            topics = with_limits(context.sink_topics, limits)
            self._open(replace(context, sink_topics=topics), refused.batch_bytes)
            ended.close()
            raise WritesDropped from None

    def close(self) -> None:
        """Release connections, and drop records that are not delivered."""
        self._producer.close()


EncodedRecords = tuple[list[bytes | None], list[bytes | None], list[Headers] | None]
"""Values, keys and, where the sink has them, headers, each of shape (n,)."""


class LimitError(RowError):
    """An error that reports a row that a topic refuses, although the row fits the format."""


def header_bytes(spec: KafkaSink) -> int:
    """Return the most bytes of the headers of a sink's record."""
    return HEADER_BYTES if spec.headers else 0


class RecordEncoder:
    """An encoder that turns one worker's results into records of a topic, without a producer."""

    @staticmethod
    def limited(spec: KafkaSink, context: WorkerContext) -> RecordEncoder:
        """Return an encoder that refuses what its topic refuses."""
        limits = RecordLimits.of(spec.topic, context)
        return RecordEncoder(spec, context.worker, context.keepalive, limits)

    def __init__(
        self,
        spec: KafkaSink,
        worker: WorkerId,
        keepalive: Keepalive,
        limits: RecordLimits | None = None,
    ) -> None:
        self._limits, self._header_bytes = limits, header_bytes(spec)
        self._topic, self._with_headers = spec.topic, spec.headers
        value = at_place(spec.value, Place(spec.topic, "value", "sink"))
        key = at_place(spec.key, Place(spec.topic, "key", "sink"))
        self._value = _FieldEncoder("value", encoder(value), is_user_code(value))
        self._key = _FieldEncoder("key", _key_writer(key), is_user_code(key))
        self._keepalive = keepalive
        self._worker = _header("meander.worker", worker)

    def encode(self, batch: Batch) -> EncodedRecords:
        """Return the records of a batch. Raise RowError with all rows that cannot be written."""
        values, keys, errors = self._values_and_keys(batch)
        if self._limits:
            for row, violation in self._limits.violations(values, keys, self._header_bytes):
                errors.setdefault(row, self._limit_error(batch, row, violation))
        if errors:
            raise RowError.first(errors)
        return values, keys, self._headers(batch) if self._with_headers else None

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of these records, whether or not the topic accepts them. Raise
        RowError with all rows that do not fit the format."""
        values, keys, errors = self._values_and_keys(batch)
        if errors:
            raise RowError.first(errors)
        return Checksum.of(batch.times, keys, values)

    def _values_and_keys(
        self, batch: Batch
    ) -> tuple[list[bytes | None], list[bytes | None], dict[int, RowError]]:
        errors: dict[int, RowError] = {}
        values = self._encode_column(self._value, batch.values, batch, errors)
        keys: list[bytes | None] = [None] * len(values)
        if batch.keys is not None:
            keys = self._encode_column(self._key, batch.keys, batch, errors)
        return values, keys, errors

    def _limit_error(self, batch: Batch, row: int, violation: str | None) -> LimitError:
        where = f"partition {batch.partitions[row]}, offset {batch.offsets[row]}"
        if violation is None:
            cause = f"the result from {where} has no key, and the topic is compacted"
            return LimitError(
                row, f"topic {self._topic!r}", cause, "have the sink's key function return one"
            )
        key = "" if batch.keys is None else f" of key {quote(batch.keys[row])}"
        return LimitError(
            row,
            f"topic {self._topic!r}",
            f"the result{key} from {where} {violation}",
            "raise that setting, or make results smaller",
        )

    def _headers(self, batch: Batch) -> list[Headers]:
        columns = (
            [("meander.time", b"%d" % time) for time in batch.times.tolist()],
            _shared("meander.origin", batch.origins),
            _shared("meander.partition", batch.partitions),
            [("meander.offset", b"%d" % offset) for offset in batch.offsets.tolist()],
            _shared("meander.index", batch.indexes),
            repeat(self._worker),
        )
        return list(map(list, zip(*columns, strict=False)))

    def _encode_column(
        self,
        part: _FieldEncoder[T],
        column: Sequence[T],
        batch: Batch,
        errors: dict[int, RowError],
    ) -> list[bytes | None]:
        """Encode a column. For a refused row, return None and add its refusal."""
        encoded: list[bytes | None] = []
        add, encode, keepalive = encoded.append, part.encode, self._keepalive
        if not part.is_user_code:
            try:
                return encode_all(encode, column)
            except failure():
                pass  # the rows at fault are found below
        for value in column:
            if part.is_user_code and keepalive.due:
                keepalive.send()
            try:
                add(encode(value))
            except failure() as error:
                row = len(encoded)
                errors.setdefault(row, self._encoding_error(part.name, batch, row, error))
                add(None)
        return encoded

    def _encoding_error(self, part: str, batch: Batch, row: int, error: BaseException) -> RowError:
        refusal = RowError(
            row,
            f"topic {self._topic!r}",
            f"the {part} of the result from partition {batch.partitions[row]}, offset "
            f"{batch.offsets[row]} cannot be written: {describe(error)}",
            f"map results to values that the sink's {part} format encodes, or set a function",
        )
        refusal.__cause__ = error
        return refusal


@dataclass(frozen=True, slots=True)
class _FieldEncoder(Generic[T]):
    name: str
    encode: Callable[[T], bytes | None]
    is_user_code: bool
    """Whether a user's function encodes it, which may take long."""


def quote(key: bytes) -> str:
    """Return a key as messages show it.

    >>> quote(codec.encode("N14228"))
    "'N14228'"
    """
    text = safe_repr(codec.decode(key))
    return text if len(text) <= MAX_QUOTATION else f"{text[:MAX_QUOTATION]}..."


def _header(name: str, number: int) -> Header:
    return name, b"%d" % number


def _shared(name: str, column: Int64s) -> Iterator[Header]:
    """Yield the headers of a column with few distinct numbers."""
    numbers = column.tolist()
    made = {number: _header(name, number) for number in set(numbers)}
    return map(made.__getitem__, numbers)


def _key_writer(form: Literal["plain"] | Encoder | ValueFormat[Any]) -> KeyWriter:
    if form == "plain":
        return plain_key
    encode = form.encode if isinstance(form, ValueFormat) else form
    return lambda key: encode(codec.decode(key))
