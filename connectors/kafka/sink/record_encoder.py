"""The record encoder: turns one worker's results into records of a sink's topics.

Guarantees that a row that cannot be written raises RowError with its reason, and that the checksum
of results does not depend on what a cluster allows now: topics that exist, partitions and limits.
A timestamp lies within the bounds of its topic, so that no broker refuses it. The encoder uses no
producer. Cost: native code for built-in formats; a user's function runs for each record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import encode_all
from meander.connectors.kafka.sink.field_encoders import (
    FieldEncoder,
    key_encoder,
    own_headers,
    own_partition,
    value_encoder,
)
from meander.connectors.kafka.sink.producer import Header, Headers
from meander.connectors.kafka.sink.record_limits import HEADER_BYTES, RecordLimits
from meander.connectors.kafka.sink.topic_batch import EncodedRecords
from meander.connectors.kafka.sink.topic_directory import TopicDirectory
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.error_policy import describe, failure, safe_repr
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.log_lines import LineLogger
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.times.time import SEQUENCE_BITS

if TYPE_CHECKING:
    from meander.connectors.kafka.sink.sink import KafkaSink

log = LineLogger("meander.kafka")

MAX_QUOTATION = 60
"""The most characters of a key in a message."""
U = TypeVar("U")
_Errors = dict[int, RowError]


class LimitError(RowError):
    """An error that reports a row that a cluster refuses, although the row fits the format."""


def header_bytes(spec: KafkaSink) -> int:
    """Return the most bytes of the headers that name the origin of a sink's record."""
    return HEADER_BYTES if spec.origin else 0


