"""The record: a Kafka record with its metadata, as a value of a flow."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

T = TypeVar("T", default=Any)


class Record(NamedTuple, Generic[T]):
    """A Kafka record, decoded, with its place on the topic.

    >>> record = Record({"n": 1}, "a", "orders", 0, 17, 1357034400000, (("trace", b"7"),))
    >>> record.value, record.topic, dict(record.headers)["trace"]
    ({'n': 1}, 'orders', b'7')
    """

    value: T
    key: Any
    """The decoded key; None where the record has none."""
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Kafka's timestamp in milliseconds since 1970; -1 where the record has none."""
    headers: tuple[tuple[str, bytes | None], ...]
    """The names and values of the headers, in their order; a name may repeat."""
