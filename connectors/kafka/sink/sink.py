"""A Kafka topic as a sink of a flow.

Guarantees that the records of `write` arrive in the given order per key, once, while the process
runs: the producer is idempotent and retries forever. `delivered` names a ticket only once all
records up to it are durable. Headers name the origin of each record: meander.time, .origin,
.partition, .offset, .index (its place in the flow's order) and .worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Generic, Literal, TypeVar

import pyarrow as pa

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import (
    Encoder,
    Format,
    check_format,
    encode_all,
    encoder,
    plain_key,
)
from meander.connectors.kafka.sink.batch_producer import BatchProducer
from meander.connectors.kafka.sink.producer import Header, Headers
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.error_policy import describe, failure, safe_repr
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId

KeyWriter = Callable[[bytes], bytes]
BATCH_OVERHEAD = 61
"""The bytes of a batch besides its records."""
RECORD_OVERHEAD = 36
"""The most bytes of a record besides its key, value and headers."""
HEADER_BYTES = 185
"""The most bytes of the headers of one record."""
COMPRESSION_SETTINGS = "compression.type", "compression.codec"
DEFAULT_LEVELS = {"gzip": 6, "zstd": 3}
"""The compression levels of the client without a setting."""
COMPRESSION_MARGIN = 50
"""A compressed record may exceed the estimate by one part in 50."""
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
    value: Format | Encoder = "json"
    key: Literal["plain"] | Encoder = "plain"
    headers: bool = True

    def __post_init__(self) -> None:
        check_format(f"sink topic {self.topic!r}, value", self.value)
        check_format(f"sink topic {self.topic!r}, key", self.key, ["plain"])

    def open(self, context: WorkerContext) -> KafkaWriter:
        """Return this worker's writer. Raise SetupError when the topic cannot be written."""
        topic_metadata.partitions_of(client.admin(context.settings), self.topic)
        return KafkaWriter(self, context)


class KafkaWriter:
    """A writer that sends one sink's results from one worker; implements `SinkWriter`."""

    def __init__(self, spec: KafkaSink, context: WorkerContext) -> None:
        self._encoder = RecordEncoder(
            spec, context.worker, context.keepalive, RecordLimits.of(spec.topic, context)
        )
        max_batch = max_batch_bytes([spec.topic], context.sink_topics)
        self._producer = BatchProducer(context.settings, spec.topic, context.max_waiting, max_batch)

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
        """Return the last ticket up to which all records are durable. Raise the broker's
        refusal."""
        return self._producer.delivered()

    def close(self) -> None:
        """Release connections, and drop records that are not delivered."""
        self._producer.close()


def max_batch_bytes(topics: Iterable[str], outside: Mapping[str, Mapping[str, str]]) -> int:
    """Return the most bytes of a batch that all these topics accept. The client does not ask a
    broker, and a refused batch ends the producer."""
    known = (
        outside.get(topic, {}).get("max.message.bytes", client.MAX_MESSAGE_BYTES)
        for topic in topics
    )
    return min([client.MAX_MESSAGE_BYTES, *map(int, known)])


EncodedRecords = tuple[list[bytes | None], list[bytes | None], list[Headers] | None]
"""Values, keys and, where the sink has them, headers, each of shape (n,)."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The limits of a topic and a client for one record, checked before the client sends it.

    A record that a broker refuses ends the producer, and with it a transaction or the flow. The
    check makes it a failure of that record alone. Cost: a sum per batch, unless it exceeds the
    bound.
    """

    client: int
    """The most bytes of one record for the client, with its headers and overhead."""
    topic: int
    """The most bytes of one record for the topic, as sent."""
    codec: pa.Codec | None
    """The client's compression codec, where the topic does not change it."""
    allows_no_key: bool
    """Whether a record may lack a key."""

    @staticmethod
    def of(topic: str, context: WorkerContext) -> RecordLimits:
        """Return the limits from the client's settings and, where they are known, the topic's."""
        of_topic, of_client = context.sink_topics.get(topic, {}), context.settings
        sent = int(of_client.get("message.max.bytes", client.MAX_MESSAGE_BYTES))
        broker = int(of_topic.get("max.message.bytes", sent + BATCH_OVERHEAD)) - BATCH_OVERHEAD
        compacted = topic_metadata.is_compacted(of_topic)
        return RecordLimits(sent, broker, _codec(of_client, of_topic), allows_no_key=not compacted)

    def violations(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: int,
    ) -> Iterator[tuple[int, str | None]]:
        """Yield the rows of records that the topic refuses, each with the reason where its size is
        wrong. `headers` bounds the bytes of a record's headers."""
        if not self.allows_no_key and None in keys:
            yield from ((row, None) for row, key in enumerate(keys) if key is None)
        beside, most = RECORD_OVERHEAD + headers, min(self.client, self.topic)
        if sum(map(len, chain(filter(None, values), filter(None, keys)))) + beside <= most:
            return
        for row, (value, key) in enumerate(zip(values, keys, strict=True)):
            parts = value or b"", key or b""
            size = sum(map(len, parts)) + beside
            if size > most and (violation := self._size_violation(parts, size, beside)):
                yield row, violation

    def _size_violation(self, parts: tuple[bytes, bytes], size: int, beside: int) -> str | None:
        """Return the reason where a record is too large, else None."""
        if size > self.client and (self.codec or self.client <= self.topic):
            return _too_large(f"{size:,} bytes", self.client, "message.max.bytes in the settings")
        if self.codec is not None and size > self.topic:
            size = _compressed(self.codec, parts) + beside
        if size > self.topic:
            by = "" if self.codec is None else f", compressed by {self.codec.name},"
            return _too_large(f"{size:,} bytes{by}", self.topic, "max.message.bytes of the topic")
        return None


