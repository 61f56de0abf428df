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
from functools import lru_cache
from typing import Generic, Literal, TypeVar

from connectors import client, topics
from connectors.formats import Encoder, Format, encoder, plain_key
from connectors.outbox import Headers, Outbox, Shipment
from dataflow.batch import Batch
from dataflow.operators.errors import FAILURES, told
from dataflow.protocols import WorkerContext
from schemas.refused import RowRefused
from state import codec
from state.ids import WorkerId

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


class KafkaWriter:
    """Implements `SinkWriter`."""

    def __init__(self, spec: KafkaSink, context: WorkerContext) -> None:
        self._rows = Rows(spec, context.worker, context.alive)
        self._outbox = Outbox(context.settings, spec.topic, context.max_waiting)
        self._tickets: deque[Shipment] = deque()
        self._delivered = 0

    def write(self, batch: Batch) -> int:
        """Take over one batch; returns its ticket: 1, 2, 3, ...

        Raises RowRefused, before anything is sent, for a row that cannot be written.
        """
        self._tickets.append(self._outbox.ship(*self._rows.written(batch)))
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


Written = tuple[list[bytes | None], list[bytes | None], list[Headers]]
"""Values, keys and headers of records, each of shape (n,)."""


class Rows:
    """How one worker's results become records of a topic; knows no producer."""

    def __init__(self, spec: KafkaSink, worker: WorkerId, alive: Callable[[], None]) -> None:
        self._topic = spec.topic
        self._value = _Part("value", encoder(spec.value), callable(spec.value))
        self._key = _Part("key", _key_writer(spec.key), callable(spec.key))
        self._alive = alive
        self._worker = _number("meander.worker", worker)

    def written(self, batch: Batch) -> Written:
        """The records of a batch. Raises RowRefused for the first row that cannot be written."""
        values = self._encoded(self._value, batch.values, batch)
        keys: list[bytes | None] = [None] * len(values)
        if batch.keys is not None:
            keys = self._encoded(self._key, batch.keys, batch)
        return values, keys, self._headers(batch)

    def _headers(self, batch: Batch) -> list[Headers]:
        columns = (batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes)
        return [
            [
                ("meander.time", b"%d" % time),
                _number("meander.origin", origin),
                _number("meander.partition", partition),
                ("meander.offset", b"%d" % offset),
                _number("meander.index", index),
                self._worker,
            ]
            for time, origin, partition, offset, index in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    def _encoded(self, part: _Part[T], column: Sequence[T], batch: Batch) -> list[bytes | None]:
        encoded: list[bytes | None] = []
        at_once = 1 if part.own else max(1, len(column))
        for start in range(0, len(column), at_once):
            self._alive()
            try:
                encoded.extend(map(part.encode, column[start : start + at_once]))
            except FAILURES as error:
                row = len(encoded)
                raise RowRefused(
                    row,
                    f"topic {self._topic!r}",
                    f"the {part.name} of the result from partition {batch.partitions[row]}, offset "
                    f"{batch.offsets[row]} cannot be written: {told(error)}",
                    f"map results to what the sink's {part.name} format takes, or give it a"
                    " function",
                ) from error
        return encoded


@dataclass(frozen=True, slots=True)
class _Part(Generic[T]):
    """How the value or the key of a record is written."""

    name: str
    encode: Callable[[T], bytes | None]
    own: bool
    """Whether by a function of the user's, which may take its time."""


@lru_cache(maxsize=4096)
def _number(name: str, number: int) -> tuple[str, bytes]:
    """A header that many records share."""
    return name, b"%d" % number


def _key_writer(form: Literal["plain"] | Encoder) -> KeyWriter:
    if form == "plain":
        return plain_key
    return lambda key: form(codec.decode(key))
