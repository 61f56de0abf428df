"""The records of a Kafka topic as rows: key, value, time, partition and offset.

Guarantees each committed record of fixed ranges once, so that several reads of one view see the
same records while more arrive. A record that its format cannot read stays, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from confluent_kafka import TopicPartition
from pyspark.sql.datasource import InputPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.formats import FormatUnavailableError
from meander.connectors.spark.column_types import INT, TIME, ColumnType
from meander.connectors.spark.topic_ranges import TopicRange, read_range
from meander.connectors.spark.views import FORMAT, Row
from meander.dataflow.operators.error_policy import describe, failure

Decode = Callable[[bytes | None], object]
OpenDecoders = Callable[[], tuple[Decode, Decode]]
"""Opens the decoders of keys and values in the process that reads; it travels to tasks."""


@dataclass(frozen=True, slots=True)
class TopicRows:
    """A source that reads ranges of a topic; implements `RowSource`."""

    settings: dict[str, str] = field(repr=False)
    ranges: tuple[TopicRange, ...]
    open_decoders: OpenDecoders

    @property
    def columns(self) -> Mapping[str, ColumnType | None]:
        """Return the names of the columns."""
        return {"key": None, "value": None, "time": TIME, "partition": INT, "offset": INT}

    def parts(self) -> Sequence[InputPartition]:
        """Return the ranges."""
        return self.ranges

    def rows(self, part: InputPartition) -> Iterator[list[Row]]:
        """Yield the records of a range, in offset order."""
        assert isinstance(part, TopicRange)
        key, value = self.open_decoders()
        for messages in messages_of(self.settings, part):
            yield [_row(key, value, one) for one in messages]

    def sample(self, most: int) -> list[Row]:
        """Return the newest records of each range."""
        newest = newest_ranges(self.ranges, most)
        return [row for one in newest for rows in self.rows(one) for row in rows]


def newest_ranges(ranges: Sequence[TopicRange], most: int) -> list[TopicRange]:
    """Return the ends of ranges, about `most` records in all."""
    each = -(-most // max(1, len(ranges)))
    return [replace(one, start=max(one.start, one.end - each)) for one in ranges]


def messages_of(settings: dict[str, str], span: TopicRange) -> Iterator[list[ConsumedMessage]]:
    """Yield the committed records of a range, with a consumer of its own."""
    if span.start >= span.end:
        return
    with closing(client.consumer(settings, FORMAT)) as consumer:
        consumer.assign([TopicPartition(span.topic, span.partition, span.start)])
        yield from read_range(consumer, span)


def _row(key: Decode, value: Decode, message: ConsumedMessage) -> Row:
    millis, errors = message.timestamp()[1], list[str]()
    parts = []
    for name, decode, data in (("key", key, message.key()), ("value", value, message.value())):
        try:
            parts.append(decode(data))
        except FormatUnavailableError:
            raise
        except failure() as error:  # a format may be the user's
            parts.append(None)
            errors.append(f"{name}: {describe(error)}")
    time = None if millis < 0 else datetime.fromtimestamp(millis / 1000, UTC)
    return (*parts, time, message.partition(), message.offset(), "; ".join(errors) or None)