def _too_large(size: str, most: int, setting: str) -> str:
    return f"takes {size} as a record, more than {most:,} ({setting})"


def _codec(of_client: Mapping[str, str], of_topic: Mapping[str, str]) -> pa.Codec | None:
    """Return the client's codec at its level. Return None for a topic with a codec of its own, as
    its broker measures records before it compresses them again.

    >>> _codec({"compression.type": "zstd"}, {}).compression_level
    3
    >>> _codec({"compression.type": "zstd"}, {"compression.type": "gzip"}) is None
    True
    """
    codecs = {of_client.get(name, "none") for name in COMPRESSION_SETTINGS} - {"none", "inherit"}
    codec = next(iter(codecs), None)
    if codec is None or of_topic.get("compression.type", "producer") not in {"producer", codec}:
        return None
    level = int(of_client.get("compression.level", "-1"))
    if codec in DEFAULT_LEVELS:
        return pa.Codec(codec, level if level > 0 else DEFAULT_LEVELS[codec])
    return pa.Codec(codec)


def _compressed(codec: pa.Codec, parts: tuple[bytes, bytes]) -> int:
    """Return the bytes of a record that is sent alone, approximately; a record of this size is.

    >>> _compressed(pa.Codec("zstd"), (bytes(1_000_000), b"key")) < 1_000
    True
    """
    given = b"".join(parts)
    packed = len(codec.compress(given, asbytes=True))
    # The client cuts the record into other blocks, and sends a block unchanged that does not
    # shrink.
    return min(len(given), packed + packed // COMPRESSION_MARGIN)


class RecordEncoder:
    """An encoder that turns one worker's results into records of a topic, without a producer."""

    def __init__(
        self,
        spec: KafkaSink,
        worker: WorkerId,
        keepalive: Keepalive,
        limits: RecordLimits | None = None,
    ) -> None:
        self._limits, self._header_bytes = limits, HEADER_BYTES if spec.headers else 0
        self._topic, self._with_headers = spec.topic, spec.headers
        self._value = _FieldEncoder("value", encoder(spec.value), callable(spec.value))
        self._key = _FieldEncoder("key", _key_writer(spec.key), callable(spec.key))
        self._keepalive = keepalive
        self._worker = _header("meander.worker", worker)

    def encode(self, batch: Batch) -> EncodedRecords:
        """Return the records of a batch. Raise RowError with all rows that cannot be written."""
        values, keys = self._values_and_keys(batch)
        return values, keys, self._headers(batch) if self._with_headers else None

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of these records; raise errors as `encode` does."""
        values, keys = self._values_and_keys(batch)
        return Checksum.of(batch.times, keys, values)

    def _values_and_keys(self, batch: Batch) -> tuple[list[bytes | None], list[bytes | None]]:
        errors: dict[int, RowError] = {}
        values = self._encode_column(self._value, batch.values, batch, errors)
        keys: list[bytes | None] = [None] * len(values)
        if batch.keys is not None:
            keys = self._encode_column(self._key, batch.keys, batch, errors)
        if self._limits:
            for row, violation in self._limits.violations(values, keys, self._header_bytes):
                errors.setdefault(row, self._limit_error(batch, row, violation))
        if errors:
            raise RowError.first(errors)
        return values, keys

    def _limit_error(self, batch: Batch, row: int, violation: str | None) -> RowError:
        where = f"partition {batch.partitions[row]}, offset {batch.offsets[row]}"
        if violation is None:
            cause = f"the result from {where} has no key, and the topic is compacted"
            return RowError(
                row, f"topic {self._topic!r}", cause, "have the sink's key function return one"
            )
        key = "" if batch.keys is None else f" of key {quote(batch.keys[row])}"
        return RowError(
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


def _key_writer(form: Literal["plain"] | Encoder) -> KeyWriter:
    if form == "plain":
        return plain_key
    return lambda key: form(codec.decode(key))
