"""The checkpoints topic: its records name the layers from which a flow starts.

Guarantees that a record is written only after every record that it names, as its writer has their
locations. A read at an offset returns a whole checkpoint; the in-flight topic holds the parts of a
large checkpoint. Calls block, except on `CheckpointsTopic`. They run at a start, or write layers
from outside of a flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage, Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.topics.internal_topics import TopicNames
from meander.connectors.topics.record_fetcher import fetch_records
from meander.connectors.topics.state import TopicAppender
from meander.dataflow.checkpoint.record_writer import Recorded, RecordWriter
from meander.schemas.errors import MeanderError, SetupError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import RecordLocation

WRITE_TIMEOUT = 60.0
"""The seconds within which a write must be durable."""
_POLL_SECONDS = 0.002
"""The seconds between two checks for it."""


class CheckpointUnreadable(SetupError):
    """An error that reports an offset without a checkpoint that this release reads."""


class CheckpointsTopic:
    """A writer that records the coordinator's checkpoints while its flow runs; no call blocks."""

    def __init__(self, settings: Settings, names: TopicNames) -> None:
        self._producer = RecordProducer(settings, names.checkpoints)
        self._in_flight = TopicAppender(settings, names.in_flight, 0)
        self._state = RecordProducer(settings, names.state)

    def write(self, checkpoint: Checkpoint) -> Callable[[], Recorded | None]:
        """Start to write a checkpoint. Return a function that returns its size and offset once it
        is durable."""
        return RecordWriter(checkpoint, self._in_flight, self._append).recorded

    def _append(self, record: bytes) -> Callable[[], int | None]:
        offsets: list[int] = []
        self._producer.append(record, None, offsets.append)
        return lambda: offsets[0] if offsets else None

    def delete(self, locations: Sequence[RecordLocation], chunks: Sequence[RecordLocation]) -> None:
        """Let compaction delete in-flight records, and chunks of layers, that no checkpoint
        references."""
        self._in_flight.delete(locations)
        self._state.delete(chunks)

    def pump(self) -> None:
        """Process delivery reports. Raise the broker's refusal."""
        for producer in (self._producer, self._in_flight, self._state):
            producer.pump()

    def close(self) -> None:
        """Drop unsent records and release connections."""
        for producer in (self._producer, self._in_flight, self._state):
            producer.close()


def append(settings: Settings, names: TopicNames, checkpoint: Checkpoint) -> int:
    """Write a checkpoint; return its offset once it is durable. Raise Unreachable after
    `WRITE_TIMEOUT` seconds."""
    deadline = time.monotonic() + WRITE_TIMEOUT
    with contextlib.closing(CheckpointsTopic(settings, names)) as topic:
        recorded = topic.write(checkpoint)
        while (found := recorded()) is None:
            if time.monotonic() > deadline:
                raise _timed_out(names.checkpoints)
            topic.pump()
            time.sleep(_POLL_SECONDS)
    return found.offset


def _timed_out(topic: str) -> MeanderError:
    return client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")


