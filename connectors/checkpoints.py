"""The checkpoints topic: which layers of the state topic a flow starts from, by its last record.

Guarantees that a record is written only after all that it names, as whoever writes one has its
places, and that what is read at an offset is a whole checkpoint. Calls block; they are made at a
start, and by whoever writes layers from outside of a flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from connectors import client
from connectors.client import Fetched, Settings
from connectors.sender import Sender
from connectors.topics import MAX_CHECKPOINT
from schemas.errors import MeanderError, SetupError
from state.checkpoint import Checkpoint
from state.manifest import Manifest
from state.topic import Place

DURABLE = 60.0
"""Seconds within which what is written must be durable."""
_ROOM = 64 << 10
"""Bytes of a record's frame, and more."""


class Unreadable(SetupError):
    """What lies at an offset, if anything does, is no checkpoint that this release reads."""


class CheckpointsTopic:
    """The coordinator's way to write checkpoints while its flow runs: nothing here blocks."""

    def __init__(self, settings: Settings, checkpoints: str, in_flight: str, state: str) -> None:
        self._sender, self._topic = _sender(settings, checkpoints), checkpoints
        self._in_flight, self._state = Sender(settings, in_flight), Sender(settings, state)

    def write(self, checkpoint: Checkpoint) -> Callable[[], int | None]:
        """Begin to write one; where it lies, once it is durable. Raises SetupError for one too
        large."""
        placed: list[int] = []
        self._sender.place(_payload(self._topic, checkpoint), None, placed.append)
        return lambda: placed[0] if placed else None

    def forget(self, places: Sequence[Place], chunks: Sequence[Place]) -> None:
        """Have compaction take records in flight, and chunks of layers, that no checkpoint refers
        to."""
        self._in_flight.forget(places)
        self._state.forget(chunks)

    def pump(self) -> None:
        """Hear of what has become durable. Raises what the broker refused."""
        for sender in (self._sender, self._in_flight, self._state):
            sender.pump()

    def close(self) -> None:
        """Give up what is under way."""
        for sender in (self._sender, self._in_flight, self._state):
            sender.close()


def append(settings: Settings, topic: str, checkpoint: Checkpoint) -> int:
    """Write a checkpoint; its offset, once it is durable."""
    payload, placed = _payload(topic, checkpoint), list[int]()
    with contextlib.closing(_sender(settings, topic)) as sender:
        sender.place(payload, None, placed.append)
        sender.flush(DURABLE)
    (offset,) = placed
    return offset


def _sender(settings: Settings, topic: str) -> Sender:
    kbytes = 2 * MAX_CHECKPOINT >> 10
    return Sender(
        settings, topic, message_max_bytes=MAX_CHECKPOINT, queue_buffering_max_kbytes=kbytes
    )


def _payload(topic: str, checkpoint: Checkpoint) -> bytes:
    payload = checkpoint.to_bytes()
    if len(payload) > MAX_CHECKPOINT - _ROOM:
        raise SetupError(
            f"topic {topic!r}",
            f"a checkpoint of {len(checkpoint.manifests):,} bins takes {len(payload):,} bytes, and"
            f" a record {MAX_CHECKPOINT:,} at most",
            "give the flow fewer bins",
        )
    return payload


