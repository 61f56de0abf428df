"""Kafka topics as a source of a flow: one topic, or a source for each topic of a list or pattern.

Guarantees that exactly one worker reads a partition, the same in every run with equally many
workers (`assigned`). The source checks before a start that the topic exists, that the user may read
it, and that its bounds are known. It also decides how a flow treats unreadable records. Cost of
opening: a few round trips per partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import xxhash
from confluent_kafka import Consumer
from typing_extensions import TypeVar

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import (
    Decoder,
    Format,
    Place,
    TimeExtractor,
    ValueFormat,
    at_place,
    check_extractor,
    check_format,
    types_of,
)
from meander.connectors.kafka.source.chunks import ChunkReader
from meander.connectors.kafka.source.deserializer import Deserializer, Shape
from meander.connectors.kafka.source.lost_records import LostRecords
from meander.connectors.kafka.source.reader import Bounds, KafkaReader
from meander.connectors.kafka.source.start_positions import offset_at, parse_start
from meander.connectors.kafka.topic_ids import TopicIds, recreated
from meander.connectors.kafka.topic_names import (
    check_pattern,
    check_topic,
    check_topics,
    matching,
)
from meander.dataflow.api.nodes import SourceNode
from meander.dataflow.interfaces import (
    DeadLetterTopic,
    Partition,
    Readers,
    Rest,
    Rests,
    SourceOptions,
    SourceSpec,
    WorkerContext,
    check_options,
)
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.operators.source.silence import DEFAULT_SECONDS
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.option_values import checked_flag
from meander.state.encoding.record import Record

T = TypeVar("T", default=Any)
"""The type of its values."""
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
"""The types of keys and values in pairs and records."""
Typed = Callable[[bytes], T] | ValueFormat[T]
"""A format that names the type of its values."""
AnyFormat = Format | Decoder | ValueFormat[Any]
Idle = Literal["wait", "advance"]
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
    >>> from meander.state.keys.ids import WorkerId
    >>> assigned("flights", 4, 1, 2, {Partition(3): WorkerId(1)})
    [0, 2, 3]
    """
    shift = xxhash.xxh3_64_intdigest(topic.encode())
    return [p for p in map(Partition, range(partitions))
            if readers.get(p, (p + shift) % workers) == worker]  # fmt: skip