class CheckpointsReader:
    """A reader that reads the checkpoints present at its construction, each once. It continues
    with later ones where a running flow has deleted the newest. One client serves all reads, as a
    connection takes longer than a read."""

    def __init__(self, settings: Settings, names: TopicNames, consumer: Consumer) -> None:
        self._contact, self._settings, self._consumer = client.contact(settings), settings, consumer
        self._topic, self._in_flight = names.checkpoints, names.in_flight
        self._offsets = range(*client.watermarks(consumer, self._topic, 0))
        self._read: dict[int, Checkpoint | CheckpointUnreadable] = {}

    def newest(
        self, accepts: Callable[[int, Checkpoint], bool] = lambda *_: True
    ) -> tuple[int, Checkpoint] | None:
        """Return the last checkpoint that `accepts` accepts, with its offset, or None. Raise
        CheckpointUnreadable for an unreadable later checkpoint."""
        for offset in reversed(self._offsets):
            one = self.read(offset)
            if isinstance(one, CheckpointUnreadable):
                if not self.is_deleted(offset):
                    raise one
                # A running flow deletes a checkpoint only once it has written newer ones.
                self._offsets = range(*client.watermarks(self._consumer, self._topic, 0))
                return self.newest(accepts)
            if accepts(offset, one):
                return offset, one
        return None

    def last(self, most: int, end: int | None = None) -> range:
        """Return the offsets of the last `most` checkpoints before `end`, the oldest first. Earlier
        checkpoints may name deleted records."""
        stop = self._offsets.stop if end is None else min(end, self._offsets.stop)
        return self._offsets[: max(0, stop - self._offsets.start)][-most:]

    def is_deleted(self, offset: int) -> bool:
        """Return whether a running flow has deleted the checkpoint at an offset."""
        return offset < client.watermarks(self._consumer, self._topic, 0)[0]

    @property
    def number(self) -> int:
        """Return an upper bound of all checkpoint numbers; the number of an unreadable one is
        unknown."""
        for passed, offset in enumerate(reversed(self._offsets)):
            if isinstance(one := self.read(offset), Checkpoint):
                return one.number + passed
        return self._offsets.stop

    def read(self, offset: int) -> Checkpoint | CheckpointUnreadable:
        """Return the checkpoint at an offset, or the reason why it cannot be read."""
        if offset not in self._read:
            try:
                self._read[offset] = self._fetch(offset)
            except CheckpointUnreadable as error:
                self._read[offset] = error
        return self._read[offset]

    def at(self, offset: int) -> Checkpoint:
        """Return the checkpoint at an offset. Raise CheckpointUnreadable where it is missing."""
        one = self.read(offset)
        if isinstance(one, CheckpointUnreadable):
            raise one
        return one

    def _fetch(self, offset: int) -> Checkpoint:
        if offset in self._offsets:
            deadline = time.monotonic() + WRITE_TIMEOUT
            self._consumer.assign([TopicPartition(self._topic, 0, offset)])
            while (message := self._next(deadline)) is None:
                pass
            error = message.error()
            if error is None and message.offset() == offset:
                return self._decode(offset, message.value() or b"")
            if error is not None and not client.is_expired(error):
                raise client.translate(error, f"topic {self._topic!r}")
        raise CheckpointUnreadable(
            f"topic {self._topic!r}, offset {offset}",
            "its checkpoint has been deleted",
            "look for another program that writes to the topic, or deletes from it",
        )

    def _next(self, deadline: float) -> ConsumedMessage | None:
        """Return the next message, or a permanent error; None where neither has arrived. Raise
        MeanderError at the deadline."""
        self._contact.check()
        if time.monotonic() >= deadline:
            raise _timed_out(self._topic)
        message = cast(ConsumedMessage | None, self._consumer.poll(0.5))
        error = None if message is None else message.error()
        return None if error is not None and client.is_transient(error) else message

    def _decode(self, offset: int, data: bytes) -> Checkpoint:
        try:
            return Checkpoint.from_bytes(data, self._parts)
        except SetupError:
            raise
        except MeanderError as error:
            raise CheckpointUnreadable(
                f"topic {self._topic!r}, offset {offset}",
                f"the checkpoint there is {error.subject}: {error.cause}",
                f"{error.remedy}, or run meander reset",
            ) from error

    def _parts(self, locations: Sequence[RecordLocation]) -> list[bytes]:
        return fetch_records(self._settings, self._in_flight, locations, WRITE_TIMEOUT)


@contextlib.contextmanager
def open_checkpoints(settings: Settings, names: TopicNames) -> Iterator[CheckpointsReader]:
    """Open the checkpoints of a flow for a block. Raise MeanderError."""
    with contextlib.closing(client.reader(settings, names.checkpoints)) as consumer:
        yield CheckpointsReader(settings, names, consumer)


def delete_layers(settings: Settings, topic: str, manifests: Iterable[Manifest]) -> None:
    """Let compaction delete the records of some layers on the state topic."""
    layers = (layer for manifest in manifests for layer in manifest.layers)
    delete_records(settings, topic, [location for layer in layers for location in layer.chunks])


def delete_records(settings: Settings, topic: str, locations: Sequence[RecordLocation]) -> None:
    """Let compaction delete records of a topic."""
    with contextlib.closing(RecordProducer(settings, topic)) as producer:
        producer.delete(locations)
        producer.flush(WRITE_TIMEOUT)
