"""What tests of the connectors share: a worker's context, and the loop around a reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from meander.connectors.kafka import client
from meander.connectors.kafka.dead_letter import KafkaDeadLetters
from meander.connectors.kafka.source.reader import KafkaReader
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.kafka.topic_metadata import expect_topic
from meander.dataflow.interfaces import Chunk, Partition, Rests, SinkWriter, WorkerContext
from meander.dataflow.keepalive import NO_KEEPALIVE, Keepalive
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import SetupError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.kafka.topics import PATIENCE, create_topic


@dataclass
class Rig:
    """One flow's surroundings on a broker."""

    bootstrap: str
    prefix: str
    wakeup: threading.Event = field(default_factory=threading.Event)

    @property
    def settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}

    @property
    def dead_topic(self) -> str:
        return self.prefix + "flow.dead"

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        create_topic(self.bootstrap, self.prefix + name, partitions, **config)
        return self.prefix + name

    def id_of(self, topic: str) -> str:
        return expect_topic(client.admin(self.settings), topic).id

    def context(
        self,
        *,
        worker: int = 0,
        workers: int = 1,
        until_end: bool = True,
        start: str = "earliest",
        flow: str = "flow",
        settings: dict[str, str] | None = None,
        max_waiting: int = 1 << 30,
        pulse: Keepalive = NO_KEEPALIVE,
        outside: Mapping[str, Mapping[str, str]] | None = None,
        topics: Mapping[str, str] | None = None,
        skip_lost: bool = False,
        start_offsets: Sequence[int] = (),
    ) -> WorkerContext:
        return WorkerContext(
            flow, self.prefix, WorkerId(worker), workers, self.settings | (settings or {}),
            until_end, start, self.wakeup, max_waiting, pulse, outside or {},
            topics or {}, skip_lost, start_offsets,
        )  # fmt: skip

    @contextmanager
    def reading(
        self, source: KafkaSource, context: WorkerContext | None = None, rests: Rests | None = None
    ) -> Iterator[Reading]:
        """The source opened, with dead letters."""
        context = context or self.context()
        dead = KafkaDeadLetters.open(context, self.dead_topic)
        reader = source.open(context, dead, rests)
        try:
            yield Reading(reader, dead, self.wakeup)
        finally:
            reader.close()
            dead.close()


@dataclass
class Reading:
    """A reader and all that it has handed out."""

    reader: KafkaReader
    dead: KafkaDeadLetters
    wakeup: threading.Event
    chunks: list[Chunk] = field(default_factory=list)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Poll as a worker does until it is done."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            chunks = self.reader.poll()
            self.chunks += chunks
            self.dead.delivered()
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
            if not chunks:
                self.reader.watch()
                self.wakeup.wait(0.01)
                self.wakeup.clear()

    def to_end(self) -> Reading:
        self.until(lambda: all(map(self.reader.ended, self.reader.partitions)), "the end")
        return self

    def to_idle(self) -> Reading:
        self.until(lambda: all(map(self.reader.idle, self.reader.partitions)), "idle")
        return self

    def of(self, partition: int) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.partition == Partition(partition)]

    @property
    def values(self) -> list[object]:
        return [value for chunk in self.chunks for value in chunk.values]

    @property
    def offsets(self) -> list[int]:
        return [int(offset) for chunk in self.chunks for offset in chunk.offsets]

    @property
    def millis(self) -> list[int]:
        return [to_millis(int(at)) for chunk in self.chunks for at in chunk.times]


def batch(values: Sequence[object], keys: Sequence[object] | None = None, millis: int = 0) -> Batch:
    """Results as the engine hands them to a sink: origin 3, partition 1, offsets from 0."""
    n = len(values)
    column = np.zeros(n, np.int64)
    return Batch(
        column + from_millis(millis), column + 3, column + 1, np.arange(n, dtype=np.int64), column,
        list(values), None if keys is None else [codec.encode(key) for key in keys],
    )  # fmt: skip


def hidden(_: object, topics: list[str]) -> dict[str, dict[str, str]]:
    """Answer in place of `topic_metadata.configs` to a user who may not see settings."""
    raise SetupError(f"topic {topics[0]!r}", "the broker refused access to the topic")


def await_ticket(writer: SinkWriter, ticket: int) -> None:
    """Returns once all up to the ticket is durable."""
    deadline = time.monotonic() + PATIENCE
    while writer.delivered() < ticket:
        assert time.monotonic() < deadline, f"ticket {ticket} was not delivered"
        time.sleep(0.001)