@dataclass(frozen=True)
class KafkaSource(SourceSpec[T]):
    """A source that reads a topic, a list of topics, or all topics whose whole names match a
    `pattern`; implements `SourceSpec`.

    `value` and `key` decode bytes: "json", "str", "bytes" or a function of the bytes; a null stays
    None. So do objects such as `typed(Order)`, whose type is that of the stream. With `pairs`, a
    value is the tuple (key, value), else the source ignores keys. With `metadata`, a value is a
    `Record`: value, key, topic, partition, offset, timestamp_ms and headers. `time` is the record's
    timestamp, or `header("name")`, `field("name")`, or a function. The function returns
    milliseconds since 1970 for a decoded value. An unreadable record goes to the dead-letter topic,
    or ends the flow with `fail_fast`.

    `start` is where the first start of a flow begins to read: "earliest", "latest", milliseconds
    since 1970 or a time with a zone in ISO 8601. Without it the source follows `--start`. A
    checkpoint has its own positions.

    With `idle="advance"` logical time follows the wall clock while all sources of the flow are
    silent, `SourceOptions.advance_after` seconds behind it (5 by default).

    >>> from meander import KafkaSource, field
    >>> KafkaSource("flights", time=field("at")).topic
    'flights'
    """

    topic: str | Sequence[str] = ""
    value: Format | Callable[[bytes], T] | ValueFormat[T] = "json"
    key: Format | Decoder | ValueFormat[Any] = "str"
    time: TimeExtractor | None = None
    options: SourceOptions = DEFAULT_OPTIONS
    fail_fast: bool = False
    pairs: bool = False
    metadata: bool = False
    pattern: str = ""
    start: str | int | None = None
    idle: Literal["wait", "advance"] = "wait"

    if TYPE_CHECKING:
        # A format that names a type gives that of the values: T, a pair of K and V, or a record
        # of V. For other formats the type is what the user says.

        @overload  # type: ignore[no-overload-impl]
        def __init__(
            self, topic: str | Sequence[str] = ..., value: Format = ..., key: AnyFormat = ...,
            time: TimeExtractor | None = ..., options: SourceOptions = ..., fail_fast: bool = ...,
            pairs: bool = ..., metadata: bool = ..., pattern: str = ...,
            start: str | int | None = ..., idle: Idle = ...,
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self: KafkaSource[tuple[K, V]], topic: str | Sequence[str] = ..., value: Typed[V] = ...,
            key: Format | Typed[K] = ..., time: TimeExtractor | None = ...,
            options: SourceOptions = ..., fail_fast: bool = ..., *, pairs: Literal[True],
            metadata: Literal[False] = ..., pattern: str = ..., start: str | int | None = ...,
            idle: Idle = ...,
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self: KafkaSource[Record[V]], topic: str | Sequence[str] = ..., value: Typed[V] = ...,
            key: AnyFormat = ..., time: TimeExtractor | None = ..., options: SourceOptions = ...,
            fail_fast: bool = ..., pairs: Literal[False] = ..., *, metadata: Literal[True],
            pattern: str = ..., start: str | int | None = ..., idle: Idle = ...,
        ) -> None: ...  # fmt: skip
        @overload
        def __init__(
            self, topic: str | Sequence[str] = ..., value: Typed[T] = ..., key: AnyFormat = ...,
            time: TimeExtractor | None = ..., options: SourceOptions = ..., fail_fast: bool = ...,
            pairs: bool = ..., metadata: bool = ..., pattern: str = ...,
            start: str | int | None = ..., idle: Idle = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        name = f"source topic {self.topic!r}"
        if self.pattern != "":
            name = f"source of topics {self.pattern!r}"
            if self.topic:
                raise SetupError(name, f"it has a topic beside its pattern, {self.topic!r}",
                                 "give one of the two")  # fmt: skip
            check_pattern("source pattern", self.pattern)
        elif isinstance(self.topic, str):
            check_topic("source topic", self.topic, "name a topic")
        else:
            check_topics("source topics", self.topic)
            object.__setattr__(self, "topic", tuple(self.topic))
        if self.start is not None:
            parse_start(self.start, f"{name}, start")
        for what, form in (("value", self.value), ("key", self.key)):
            check_format(f"{name}, {what}", form)
        check_extractor(f"{name}, time", self.time)
        for what in ("fail_fast", "pairs", "metadata"):
            checked_flag(name, what, getattr(self, what))
        check_options(name, self.options)
        self._check_idle()
        if self.pairs and self.metadata:
            raise SetupError(name, "it has both pairs and metadata",
                             "leave out pairs: a Record has the key")  # fmt: skip

    def with_keys(self) -> KafkaSource[Any]:
        """Return the source whose values bring their keys along: a `Record` has its key, and any
        other value becomes a pair."""
        return self if self.metadata else replace(self, pairs=True)

    @property
    def is_composite(self) -> bool:
        """Return whether it reads a list or pattern of topics, as one source for each."""
        return bool(self.pattern) or not isinstance(self.topic, str)

    def parts(self, topics: Sequence[str]) -> dict[str, KafkaSource[T]]:
        """Return the source of each topic, for a pattern of those that match, in their order."""
        chosen: Sequence[str] = self.topic
        if self.pattern:
            allowed = {*matching(self.pattern, topics)}
            chosen = [one for one in topics if one in allowed]
        return {one: replace(self, topic=one, pattern="") for one in chosen}

    @property
    def _topic(self) -> str:
        """The topic of a source of one topic."""
        assert isinstance(self.topic, str), "the plan has a source for each topic"
        return self.topic

    @property
    def formats(self) -> Iterator[tuple[ValueFormat[Any], Place]]:
        """Yield the formats of a source of one topic that are objects, each with its place."""
        for part, form in (("value", self.value), ("key", self.key)):
            if isinstance(form, ValueFormat):
                yield form, Place(self._topic, part, "source")

    @property
    def types(self) -> list[object]:
        """Return the types that the formats name."""
        return types_of(self.value, self.key)

    def _check_idle(self) -> None:
        """Complete the options of a source that follows the clock. Raise SetupError where they
        contradict `idle`."""
        seconds, subject = self.options.advance_after, f"source topic {self.topic!r}"
        if self.idle not in ("wait", "advance"):
            raise SetupError(subject, f"its idle is {self.idle!r}", "give 'wait' or 'advance'")
        if self.idle == "wait" and seconds is not None:
            raise SetupError(subject, f"it has advance_after={seconds} without idle='advance'",
                             "give it both, or none")  # fmt: skip
        if self.idle == "advance":
            options = replace(self.options, advance_after=seconds or DEFAULT_SECONDS)
            object.__setattr__(self, "options", options)

    def open(
        self,
        context: WorkerContext,
        dead: DeadLetterTopic,
        rests: Rests | None = None,
        readers: Readers = NO_READERS,
    ) -> KafkaReader:
        """Return this worker's reader of the given rests, or of its share of all partitions in a
        first run. Raise SetupError when the topic cannot be read."""
        topic_info = topic_metadata.expect_topic(client.admin(context.settings), self._topic)
        if context.topics.get(self._topic, topic_info.id) != topic_info.id:
            raise recreated(self._topic)
        share = assigned(
            self._topic, topic_info.partitions, context.worker, context.workers, readers
        )
        group = topic_metadata.group(context.topic_prefix, context.flow)
        ids = TopicIds(context.settings.get("debug", ""))
        consumer = client.consumer(context.settings, group, ids=ids)
        skip_lost = context.skip_lost
        try:
            if rests is not None:
                # A running flow learns of later partitions, except in a bounded run.
                share = [p for p in share if p not in rests] if context.until_end else []
            elif offsets := context.start_offsets:
                rests = {p: Rest(offsets[p], None) for p in share if p < len(offsets)}
                share = [p for p in share if p not in rests]
                # A start that chose its offsets now would not read them either.
                skip_lost = True
            # Partitions that came later are new, so all their records count.
            own = context.start if self.start is None else self.start
            start = own if rests is None else "earliest"
            bounds = [_bounds(consumer, self._topic, one, context, start) for one in share]
            bounds += [
                _rest_bounds(consumer, self._topic, partition, rest, context.until_end, skip_lost)
                for partition, rest in (rests or {}).items()
                if rest is not None
            ]
        except MeanderError:
            consumer.close()
            raise
        return KafkaReader(
            self._topic,
            topic_info,
            ids,
            consumer,
            group,
            bounds,
            self.chunk_reader(dead, context.keepalive),
            context,
        )

    def chunk_reader(self, dead: DeadLetterTopic, keepalive: Keepalive) -> ChunkReader:
        """Return the chunk reader of one worker."""
        shape: Shape = "record" if self.metadata else "pair" if self.pairs else "value"
        value = at_place(self.value, Place(self._topic, "value", "source"))
        key = at_place(self.key, Place(self._topic, "key", "source"))
        deserializer = Deserializer(self._topic, value, key, self.time, shape, keepalive)
        return ChunkReader(self._topic, deserializer, self.fail_fast, dead)


def source_topics(sources: Iterable[SourceNode]) -> dict[str, str]:
    """Return the topic of each source of a plan that reads one, by the name of the source."""
    return {node.name: node.spec._topic for node in sources if isinstance(node.spec, KafkaSource)}


def start_offsets(
    settings: client.Settings, sources: Iterable[SourceNode], start: str
) -> dict[str, list[int]]:
    """Return the offset at which each partition of a source starts, by source.

    `start` is the position of sources without one of their own. Sources that start at the earliest
    record are left out, because retention moves it. Raises MeanderError where a topic cannot be
    read.
    """
    found = dict[str, list[int]]()
    for node in sources:
        spec = node.spec
        if not isinstance(spec, KafkaSource):
            continue
        position = start if spec.start is None else spec.start
        if parse_start(position) == "earliest":
            continue
        count = topic_metadata.partitions_of(client.admin(settings), spec._topic)
        with contextlib.closing(client.consumer(settings, "meander.offsets")) as consumer:
            found[node.name] = [
                offset_at(consumer, spec._topic, one, position)[0] for one in range(count)
            ]
    return found


def _bounds(
    consumer: Consumer, topic: str, partition: Partition, context: WorkerContext, start: str | int
) -> Bounds:
    """Return the bounds of a partition that is read from a position."""
    first, end = offset_at(consumer, topic, partition, start)
    return Bounds(partition, first, end if context.until_end else None)


def _rest_bounds(
    consumer: Consumer, topic: str, partition: Partition, rest: Rest, until_end: bool,
    skip_lost: bool,
) -> Bounds:  # fmt: skip
    """Return the bounds of a rest. A bounded run ends at the partition's present end, whatever the
    end of an earlier run. Raise SetupError where the next records are lost and may not be passed
    over."""
    low, high = client.watermarks(consumer, topic, partition)
    if not low <= rest.offset <= high:
        LostRecords(topic, partition, rest.offset, low, high).skip(skip_lost)
    return Bounds(partition, max(low, rest.offset), high if until_end else None)


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
