"""Topic batches: encoded records for one topic, and the records of a sink in columns.

Guarantees that a split keeps the order of the records of each topic. Cost: none for a sink with one
topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from meander.connectors.kafka.sink.producer import ANY_PARTITION, Headers, size_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicBatch:
    """A topic batch that holds records for one topic; a column is None where no record has a value
    of its own there. Shapes (n,)."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None
    timestamps: Sequence[int] | None = None
    """Milliseconds since 1970; without them the producer's clock counts."""
    partitions: Sequence[int] | None = None
    """The partitions that a user's function has chosen."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """Return the bytes of the records, approximately."""
        return size_of(self.values, self.keys, self.headers)

    def record(self, row: int) -> Record:
        """Return one record in the form that a producer takes."""
        return (
            self.topic,
            self.values[row],
            self.keys[row],
            ANY_PARTITION if self.partitions is None else self.partitions[row],
            None if self.headers is None else self.headers[row],
            0 if self.timestamps is None else self.timestamps[row],
        )


Record = tuple[str, bytes | None, bytes | None, int, Headers | None, int]
"""The topic, value, key, partition, headers and timestamp of a record; the producer's clock gives
the timestamp 0."""


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """A batch of encoded results in columns, each of shape (n,), in the order of the batch."""

    topics: Sequence[str]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    timestamps: Sequence[int] | None
    partitions: Sequence[int] | None

    def by_topic(self) -> list[TopicBatch]:
        """Return the records of each topic. An empty batch gives one without a topic.

        >>> records = EncodedRecords(["a", "b", "a"], [b"1", b"2", b"3"], [None] * 3, *[None] * 3)
        >>> [(one.topic, one.values) for one in records.by_topic()]
        [('a', [b'1', b'3']), ('b', [b'2'])]
        """
        if len({*self.topics}) <= 1:
            topic = self.topics[0] if self.topics else ""
            return [TopicBatch(topic, *self._columns())]
        rows = defaultdict[str, list[int]](list)
        for row, topic in enumerate(self.topics):
            rows[topic].append(row)
        return [
            TopicBatch(
                topic,
                [self.values[row] for row in some],
                [self.keys[row] for row in some],
                _chosen(self.headers, some),
                _chosen(self.timestamps, some),
                _chosen(self.partitions, some),
            )
            for topic, some in rows.items()
        ]

    def _columns(self) -> tuple[Sequence[bytes | None], Sequence[bytes | None],
                                Sequence[Headers] | None, Sequence[int] | None,
                                Sequence[int] | None]:  # fmt: skip
        return self.values, self.keys, self.headers, self.timestamps, self.partitions


def records_from(batches: Sequence[TopicBatch], first: int) -> Iterator[Record]:
    """Yield the records of batches from a row on, as if they were one batch."""
    for batch in batches:
        yield from map(batch.record, range(min(first, len(batch)), len(batch)))
        first = max(0, first - len(batch))


def _chosen(column: Sequence[T] | None, rows: Sequence[int]) -> list[T] | None:
    return None if column is None else [column[row] for row in rows]
