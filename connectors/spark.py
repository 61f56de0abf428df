"""Kafka topics as Spark DataFrames: a Python Data Source, batch reads only.

Guarantees every record that lay between the earliest offset and the end of each partition when
the read was planned, once, in offset order within a partition; committed records only. Spark gets
one input partition per topic partition, so a topic is read by as many tasks as it has partitions.
The end is recognised by position, not by the last record seen: transaction markers and what
compaction took away occupy offsets that no record has. Cost: one consumer per task, and Arrow
batches of at most `BATCH` records on the way to the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connectors import client, topics
from connectors.client import Fetched
from schemas.errors import MeanderError, SetupError

FORMAT = "meander-kafka"
BATCH = 10_000
"""Records per Arrow batch: large enough that Arrow's own cost vanishes, about 5 MB at most."""
PATIENCE = 60.0
"""Seconds without an answer from the broker after which a read fails."""

COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "key binary, value binary, headers map<string, binary>"
)
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)


def read_topics(spark: SparkSession, topics: Sequence[str], settings: dict[str, str]) -> DataFrame:
    """All committed records of some topics, as of when Spark plans the read: `COLUMNS`.

    `settings` are librdkafka's and must hold `bootstrap.servers`. Of several headers with one name
    the last is kept. Raises SetupError (within Spark's AnalysisException) for a missing topic.
    """
    spark.dataSource.register(KafkaTopics)
    reader = spark.read.format(FORMAT).option("topics", ",".join(topics))
    for name, value in settings.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()


class KafkaTopics(DataSource):
    """Format `meander-kafka`; options `topics` (a comma between) and `kafka.*` (librdkafka's)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._topics = [name.strip() for name in options.get("topics", "").split(",")]
        self._settings = {
            name.removeprefix("kafka."): value
            for name, value in options.items()
            if name.startswith("kafka.")
        }

    @classmethod
    def name(cls) -> str:
        """How `spark.read.format` calls it."""
        return FORMAT

    def schema(self) -> str:
        """The same columns for every topic."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        if "bootstrap.servers" not in self._settings:
            raise SetupError(
                f"format '{FORMAT}'",
                "the option kafka.bootstrap.servers is missing",
                "name the brokers with it",
            )
        return _Reader(self._topics, self._settings)


@dataclass(frozen=True, slots=True)
class _Range(InputPartition):
    """Offsets [start, end) of one topic partition."""

    topic: str
    partition: int
    start: int
    end: int


class _Reader(DataSourceReader):
    def __init__(self, topics: list[str], settings: dict[str, str]) -> None:
        self._topics = topics
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """Where every partition begins and ends now; the end is the last stable offset."""
        admin = client.admin(self._settings)
        every = [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in range(topics.partitions_of(admin, topic))
        ]
        starts = _offsets(admin, every, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = _offsets(admin, every, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        # Empty ones too: where Spark is given no partition at all, it reads `None`.
        return [_Range(at.topic, at.partition, starts[at], ends[at]) for at in every]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, in offset order."""
        assert isinstance(partition, _Range)
        consumer = client.consumer(self._settings, FORMAT)
        try:
            consumer.assign([TopicPartition(partition.topic, partition.partition, partition.start)])
            yield from _read(consumer, partition)
        finally:
            consumer.close()


def _offsets(
    admin: AdminClient, every: list[TopicPartition], which: OffsetSpec
) -> dict[TopicPartition, int]:
    answers = admin.list_offsets(
        dict.fromkeys(every, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=client.ANSWER,
    )
    return {at: answer.result().offset for at, answer in answers.items()}


def _read(consumer: Consumer, span: _Range) -> Iterator[pa.RecordBatch]:
    rows = _Rows(span)
    last_answer = time.monotonic()
    while not rows.complete():
        # `consume` with a timeout waits for all of it at the end of the log; `poll` does not.
        first = consumer.poll(1.0)
        found = [] if first is None else [first, *consumer.consume(BATCH, timeout=0)]
        messages = cast(list[Fetched], found)
        for message in messages:
            error = message.error()
            if error is None:
                rows.add(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                rows.reached(message.offset())
            elif not error.retriable():
                raise client.translate(error, f"topic '{span.topic}'")
        if messages:
            last_answer = time.monotonic()
        elif time.monotonic() - last_answer > PATIENCE:
            raise MeanderError(
                f"partition {span.partition} of topic '{span.topic}'",
                f"no answer for {PATIENCE:.0f} s at offset {rows.position} of {span.end}",
                "look whether the broker runs",
            )
        if len(rows) >= BATCH or (rows.complete() and len(rows)):
            yield rows.take()


class _Rows:
    """Columns being filled; headers lie flat, with where each record's begin."""

    def __init__(self, span: _Range) -> None:
        self._span = span
        self.position = span.start
        self._clear()

    def __len__(self) -> int:
        return len(self._offsets)

    def complete(self) -> bool:
        """Whether the end has been reached."""
        return self.position >= self._span.end

    def reached(self, offset: int) -> None:
        """The log ends here: what lies below and was not delivered is no record."""
        self.position = max(self.position, offset)

    def add(self, message: Fetched) -> None:
        offset = message.offset()
        self.position = offset + 1
        if offset >= self._span.end:
            return
        self._offsets.append(offset)
        # librdkafka says milliseconds, or -1 where a record has no timestamp.
        millis = message.timestamp()[1]
        self._timestamps.append(None if millis < 0 else millis * 1000)
        self._keys.append(message.key())
        self._values.append(message.value())
        # A Spark map refuses a name twice.
        for name, value in dict(message.headers() or ()).items():
            self._header_names.append(name)
            self._header_values.append(value)
        self._header_starts.append(len(self._header_names))

    def take(self) -> pa.RecordBatch:
        size = len(self._offsets)
        headers = pa.MapArray.from_arrays(
            pa.array(self._header_starts, pa.int32()),
            pa.array(self._header_names, pa.string()),
            pa.array(self._header_values, pa.binary()),
        )
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([self._span.topic] * size, pa.string()),
                pa.array([self._span.partition] * size, pa.int32()),
                pa.array(self._offsets, pa.int64()),
                pa.array(self._timestamps, pa.timestamp("us", tz="UTC")),
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                headers,
            ],
            schema=_ARROW,
        )
        self._clear()
        return batch

    def _clear(self) -> None:
        self._offsets: list[int] = []
        self._timestamps: list[int | None] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._header_names: list[str] = []
        self._header_values: list[bytes | None] = []
        self._header_starts: list[int] = [0]