class RecordEncoder:
    """An encoder that turns one worker's results into records, without a producer.

    `limits` gives the limits of a topic, and `directory` knows its partitions. Without them, each
    topic accepts all.
    """

    @staticmethod
    def limited(spec: KafkaSink, context: WorkerContext) -> RecordEncoder:
        """Return an encoder that refuses what the topics refuse."""
        limits = cache(partial(RecordLimits.of, context=context))
        # Most sinks ask nothing, and need no client for that.
        admin = cache(partial(client.admin, context.settings))
        directory = TopicDirectory(
            lambda topic: topic_metadata.find_topic(admin(), topic).partitions
        )
        return RecordEncoder(spec, context.worker, context.keepalive, limits, directory)

    def __init__(
        self,
        spec: KafkaSink,
        worker: WorkerId,
        keepalive: Keepalive,
        limits: Callable[[str], RecordLimits] | None = None,
        directory: TopicDirectory | None = None,
    ) -> None:
        self._spec, self._limits, self._directory = spec, limits, directory
        self._value, self._key = value_encoder(spec), key_encoder(spec)
        self._keepalive = keepalive
        self._aged: set[str] = set()
        """The topics whose retention is shorter than the age of results."""
        self._worker = _header("meander.worker", worker)

    def encode(self, batch: Batch) -> EncodedRecords:
        """Return the records of a batch. Raise RowError with all rows that cannot be written."""
        records, errors = self._records(batch)
        for topic, rows in _rows_by_topic(records.topics, errors).items():
            self._refuse_absent(batch, records, topic, rows, errors)
            self._refuse_beyond_limits(batch, records, topic, rows, errors)
        if errors:
            raise RowError.first(errors)
        return replace(
            records,
            headers=self._headers(batch, records.headers),
            timestamps=self._timestamps(records.topics, batch.times),
        )

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of these records, whether or not the cluster accepts them. Raise
        RowError with all rows that do not fit the format."""
        records, errors = self._records(batch)
        if errors:
            raise RowError.first(errors)
        return self.checksum_of(batch, records)

    def checksum_of(self, batch: Batch, records: EncodedRecords) -> Checksum:
        """Return the checksum of the encoded records of a batch. The topic counts where a function
        chooses it."""
        topics = records.topics if callable(self._spec.topic) else None
        return Checksum.of(batch.times, records.keys, records.values, topics)

    # -- columns

    def _records(self, batch: Batch) -> tuple[EncodedRecords, _Errors]:
        """Return the records with headers of the user alone and without timestamps, and an error
        for each row that does not fit the format."""
        spec, errors, values = self._spec, _Errors(), batch.values
        topics: Sequence[str] = [spec.topic] * len(batch) if isinstance(spec.topic, str) else [
            one or "" for one in self._each("topic", self._topic_of, values, batch, errors)
        ]  # fmt: skip
        encoded = self._encode_column(self._value, values, topics, batch, errors)
        own, partitions = None, None
        if spec.headers is not None:
            given = partial(own_headers, spec.headers)
            own = [one or [] for one in self._each("headers", given, values, batch, errors)]
        if spec.partition is not None:
            chosen = partial(own_partition, spec.partition)
            found = self._each("partition", chosen, values, batch, errors)
            partitions = [one or 0 for one in found]
        keys = self._keys(topics, batch, errors)
        return EncodedRecords(topics, encoded, keys, own, None, partitions), errors

    def _keys(self, topics: Sequence[str], batch: Batch, errors: _Errors) -> list[bytes | None]:
        column: Sequence[object] | None = batch.values if self._key.is_user_code else batch.keys
        if column is None:
            return [None] * len(batch)
        return self._encode_column(self._key, column, topics, batch, errors)

    def _topic_of(self, value: object) -> str:
        assert callable(self._spec.topic)
        topic = self._spec.topic(value)
        if not isinstance(topic, str):
            raise TypeError(f"a topic is text, not {safe_repr(topic)}")
        if not self._spec.accepts(topic):
            raise ValueError(f"topic {topic!r} is none of {self._spec.topics!r}")
        return topic

    def _headers(self, batch: Batch, own: Sequence[Headers] | None) -> Sequence[Headers] | None:
        """Return the headers of the user, followed by those that name the origin."""
        if not self._spec.origin:
            return own
        times = batch.times
        columns = (
            [("meander.time", b"%d" % ms) for ms in (times >> SEQUENCE_BITS).tolist()],
            _shared("meander.sequence", times & ((1 << SEQUENCE_BITS) - 1)),
            _shared("meander.origin", batch.origins),
            _shared("meander.partition", batch.partitions),
            [("meander.offset", b"%d" % offset) for offset in batch.offsets.tolist()],
            _shared("meander.index", batch.indexes),
            repeat(self._worker),
        )
        made: list[Headers] = list(map(list, zip(*columns, strict=False)))
        if own is None:
            return made
        return [[*first, *second] for first, second in zip(own, made, strict=True)]

    def _timestamps(self, topics: Sequence[str], times: Int64s) -> list[int] | None:
        """Return the logical times in milliseconds, within the bounds of their topics. Kafka has no
        timestamp 0 besides that of the producer's clock."""
        if self._spec.time == "wall":
            return None
        millis = np.maximum(times >> SEQUENCE_BITS, 1)
        if self._limits is not None and topics:
            now = int(time.time() * 1000)
            bounds = {one: self._limits(one).timestamps(now) for one in {*topics}}
            least, most = zip(*map(bounds.__getitem__, topics), strict=True)
            millis = np.clip(millis, least, most)
            for topic in bounds.keys() - self._aged:
                if int(millis.min()) < now - (retention := self._limits(topic).retention):
                    self._warn_of_retention(topic, retention)
        return cast(list[int], millis.tolist())

    def _warn_of_retention(self, topic: str, retention: int) -> None:
        self._aged.add(topic)
        log.warning(
            "retention_exceeded",
            topic=topic,
            retention_ms=retention,
            reason="results have the timestamps of their records, and these are older",
            remedy="raise retention.ms of the topic, or give its KafkaSink time='wall'",
        )

    # -- what a cluster refuses

    def _refuse_absent(
        self, batch: Batch, records: EncodedRecords, topic: str, rows: Sequence[int],
        errors: _Errors,
    ) -> None:  # fmt: skip
        """Add an error for each record whose topic or partition does not exist."""
        if self._directory is None:
            return
        if topic not in self._spec.declared and not self._directory.has(topic):
            for row in rows:
                cause = f"the result from {_place(batch, row)} names it, and it does not exist"
                remedy = "create it (meander topics create)"
                errors.setdefault(row, LimitError(row, f"topic {topic!r}", cause, remedy))
        elif records.partitions is not None:
            for row in rows:
                partition = records.partitions[row]
                if not self._directory.has(topic, partition):
                    most = self._directory.partitions(topic) - 1
                    cause = f"the result from {_place(batch, row)} is for partition {partition}"
                    remedy = f"have the sink's partition function return 0 to {most}"
                    errors.setdefault(row, LimitError(row, f"topic {topic!r}", cause, remedy))

    def _refuse_beyond_limits(
        self, batch: Batch, records: EncodedRecords, topic: str, rows: Sequence[int],
        errors: _Errors,
    ) -> None:  # fmt: skip
        """Add an error for each record that the limits of its topic refuse."""
        if self._limits is None:
            return
        values, keys = records.values, records.keys
        if len(rows) < len(values):
            values, keys = [values[row] for row in rows], [keys[row] for row in rows]
        origin = header_bytes(self._spec)
        headers: int | list[int] = origin
        if records.headers is not None:
            headers = [origin + _size_of(records.headers[row]) for row in rows]
        for at, violation in self._limits(topic).violations(values, keys, headers):
            row = rows[at]
            errors.setdefault(row, self._limit_error(batch, row, topic, violation))

    def _limit_error(self, batch: Batch, row: int, topic: str, violation: str | None) -> LimitError:
        where = _place(batch, row)
        if violation is None:
            cause = f"the result from {where} has no key, and the topic is compacted"
            remedy = "have the sink's key function return one"
            return LimitError(row, f"topic {topic!r}", cause, remedy)
        key = "" if batch.keys is None else f" of key {quote(batch.keys[row])}"
        return LimitError(
            row,
            f"topic {topic!r}",
            f"the result{key} from {where} {violation}",
            "raise that setting, or make results smaller",
        )

    # -- functions of the user

    def _each(
        self, part: str, function: Callable[[Any], U], column: Sequence[object], batch: Batch,
        errors: _Errors,
    ) -> list[U | None]:  # fmt: skip
        """Apply a user's function to each value. For a refused row, return None and add its
        refusal."""
        results: list[U | None] = []
        add, keepalive = results.append, self._keepalive
        for value in column:
            if keepalive.due:
                keepalive.send()
            try:
                add(function(value))
            except failure() as error:
                row = len(results)
                errors.setdefault(row, self._encoding_error(part, batch, row, error))
                add(None)
        return results

    def _encode_column(
        self, part: FieldEncoder[Any], column: Sequence[object], topics: Sequence[str],
        batch: Batch, errors: _Errors,
    ) -> list[bytes | None]:  # fmt: skip
        """Encode a column. For a refused row, return None and add its refusal."""
        if part.by_topic:
            column = list(zip(topics, column, strict=True))
        if not part.is_user_code:
            try:
                return encode_all(part.encode, column)
            except failure():
                pass  # the rows at fault are found below
        return self._each(part.name, part.encode, column, batch, errors)

    def _encoding_error(self, part: str, batch: Batch, row: int, error: BaseException) -> RowError:
        topic, spec = self._spec.topic, self._spec
        refusal = RowError(
            row,
            f"topic {topic!r}" if isinstance(topic, str) else f"a sink of topics {spec.topics!r}",
            f"the {part} of the result from {_place(batch, row)} cannot be written:"
            f" {describe(error)}",
            _REMEDIES.get(part)
            or f"map results to values that the sink's {part} format encodes, or set a function",
        )
        refusal.__cause__ = error
        return refusal


