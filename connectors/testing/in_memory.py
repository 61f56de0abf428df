"""Topics in memory for flows on simulated workers, with the records that Kafka would hold.

Guarantees that a record passes the formats of the flow's sources and sinks, and that its topic
holds it with its key and headers. The seed chooses how many records a poll returns and when a
result counts as delivered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self, cast

from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.formats import Format, decoder, is_user_code
from meander.connectors.kafka.sink.partitioner import partitions_of_keys
from meander.connectors.kafka.sink.record_encoder import RecordEncoder
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.sink.topic_batch import EncodedRecords
from meander.connectors.kafka.sink.topic_directory import TopicDirectory
from meander.connectors.kafka.source.chunks import ChunkReader
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.interfaces import Chunk, Partition
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import DelayedWriter, InMemoryReader, Result, results
from meander.state.keys.ids import WorkerId

POLL_SIZES = (1, 8, 64, 512)
"""The most records that a poll may return from one partition."""

Headers = Sequence[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record on a topic; `ms` is its timestamp, milliseconds since 1970."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    ms: int
    partition: int
    offset: int


class InMemoryMessage:
    """A message that a consumer returns for a record; implements `ConsumedMessage`."""

    def __init__(self, record: TopicRecord) -> None:
        self._record = record

    def partition(self) -> int:
        """Return its partition."""
        return self._record.partition

    def offset(self) -> int:
        """Return its offset."""
        return self._record.offset

    def key(self) -> bytes | None:
        """Return its key."""
        return self._record.key

    def value(self) -> bytes | None:
        """Return its value."""
        return self._record.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return its headers, as bytes; None where it has none."""
        headers = self._record.headers
        return [(n, v.encode() if isinstance(v, str) else v) for n, v in headers] or None

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp with the producer's clock."""
        return 1, self._record.ms

    def error(self) -> None:
        """Return None, as the message is a record."""

    def __len__(self) -> int:
        return len(self._record.value or b"")


@dataclass(slots=True)
class Topic:
    """A topic that retains all records in their order, and the flow's results among them."""

    logs: list[list[ConsumedMessage]]
    """The records of each partition."""
    records: list[TopicRecord] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, partitions: int) -> Self:
        """Return an empty topic."""
        return cls([[] for _ in range(partitions)])

    @property
    def partitions(self) -> int:
        """Return the present number of partitions."""
        return len(self.logs)

    def grow(self) -> int:
        """Add a partition, even while a flow runs; return its number."""
        self.logs.append([])
        return self.partitions - 1

    def append(
        self, value: bytes | None, key: bytes | None, headers: Headers, ms: int, partition: int
    ) -> None:
        """Append a record to a partition."""
        offset = len(self.logs[partition])
        record = TopicRecord(value, key, headers, ms, partition, offset)
        self.records.append(record)
        self.logs[partition].append(InMemoryMessage(record))


class TopicReader(InMemoryReader):
    """A reader that reads one worker's partitions of a topic; implements `SourceReader`.

    `paused` returns whether a partition looks empty for now. `ending` returns whether no records
    will follow. `room` returns how many records the reader may return now.
    """

    def __init__(
        self,
        topic: Topic,
        partitions: Sequence[Partition],
        chunk_reader: ChunkReader,
        rng: random.Random,
        paused: Callable[[Partition], bool],
        ending: Callable[[], bool],
        room: Callable[[], int],
    ) -> None:
        super().__init__(topic.logs, partitions, rng)
        self._topic, self._chunk_reader = topic, chunk_reader
        self._is_paused, self._ending, self._room = paused, ending, room

    @property
    def unreadable(self) -> int:
        """Return the number of records that could not be decoded so far."""
        return self._chunk_reader.unreadable

    def poll(self) -> list[Chunk]:
        """Return some records of some partitions."""
        chunks, room = [], self._room()
        self._find_partitions()
        for partition in self.partitions:
            if partition in self._paused or self.idle(partition) or self._rng.random() < 0.5:
                continue
            first = self._next[partition]
            last = first + min(self._rng.choice(POLL_SIZES), room)
            taken = self._topic.logs[partition][first:last]
            self._next[partition] = first + len(taken)
            room -= len(taken)
            chunks.append(self._chunk_reader.read(partition, taken))
        return [chunk for chunk in chunks if chunk.values]

    def idle(self, partition: Partition) -> bool:
        """Return whether all visible records of a partition have been handed out."""
        return self._is_paused(partition) or self._all_read(partition)

    def ended(self, partition: Partition) -> bool:
        """Return whether all records have been handed out and none will follow."""
        read = self._ending() and self._all_read(partition)
        return read and self._chunk_reader.dead_letters_durable


class TopicWriter(DelayedWriter):
    """A writer that appends one worker's results to its topics; implements `SinkWriter`. `open`
    returns a topic by name."""

    def __init__(
        self,
        spec: KafkaSink,
        open: Callable[[str], Topic],
        worker: WorkerId,
        rng: random.Random,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(rng)
        for topic in spec.declared:
            open(topic)
        directory = TopicDirectory(lambda topic: open(topic).partitions)
        self._encoder = RecordEncoder(spec, worker, NO_KEEPALIVE, directory=directory)
        self._decode = decoder("bytes" if is_user_code(spec.value) else cast(Format, spec.value))
        self._open, self._worker, self._now_ms = open, worker, now_ms

    def prepared(self, batch: Batch) -> Callable[[], None]:
        """Return the function that appends a batch. Raise RowError for a row that cannot be
        written."""
        records = self._encoder.encode(batch)
        values = list(map(self._decode, records.values))
        return partial(self._append, records, results(self._worker, batch, records.keys, values))

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch as the topic would hold it. Raise RowError as
        `prepared` does."""
        return self._encoder.checksum(batch)

    def _append(self, records: EncodedRecords, made: Sequence[Result]) -> None:
        now = self._now_ms()
        for row, result in enumerate(made):
            topic, key = self._open(records.topics[row]), records.keys[row]
            headers = () if records.headers is None else tuple(records.headers[row])
            ms = now if records.timestamps is None else records.timestamps[row]
            if records.partitions is None:
                (partition,) = partitions_of_keys([key], topic.partitions, 0)
            else:
                partition = records.partitions[row]
            topic.append(records.values[row], key, headers, ms, partition)
            topic.results.append(result)
