"""A Kafka topic as a sink of a flow.

Guarantees that what `write` takes over arrives in the order given per key, once, for as long as the
process lives (an idempotent producer that never gives up), and that `delivered` never names a
ticket before all records up to it are durable. Each record says in headers where it comes from:
meander.time, .origin, .partition, .offset, .index (its place in the flow's order) and .worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from confluent_kafka import Message

from connectors import client, topics
from connectors.formats import Encoder, Format, encoder, plain_key
from connectors.outbox import Headers, Outbox
from dataflow.batch import Batch
from dataflow.protocols import WorkerContext
from schemas.refused import RowRefused
from state import codec

KeyWriter = Callable[[bytes], bytes]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """Writes a stream to a topic; implements `SinkSpec`.

    `value` says how objects become bytes: "json", "str", "bytes" or a function; None is a null.
    `key` "plain" writes text and bytes as they are and all else as JSON; a function gets the key.
    A stream without keys writes records without keys.

    >>> KafkaSink("totals").value
    'json'
    """

    topic: str
    value: Format | Encoder = "json"
    key: Literal["plain"] | Encoder = "plain"

    def open(self, context: WorkerContext) -> KafkaWriter:
        """This worker's writer. Raises SetupError when the topic cannot be written."""
        topics.partitions_of(client.admin(context.settings), self.topic)
        return KafkaWriter(self, context)


class Ticket:
    """Counts the records of one batch that are still under way."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, _: Message) -> None:
        """One of them is durable."""
        self.left -= 1


class KafkaWriter:
    """Implements `SinkWriter`."""

    def __init__(self, spec: KafkaSink, context: WorkerContext) -> None:
        self._topic = spec.topic
        self._encode = encoder(spec.value)
        self._key = _key_writer(spec.key)
        self._worker = str(context.worker).encode()
        self._outbox = Outbox(context.settings, spec.topic, context.max_waiting)
        self._tickets: deque[Ticket] = deque()
        self._delivered = 0

    def write(self, batch: Batch) -> int:
        """Take over one batch; returns its ticket: 1, 2, 3, ...

        Raises RowRefused, before anything is sent, for a row that cannot be written.
        """
        values = self._encoded(self._encode, batch.values, "value", batch)
        keys: list[bytes | None] = [None] * len(values)
        if batch.keys is not None:
            keys = self._encoded(self._key, batch.keys, "key", batch)
        ticket = Ticket(len(values))
        columns = zip(
            values, keys, batch.times.tolist(), batch.origins.tolist(),
            batch.partitions.tolist(), batch.offsets.tolist(), batch.indexes.tolist(),
            strict=True,
        )  # fmt: skip
        send, worker = self._outbox.send, self._worker
        for value, key, time, origin, partition, offset, index in columns:
            headers: Headers = [
                ("meander.time", b"%d" % time),
                ("meander.origin", b"%d" % origin),
                ("meander.partition", b"%d" % partition),
                ("meander.offset", b"%d" % offset),
                ("meander.index", b"%d" % index),
                ("meander.worker", worker),
            ]
            send(value, key, ticket, headers)
        self._tickets.append(ticket)
        return self._delivered + len(self._tickets)

    def delivered(self) -> int:
        """The greatest ticket up to which all is durable. Raises what the broker refused."""
        self._outbox.pump()
        while self._tickets and not self._tickets[0].left:
            self._tickets.popleft()
            self._delivered += 1
        return self._delivered

    def close(self) -> None:
        """Release connections, and give up what is not delivered."""
        self._outbox.close()

    def _encoded(
        self, encode: Callable[[T], bytes | None], column: Sequence[T], part: str, batch: Batch
    ) -> list[bytes | None]:
        encoded: list[bytes | None] = []
        try:
            encoded.extend(map(encode, column))
        except Exception as error:
            row = len(encoded)
            raise RowRefused(
                row,
                f"topic {self._topic!r}",
                f"the {part} of the result from partition {batch.partitions[row]}, offset "
                f"{batch.offsets[row]} cannot be written: {type(error).__name__}: {error}",
                f"map results to what the sink's {part} format takes, or give it a function",
            ) from error
        return encoded


def _key_writer(form: Literal["plain"] | Encoder) -> KeyWriter:
    if form == "plain":
        return plain_key
    return lambda key: form(codec.decode(key))
