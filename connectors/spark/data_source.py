"""Kafka topics as Spark DataFrames: a Python Data Source for batch reads.

Guarantees each committed record between the earliest offset and the end of each partition at the
time of planning, once, in offset order per partition. Spark gets one input partition per topic
partition, so as many tasks read the topic. The position marks the end, as transaction markers and
compacted records occupy offsets. Cost: one consumer per task, about 6 us per record, less with
fewer columns. Arrow parses JSON, as Spark's parser would take longer than all other steps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import accumulate, chain

import pyarrow as pa
from confluent_kafka import TopicPartition
from pyarrow.json import ParseOptions, ReadOptions, read_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.spark.topic_ranges import TopicRange, ranges_of, read_range
from meander.schemas.errors import MeanderError, SetupError

FORMAT = "meander-kafka"

COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "key binary, value binary, headers map<string, binary>"
)
_FIXED = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
}
"""The columns with one possible type."""
Headers = dict[str, bytes | None]


def read_topics(
    spark: SparkSession,
    topics: Sequence[str],
    settings: dict[str, str],
    columns: str = COLUMNS,
) -> DataFrame:
    """Return all committed records of some topics, as of the time when Spark plans the read.

    `columns` are some of `COLUMNS`. `value` may also be a struct, "value struct<plane: string,
    miles: bigint>": it is read as JSON then, and null where a record has none. `headers` may be a
    struct of bigint, "headers struct<time: bigint>": these headers alone, read as decimal numbers.
    They are null where a record lacks them. `settings` are librdkafka's and must hold
    `bootstrap.servers`. The last of several headers with one name counts. A missing topic, or a
    record that does not fit, fails the query.
    """
    spark.dataSource.register(KafkaTopics)
    reader = spark.read.format(FORMAT).schema(columns).option("topics", ",".join(topics))
    for name, value in settings.items():
        reader = reader.option(f"kafka.{name}", value)
    return reader.load()


class KafkaTopics(DataSource):
    """A data source of format `meander-kafka`; its options are `topics` (separated by commas) and
    `kafka.*`."""

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
        """Return the name for `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the default columns."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raise SetupError for unknown columns."""
        if "bootstrap.servers" not in self._settings:
            raise SetupError(
                f"format '{FORMAT}'",
                "the option kafka.bootstrap.servers is missing",
                "name the brokers with it",
            )
        wanted = to_arrow_schema(schema, timezone="UTC")
        for field in wanted:
            if not _readable(field):
                raise SetupError(
                    f"format '{FORMAT}'",
                    f"there is no column '{field.name}' of type {field.type}",
                    f"name some of: {COLUMNS}; value and headers may be structs",
                )
        return _Reader(self._topics, self._settings, wanted)


def _readable(field: pa.Field) -> bool:
    if field.name == "value":
        return isinstance(field.type, pa.StructType) or bool(field.type == pa.binary())
    if field.name == "headers":
        if isinstance(field.type, pa.StructType):
            return all(bool(number.type == pa.int64()) for number in field.type)
        return isinstance(field.type, pa.MapType)
    return bool(_FIXED.get(field.name) == field.type)


class _Reader(DataSourceReader):
    def __init__(self, topics: list[str], settings: dict[str, str], wanted: pa.Schema) -> None:
        self._topics = topics
        self._settings = settings
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """Return the range of every partition as of now; its end is the last stable offset."""
        # Empty ranges are included: Spark without any input partition reads `None`.
        return ranges_of(self._settings, self._topics)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of one range, in offset order."""
        assert isinstance(partition, TopicRange)
        consumer = client.consumer(self._settings, FORMAT)
        # No object of a batch is part of a cycle, and a batch has many objects. A search for cycles
        # would take a quarter of the time.
        gc.disable()
        try:
            consumer.assign([TopicPartition(partition.topic, partition.partition, partition.start)])
            for messages in read_range(consumer, partition):
                yield _columns(partition, messages, self._wanted)
        finally:
            gc.enable()
            consumer.close()


def _columns(
    span: TopicRange, messages: list[ConsumedMessage], wanted: pa.Schema
) -> pa.RecordBatch:
    """Build a batch column by column. It holds many records, so the function makes no call per
    record."""
    columns = [_column(span, messages, field.name, field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _column(
    span: TopicRange, messages: list[ConsumedMessage], name: str, type_: pa.DataType
) -> pa.Array:
    match name:
        case "topic":
            return pa.repeat(pa.scalar(span.topic, type_), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(span.partition, type_), len(messages))
        case "offset":
            return pa.array([message.offset() for message in messages], type_)
        case "timestamp":
            # librdkafka returns milliseconds, or -1 where a record has no timestamp.
            millis = [message.timestamp()[1] for message in messages]
            return pa.array([None if m < 0 else m * 1000 for m in millis], type_)
        case "key":
            return pa.array([message.key() for message in messages], type_)
        case "value":
            values = [message.value() for message in messages]
            if isinstance(type_, pa.StructType):
                return _parsed(span, values, type_)
            return pa.array(values, type_)
    # A Spark map refuses a repeated name.
    headers = [dict(message.headers() or ()) for message in messages]
    return _numbers(span, headers, type_) if isinstance(type_, pa.StructType) else _map(headers)


def _map(headers: list[Headers]) -> pa.MapArray:
    return pa.MapArray.from_arrays(
        pa.array([0, *accumulate(map(len, headers))], pa.int32()),
        pa.array(list(chain.from_iterable(headers)), pa.string()),
        pa.array(list(chain.from_iterable(map(dict.values, headers))), pa.binary()),
    )


def _numbers(span: TopicRange, headers: list[Headers], fields: pa.StructType) -> pa.StructArray:
    columns = []
    for field in fields:
        texts = [record.get(field.name) for record in headers]
        try:
            numbers = [None if text is None else int(text) for text in texts]
            columns.append(pa.array(numbers, field.type))
        except (ValueError, OverflowError) as error:
            raise MeanderError(
                f"partition {span.partition} of topic '{span.topic}'",
                f"header '{field.name}' of a record is no number: {error}",
                "read headers as a map",
            ) from error
    return pa.StructArray.from_arrays(columns, fields=list(fields))


def _parsed(span: TopicRange, values: list[bytes | None], fields: pa.StructType) -> pa.StructArray:
    """Parse one JSON object per value; a null stays null."""
    # Each value becomes one line. JSON needs no line ends inside, and a value with one would look
    # like two.
    lines = [b"{}" if value is None else value.replace(b"\n", b" ") for value in values]
    data = b"\n".join(lines)
    try:
        table = read_json(
            pa.BufferReader(data),
            # One block becomes one chunk.
            ReadOptions(use_threads=False, block_size=len(data) + 1),
            ParseOptions(
                explicit_schema=pa.schema(list(fields)), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise _no_json(span, str(error)) from error
    if table.num_rows != len(values):
        raise _no_json(span, f"{len(values)} values hold {table.num_rows} objects")
    columns = [column.combine_chunks() for column in table.columns]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=missing)


def _no_json(span: TopicRange, cause: str) -> MeanderError:
    return MeanderError(
        f"partition {span.partition} of topic '{span.topic}'",
        f"a value is no JSON object with these fields: {cause}",
        "read it as binary, or name other fields",
    )
