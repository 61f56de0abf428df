"""The position at which a source without a checkpoint starts to read a partition.

Guarantees that each error names the position. Cost: one or two round trips per partition.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from confluent_kafka import Consumer, KafkaException, TopicPartition

from meander.connectors.kafka import client
from meander.schemas.errors import SetupError
from meander.state.times.time import checked_millis

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offset_at(consumer: Consumer, topic: str, partition: int, start: str | int) -> tuple[int, int]:
    """Return the offset at which a partition starts, and its present end."""
    low, high = client.watermarks(consumer, topic, partition)
    match parse_start(start):
        case "earliest":
            return low, high
        case "latest":
            return high, high
        case millis:
            return _offset_of(consumer, topic, partition, millis, high), high


def parse_start(
    start: str | int, subject: str = "start position"
) -> Literal["earliest", "latest"] | int:
    """Return the start of a flow without a past: an end of each log, or milliseconds since 1970.
    Raise SetupError for another value.

    >>> parse_start("latest"), parse_start("1357034400000"), parse_start("2013-01-01T10:00Z")
    ('latest', 1357034400000, 1357034400000)
    """
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    try:
        return checked_millis(_millis_of(start))
    except (ValueError, OverflowError):
        raise SetupError(
            f"{subject} {start!r}",
            "it is none that a flow can start from",
            "give earliest, latest, milliseconds since 1970, or a time with a zone such as"
            " 2013-01-01T10:00Z",
        ) from None


def _millis_of(start: object) -> object:
    """Return the milliseconds that a start names. Raise ValueError where it names none."""
    if not isinstance(start, str):
        if isinstance(start, int) and start < 0:
            raise ValueError("it is before 1970")
        return start
    if start.isdecimal():
        return int(start)
    moment = datetime.fromisoformat(start)
    if moment.tzinfo is None:
        raise ValueError("it has no zone")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _offset_of(consumer: Consumer, topic: str, partition: int, millis: int, high: int) -> int:
    """Return the first offset with a timestamp at or after a time; the end if there is none."""

    def ask() -> int:
        place = TopicPartition(topic, partition, millis)
        (found,) = consumer.offsets_for_times([place], timeout=client.REQUEST_TIMEOUT)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset

    offset = client.retry_request(ask, f"topic {topic!r}")
    return offset if offset >= 0 else high