class CheckpointsReader:
    """Those that are there when it is made; each is read once, by one client, as that takes longer
    to meet the broker than to read."""

    def __init__(self, settings: Settings, topic: str, consumer: Consumer) -> None:
        self._contact, self._topic, self._consumer = client.contact(settings), topic, consumer
        self._offsets = range(*client.watermarks(consumer, topic, 0))
        self._read: dict[int, Checkpoint | Unreadable] = {}

    def newest(
        self, counts: Callable[[int, Checkpoint], bool] = lambda *_: True
    ) -> tuple[int, Checkpoint] | None:
        """The last that counts, and its offset; None where there is none. Raises Unreadable for a
        later one of which nobody knows whether it does."""
        found = ((offset, self.at(offset)) for offset in reversed(self._offsets))
        return next((one for one in found if counts(*one)), None)

    def last(self, most: int, end: int | None = None) -> range:
        """The offsets of the last so many, before an `end` if there is one, the oldest first:
        earlier ones may name what is there no longer."""
        stop = self._offsets.stop if end is None else min(end, self._offsets.stop)
        return self._offsets[: max(0, stop - self._offsets.start)][-most:]

    def let_go(self, offset: int) -> bool:
        """Whether a flow that runs has let go what lay at an offset."""
        return offset < client.watermarks(self._consumer, self._topic, 0)[0]

    @property
    def number(self) -> int:
        """The greatest that one has, or a greater: of those that cannot be read it is not known."""
        for passed, offset in enumerate(reversed(self._offsets)):
            if isinstance(one := self.read(offset), Checkpoint):
                return one.number + passed
        return self._offsets.stop

    def read(self, offset: int) -> Checkpoint | Unreadable:
        """The one that lies at an offset, or why it cannot be read."""
        if offset not in self._read:
            try:
                self._read[offset] = self._fetched(offset)
            except Unreadable as error:
                self._read[offset] = error
        return self._read[offset]

    def at(self, offset: int) -> Checkpoint:
        """The one that lies at an offset. Raises Unreadable where none does."""
        one = self.read(offset)
        if isinstance(one, Unreadable):
            raise one
        return one

    def _fetched(self, offset: int) -> Checkpoint:
        if offset in self._offsets:
            deadline = time.monotonic() + DURABLE
            self._consumer.assign([TopicPartition(self._topic, 0, offset)])
            while (message := self._next(deadline)) is None:
                pass
            error = message.error()
            if error is None and message.offset() == offset:
                return _decoded(self._topic, offset, message.value() or b"")
            if error is not None and not client.expired(error):
                raise client.translate(error, f"topic {self._topic!r}")
        raise Unreadable(
            f"topic {self._topic!r}, offset {offset}",
            "the checkpoint that was there is there no more",
            "see who else writes to the topic, or deletes from it",
        )

    def _next(self, deadline: float) -> Fetched | None:
        """The next message, or an error that waiting does not mend; None where neither has come.
        Raises MeanderError at the deadline."""
        self._contact.check()
        if time.monotonic() >= deadline:
            raise client.translate(KafkaError(KafkaError._TIMED_OUT), f"topic {self._topic!r}")
        message = cast(Fetched | None, self._consumer.poll(0.5))
        error = None if message is None else message.error()
        return None if error is not None and client.transient(error) else message


@contextlib.contextmanager
def reading(settings: Settings, topic: str) -> Iterator[CheckpointsReader]:
    """Those of a topic, to the block's end. Raises MeanderError."""
    with contextlib.closing(client.reader(settings, topic)) as consumer:
        yield CheckpointsReader(settings, topic, consumer)


def _decoded(topic: str, offset: int, data: bytes) -> Checkpoint:
    try:
        return Checkpoint.from_bytes(data)
    except MeanderError as error:
        raise Unreadable(
            f"topic {topic!r}, offset {offset}",
            f"the checkpoint there is {error.concerns}: {error.cause}",
            f"{error.remedy}, or have the flow start anew with meander reset",
        ) from error


def erase(settings: Settings, topic: str, manifests: Iterable[Manifest]) -> None:
    """Have compaction take the records of some layers off the state topic."""
    layers = (layer for manifest in manifests for layer in manifest.layers)
    tombstone(settings, topic, [place for layer in layers for place in layer.chunks])


def tombstone(settings: Settings, topic: str, places: Sequence[Place]) -> None:
    """Have compaction take records off a topic."""
    with contextlib.closing(Sender(settings, topic)) as sender:
        sender.forget(places)
        sender.flush(DURABLE)