_REMEDIES = {
    "topic": "have the sink's topic function return one of its topics",
    "headers": "have the sink's headers function return text, bytes or None by name",
    "partition": "have the sink's partition function return a number from 0 on",
}
"""What to do about a user's function that gives no such part."""


def quote(key: bytes) -> str:
    """Return a key as messages show it.

    >>> quote(codec.encode("N14228"))
    "'N14228'"
    """
    text = safe_repr(codec.decode(key))
    return text if len(text) <= MAX_QUOTATION else f"{text[:MAX_QUOTATION]}..."


def _place(batch: Batch, row: int) -> str:
    return f"partition {batch.partitions[row]}, offset {batch.offsets[row]}"


def _rows_by_topic(topics: Sequence[str], errors: _Errors) -> dict[str, Sequence[int]]:
    """Return the rows without errors of each topic."""
    if not errors and len({*topics}) == 1:
        return {topics[0]: range(len(topics))}
    found: dict[str, list[int]] = {}
    for row, topic in enumerate(topics):
        if row not in errors:
            found.setdefault(topic, []).append(row)
    return {**found}


def _size_of(headers: Headers) -> int:
    """Return the most bytes of headers in a record; a length takes at most 5 bytes."""
    return sum(
        10 + len(name.encode()) + len(value.encode() if isinstance(value, str) else value or b"")
        for name, value in headers
    )


def _header(name: str, number: int) -> Header:
    return name, b"%d" % number


def _shared(name: str, column: Int64s) -> Iterator[Header]:
    """Yield the headers of a column with few distinct numbers."""
    numbers = column.tolist()
    made = {number: _header(name, number) for number in set(numbers)}
    return map(made.__getitem__, numbers)
