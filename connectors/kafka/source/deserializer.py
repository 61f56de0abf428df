"""The deserializer: decodes a source's records and extracts their times.

Guarantees that an unreadable record raises ValueError with the part and the reason. Built-in
formats decode all records of a chunk at once, column by column. A user's function runs record by
record, so that a keepalive reports a slow one. Cost: about 0.2 us per record besides its decoding,
and about 1 us more where the source asks for metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller
from typing import Any, Literal, cast

from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.formats import (
    Decoder,
    FieldTime,
    Format,
    FormatUnavailableError,
    HeaderTime,
    TimeExtractor,
    ValueFormat,
    decode_all,
    decoder,
    is_user_code,
)
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.error_policy import describe, failure
from meander.schemas.errors import SetupError
from meander.state.encoding.record import Record
from meander.state.encoding.value_columns import Values
from meander.state.times.time import checked_millis

Shape = Literal["value", "pair", "record"]
"""What a source makes of a Kafka record: its value, a tuple of key and value, or a `Record`."""
Readable = tuple[object, int]
"""A decoded value and its time, milliseconds since 1970."""

_MILLIS = itemgetter(1)
_VALUE, _KEY, _TIMESTAMP = map(methodcaller, ("value", "key", "timestamp"))


class Deserializer:
    """A deserializer that reads the records of one topic in the shape that the source asks for."""

    def __init__(
        self,
        topic: str,
        value: Format | Decoder | ValueFormat[Any],
        key: Format | Decoder | ValueFormat[Any],
        time: TimeExtractor | None,
        shape: Shape,
        keepalive: Keepalive,
    ) -> None:
        self._topic = topic
        self._value, self._key, self._time = decoder(value), decoder(key), time
        self._reads_field = isinstance(time, FieldTime)
        self._batches = value.decode_batch if isinstance(value, ValueFormat) else None
        if isinstance(value, ValueFormat) and isinstance(time, FieldTime) and value.names:
            self._time = _column_time(value.names, time)
        self._shape, self._keepalive = shape, keepalive
        user_code = is_user_code(value) or (shape != "value" and is_user_code(key))
        self._has_user_code = user_code or callable(time)

    def read_one(self, message: ConsumedMessage) -> Readable:
        """Return a record's value and time. Raise ValueError where it has none."""
        if self._has_user_code and self._keepalive.due:
            self._keepalive.send()
        part = "value"
        try:
            value = self._value(message.value())
            part = "time"
            (millis,) = self._times([message], [value])
            if self._shape == "value":
                return value, millis
            part = "key"
            key = self._key(message.key())
            is_pair = self._shape == "pair"
            return (key, value) if is_pair else self._record(message, key, value), millis
        except FormatUnavailableError:
            raise
        except failure() as error:
            cause = f"its {part} cannot be read: {describe(error)}"
            raise ValueError(cause) from error

    def read_all(self, messages: Sequence[ConsumedMessage]) -> tuple[Values, list[int]] | None:
        """Return the values and times of many records; None where they must be read one by one."""
        if self._has_user_code:
            return None
        try:
            values = self._decode_all(list(map(_VALUE, messages)))
            times = self._times(messages, values)
            if self._shape != "value":
                keys = map(self._key, map(_KEY, messages))
                if self._shape == "pair":
                    values = list(zip(keys, values, strict=True))
                else:
                    values = list(map(self._record, messages, keys, values))
        except failure():
            return None
        return values, times

    def _decode_all(self, data: list[bytes | None]) -> Values:
        if self._batches is None or not data or None in data:
            return decode_all(self._value, data)
        return self._batches(cast(list[bytes], data))

    def _record(self, message: ConsumedMessage, key: object, value: object) -> Record[Any]:
        return Record(
            value, key, self._topic, message.partition(), message.offset(),
            message.timestamp()[1], tuple(message.headers() or ()),
        )  # fmt: skip

    def _times(self, messages: Sequence[ConsumedMessage], values: Sequence[object]) -> list[int]:
        extract = self._time
        if extract is None:
            return list(map(_MILLIS, map(_TIMESTAMP, messages)))
        if isinstance(extract, HeaderTime):
            return [extract.millis(message.headers()) for message in messages]
        of_value = extract.millis if isinstance(extract, FieldTime) else extract
        if not self._reads_field:
            return [checked_millis(of_value(value)) for value in values]
        # A null has no fields, and deletes a row at the time at which it was written.
        return [
            _MILLIS(_TIMESTAMP(message)) if value is None else checked_millis(of_value(value))
            for message, value in zip(messages, values, strict=True)
        ]


def _column_time(names: Sequence[str], time: FieldTime) -> Callable[[object], int]:
    """Return the extractor of a time in a tuple of columns. Raise SetupError where no column has
    it."""
    if time.name not in names:
        raise SetupError(
            f"field {time.name!r}", f"it is none of the columns {', '.join(names)}",
            "name it among the columns, as records have their time there",
        )  # fmt: skip
    return cast(Callable[[object], int], itemgetter(names.index(time.name)))
