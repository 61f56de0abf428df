"""Kafka topics as a sink of a flow: one topic, or the one that a function chooses for each value.

Guarantees that the records of `write` arrive in the given order per key, once, while the process
runs: the producer is idempotent and retries forever. A broker that starts forgets producers of old
records (`producer.id.expiration.ms`), so a batch of these that was on its way may arrive twice.
`delivered` names a ticket only once all records up to it are durable. Headers name the origin of
each record: meander.time (milliseconds since 1970), .sequence, .origin, .partition, .offset, .index
(its place in the flow's order) and .worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.formats import (
    Encoder,
    Format,
    Place,
    ValueFormat,
    check_format,
    types_of,
)
from meander.connectors.kafka.sink.batch_producer import BatchProducer
from meander.connectors.kafka.sink.producer import Headers, RecordsRefused
from meander.connectors.kafka.sink.record_encoder import RecordEncoder, header_bytes
from meander.connectors.kafka.sink.record_limits import (
    learned_limits,
    max_batch_bytes,
    with_limits,
)
from meander.connectors.kafka.topic_names import check_topic, check_topics, matching
from meander.dataflow.errors import WritesDropped
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_flag

OwnHeaders = Mapping[str, bytes | str | None] | Headers
"""The headers that a user's function gives a record."""


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A sink that writes a stream to Kafka; implements `SinkSpec`.

    `topic` is a topic, or a function of the value that chooses one of `topics`: a list, or a
    pattern of whole names. `value` encodes objects: "json", "str", "bytes", a function, or an
    object such as `typed(Order)`; None is a null. `key` "plain" takes the key of the stream, a
    function gives one for a value: text and bytes stay as they are, others become JSON, and None is
    no key. An object such as `typed(Id)` encodes the key of the stream. `headers` gives headers,
    and `partition` a number, for a value.

    A record's timestamp is the logical time of its result, or with `time="wall"` the producer's
    clock. Without `origin`, records do not name their origin, and cost a third.

    >>> KafkaSink("totals").value
    'json'
    >>> by_country = KafkaSink(lambda order: f"orders-{order['country']}", topics="orders-..")
    >>> by_country.accepts("orders-de"), by_country.accepts("orders-all")
    (True, False)
    """

    topic: str | Callable[[Any], str]
    value: Format | Encoder | ValueFormat[Any] = "json"
    key: Literal["plain"] | Callable[[Any], object] | ValueFormat[Any] = "plain"
    headers: Callable[[Any], OwnHeaders] | None = None
    partition: Callable[[Any], int] | None = None
    topics: str | Sequence[str] = ()
    time: Literal["logical", "wall"] = "logical"
    origin: bool = True

    def __post_init__(self) -> None:
        if callable(self.topic):
            check_topics("sink with a topic function, topics", self.topics)
            if not isinstance(self.topics, str):
                object.__setattr__(self, "topics", tuple(self.topics))
            name = "sink with a topic function"
        else:
            check_topic("sink topic", self.topic, _TOPIC_REMEDY)
            name = f"sink topic {self.topic!r}"
            if self.topics:
                raise SetupError(name, f"it has topics={self.topics!r} beside the topic",
                                 "leave topics out, or give a function that chooses one of them"
                                 )  # fmt: skip
        check_format(f"{name}, value", self.value)
        check_format(f"{name}, key", self.key, ["plain"])
        _check_function(f"{name}, partition", self.partition)
        more = "; origin=False leaves out the headers that name the origin"
        _check_function(f"{name}, headers", self.headers, more)
        if self.time not in ("logical", "wall"):
            raise SetupError(f"{name}, time", f"it is {self.time!r}", "give 'logical' or 'wall'")
        checked_flag(name, "origin", self.origin)

    @property
    def declared(self) -> Sequence[str]:
        """Return the topics that it names; () for a pattern."""
        if not callable(self.topic):
            return (self.topic,)
        return () if isinstance(self.topics, str) else self.topics

    def accepts(self, topic: str) -> bool:
        """Return whether the sink may write to a topic."""
        if callable(self.topic) and isinstance(self.topics, str):
            return re.fullmatch(self.topics, topic) is not None
        return topic in self.declared

    def topics_of(self, present: Iterable[str]) -> list[str]:
        """Return the topics that it names, or those of the cluster, `present`, that match."""
        if callable(self.topic) and isinstance(self.topics, str):
            return matching(self.topics, present)
        return [*self.declared]

    def places(self, part: str) -> list[Place]:
        """Return the places of a part of its records: one per topic, or one for a pattern."""
        if callable(self.topic) and isinstance(self.topics, str):
            return [Place(self.topics, part, "sink", is_pattern=True)]
        return [Place(topic, part, "sink") for topic in self.declared]

    @property
    def formats(self) -> Iterator[tuple[ValueFormat[Any], Place]]:
        """Yield the formats that are objects, with each of their places."""
        for part, form in (("value", self.value), ("key", self.key)):
            if isinstance(form, ValueFormat):
                yield from ((form, place) for place in self.places(part))

    @property
    def types(self) -> list[object]:
        """Return the types that the formats name."""
        return types_of(self.value, self.key)

    def open(self, context: WorkerContext) -> KafkaWriter:
        """Return this worker's writer. Raise SetupError when the topic cannot be written."""
        for topic in self.declared:
            topic_metadata.partitions_of(client.admin(context.settings), topic)
        return KafkaWriter(self, context)


def _check_function(subject: str, function: object, remedy: str = "") -> None:
    if not (function is None or callable(function)):
        raise SetupError(subject, f"it is {function!r}", f"give a function of the value{remedy}")


_TOPIC_REMEDY = "name one topic, or give a function that chooses one for a value, and topics=[...]"


class KafkaWriter:
    """A writer that sends one sink's results from one worker; implements `SinkWriter`."""

    def __init__(self, spec: KafkaSink, context: WorkerContext) -> None:
        self._spec = spec
        self._open(context, client.MAX_MESSAGE_BYTES)

    def _open(self, context: WorkerContext, batch_bytes: int) -> None:
        self._context = context
        self._encoder = RecordEncoder.limited(self._spec, context)
        topics = self._spec.topics_of(context.sink_topics)
        batch_bytes = min(batch_bytes, max_batch_bytes(topics, context.sink_topics))
        self._producer = BatchProducer(context.settings, topics, context.max_waiting, batch_bytes)

    def write(self, batch: Batch) -> int:
        """Accept one batch; return its ticket: 1, 2, 3, ...

        Raise RowError, before any record is sent, for a row that cannot be written.
        """
        return self._producer.send(self._encoder.encode(batch).by_topic())

    @property
    def full(self) -> bool:
        """Return whether the bytes in flight exceed half of the bound."""
        return self._producer.full

    def delivered(self) -> int:
        """Return the last ticket up to which all records are durable. Raise the broker's refusal,
        and WritesDropped once smaller records or batches may succeed."""
        try:
            return self._producer.delivered()
        except RecordsRefused as refused:
            ended, context, limits = self._producer, self._context, dict[str, dict[str, str]]()
            if refused.record is not None:
                topic, headers = str(refused.record.topic()), header_bytes(self._spec)
                limits[topic] = learned_limits(topic, context, refused, headers)
            topics = with_limits(context.sink_topics, limits)
            self._open(replace(context, sink_topics=topics), refused.batch_bytes)
            ended.close()
            raise WritesDropped from None

    def close(self) -> None:
        """Release connections, and drop records that are not delivered."""
        self._producer.close()
