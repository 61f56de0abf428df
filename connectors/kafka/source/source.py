"""A Kafka topic as a source of a flow.

Guarantees that exactly one worker reads a partition, the same in every run with equally many
workers (`assigned`). The source checks before a start that the topic exists, that the user may read
it, and that its bounds are known. It also decides how a flow treats unreadable records. Cost of
opening: a few round trips per partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import xxhash
from confluent_kafka import Consumer, KafkaException, TopicPartition
from typing_extensions import TypeVar

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import Decoder, Format, TimeExtractor, check_format
from meander.connectors.kafka.source.chunks import ChunkReader
from meander.connectors.kafka.source.deserializer import Deserializer
from meander.connectors.kafka.source.lost_records import LostRecords
from meander.connectors.kafka.source.reader import Bounds, KafkaReader
from meander.connectors.kafka.topic_ids import TopicIds, recreated
from meander.dataflow.interfaces import (
    DeadLetters,
    Partition,
    Readers,
    Rest,
    Rests,
    SourceOptions,
    SourceSpec,
    WorkerContext,
)
from meander.dataflow.keepalive import Keepalive
from meander.schemas.errors import MeanderError, SetupError
from meander.state.times.time import checked_millis

T = TypeVar("T", default=Any)
"""The type of its values."""
DEFAULT_OPTIONS = SourceOptions()


NO_READERS: Final[Readers] = {}


def assigned(
    topic: str, partitions: int, worker: int, workers: int, readers: Readers = NO_READERS
) -> list[Partition]:
    """Return a worker's first partitions of a topic: those that a plan gives to it, and its share
    of the others. Topics with one partition spread over the workers too.

    A joining worker has none until some change hands.

    >>> [assigned("flights", 4, worker, workers=2) for worker in (0, 1, 2)]
    [[1, 3], [0, 2], []]
    >>> assigned("flights", 4, 1, 2, {Partition(3): WorkerId(1)})
    [0, 2, 3]
    """
    shift = xxhash.xxh3_64_intdigest(topic.encode())
    return [p for p in map(Partition, range(partitions))
            if readers.get(p, (p + shift) % workers) == worker]  # fmt: skip


@dataclass(frozen=True)
class KafkaSource(SourceSpec[T]):
    """A source that reads a topic; implements `SourceSpec`.

    `value` and `key` decode bytes: "json", "str", "bytes" or a function of the bytes; a null stays
    None. With `pairs`, a value is the tuple (key, value), else the source ignores keys. `time` is
    the record's timestamp, or `header("name")`, `field("name")`, or a function. The function
    returns milliseconds since 1970 for a decoded value. An unreadable record goes to the
    dead-letter topic, or ends the flow with `fail_fast`.

    >>> from meander import KafkaSource, field
    >>> KafkaSource("flights", time=field("at")).topic
    'flights'
    """

    topic: str
    value: Format | Decoder = "json"
    key: Format | Decoder = "str"
    time: TimeExtractor | None = None
    options: SourceOptions = DEFAULT_OPTIONS
    fail_fast: bool = False
    pairs: bool = False

    def __post_init__(self) -> None:
        for what, form in (("value", self.value), ("key", self.key)):
            check_format(f"source topic {self.topic!r}, {what}", form)

    def open(
        self,
        context: WorkerContext,
        dead: DeadLetters,
        rests: Rests | None = None,
        readers: Readers = NO_READERS,
    ) -> KafkaReader:
        """Return this worker's reader of the given rests, or of its share of all partitions in a
        first run. Raise SetupError when the topic cannot be read."""
        topic_info = topic_metadata.expect_topic(client.admin(context.settings), self.topic)
        if context.topics.get(self.topic, topic_info.id) != topic_info.id:
            raise recreated(self.topic)
        share = assigned(
            self.topic, topic_info.partitions, context.worker, context.workers, readers
        )
        group = topic_metadata.group(context.topic_prefix, context.flow)
        ids = TopicIds(context.settings.get("debug", ""))
        consumer = client.consumer(context.settings, group, ids=ids)
        try:
            if rests is not None:
                # A running flow learns of later partitions, except in a bounded run.
                share = [p for p in share if p not in rests] if context.until_end else []
            bounds = [_bounds(consumer, self.topic, partition, context) for partition in share]
            bounds += [
                _rest_bounds(consumer, self.topic, partition, rest, context)
                for partition, rest in (rests or {}).items()
                if rest is not None
            ]
        except MeanderError:
            consumer.close()
            raise
        return KafkaReader(
            self.topic,
            topic_info,
            ids,
            consumer,
            group,
            bounds,
            self.chunk_reader(dead, context.keepalive),
            context,
        )

    def chunk_reader(self, dead: DeadLetters, keepalive: Keepalive) -> ChunkReader:
        """Return the chunk reader of one worker."""
        deserializer = Deserializer(self.value, self.key, self.time, self.pairs, keepalive)
        return ChunkReader(self.topic, deserializer, self.fail_fast, dead)


def _bounds(consumer: Consumer, topic: str, partition: Partition, context: WorkerContext) -> Bounds:
    low, high = client.watermarks(consumer, topic, partition)
    match parse_start(context.start):
        case "earliest":
            start = low
        case "latest":
            start = high
        case millis:
            start = _offset_at(consumer, topic, partition, millis, high)
    return Bounds(partition, start, high if context.until_end else None)


def _rest_bounds(
    consumer: Consumer, topic: str, partition: Partition, rest: Rest, context: WorkerContext
) -> Bounds:
    """Return the bounds of a rest. A bounded run ends at the partition's present end, whatever the
    end of an earlier run. Raise SetupError where the next records are lost and may not be passed
    over."""
    low, high = client.watermarks(consumer, topic, partition)
    if not low <= rest.offset <= high:
        LostRecords(topic, partition, rest.offset, low, high).skip(context.skip_lost)
    return Bounds(partition, max(low, rest.offset), high if context.until_end else None)


def lost_records(
    settings: client.Settings, topic: str, offsets: Mapping[int, int]
) -> tuple[list[LostRecords], list[int]]:
    """Return the lost records of each partition, by the offset that it reads next, and the
    partitions that the topic no longer has."""
    found = list[LostRecords]()
    count = topic_metadata.partitions_of(client.admin(settings), topic)
    with contextlib.closing(client.consumer(settings, "meander.offsets")) as consumer:
        for partition, offset in sorted(offsets.items()):
            if partition >= count:
                continue
            low, high = client.watermarks(consumer, topic, partition)
            if not low <= offset <= high:
                found.append(LostRecords(topic, partition, offset, low, high))
    return found, [partition for partition in sorted(offsets) if partition >= count]


def parse_start(start: str) -> Literal["earliest", "latest"] | int:
    """Return the start of a flow without a past: an end of each log, or milliseconds since 1970.
    Raise SetupError for another value.

    >>> parse_start("latest"), parse_start("1357034400000")
    ('latest', 1357034400000)
    """
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    try:
        return checked_millis(int(start if start.isdecimal() else ""))
    except ValueError:
        raise SetupError(
            f"start position {start!r}",
            "it is none that a flow can start from",
            "give earliest, latest or milliseconds since 1970",
        ) from None


def _offset_at(consumer: Consumer, topic: str, partition: int, millis: int, high: int) -> int:
    """Return the first offset with a timestamp at or after a time; the end if there is none."""

    def ask() -> int:
        place = TopicPartition(topic, partition, millis)
        (found,) = consumer.offsets_for_times([place], timeout=client.REQUEST_TIMEOUT)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset

    offset = client.retry_request(ask, f"topic {topic!r}")
    return offset if offset >= 0 else high
