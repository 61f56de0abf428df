"""The checkpoints topic: which layers of the state topic a flow starts from, by its last record.

Guarantees that a record is written only after all that it names, as whoever writes one has its
places, and that what is read at an offset is a whole checkpoint. Calls block; they are made at a
start, and by whoever writes layers from outside of a flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from confluent_kafka import KafkaError, TopicPartition

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


class CheckpointsTopic:
    """The coordinator's way to write checkpoints while its flow runs: nothing here blocks."""

    def __init__(self, settings: Settings, checkpoints: str, in_flight: str) -> None:
        self._sender, self._topic = _sender(settings, checkpoints), checkpoints
        self._tombstones = Sender(settings, in_flight)

    def write(self, checkpoint: Checkpoint) -> Callable[[], int | None]:
        """Begin to write one; where it lies, once it is durable. Raises SetupError for one too
        large."""
        placed: list[int] = []
        self._sender.place(_payload(self._topic, checkpoint), None, placed.append)
        return lambda: placed[0] if placed else None

    def forget(self, places: Sequence[Place]) -> None:
        """Have compaction take records in flight that no checkpoint refers to."""
        self._tombstones.forget(places)

    def pump(self) -> None:
        """Hear of what has become durable. Raises what the broker refused."""
        self._sender.pump()
        self._tombstones.pump()

    def close(self) -> None:
        """Give up what is under way."""
        self._sender.close()
        self._tombstones.close()


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


def newest(
    settings: Settings, topic: str, counts: Callable[[int, Checkpoint], bool] = lambda *_: True
) -> tuple[int, Checkpoint] | None:
    """The last checkpoint that counts, and its offset; None where there is none."""
    with contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer:
        low, high = client.watermarks(consumer, topic, 0)
    for offset in range(high - 1, low - 1, -1):
        found = read(settings, topic, offset)
        if counts(offset, found):
            return offset, found
    return None


def last(settings: Settings, topic: str, most: int) -> list[tuple[int, Checkpoint]]:
    """The last so many with their offsets, the oldest first: earlier ones may name what is there no
    longer."""
    with contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer:
        low, high = client.watermarks(consumer, topic, 0)
    offsets = range(max(low, high - most), high)
    return [(offset, read(settings, topic, offset)) for offset in offsets]


def read(settings: Settings, topic: str, offset: int) -> Checkpoint:
    """The checkpoint that lies at an offset. Raises MeanderError where none does."""
    contact, deadline = client.contact(settings), time.monotonic() + DURABLE
    with contextlib.closing(client.consumer(settings, f"meander.{topic}")) as consumer:
        consumer.assign([TopicPartition(topic, 0, offset)])
        while time.monotonic() < deadline:
            contact.check()
            message = cast(Fetched | None, consumer.poll(0.5))
            error = None if message is None else message.error()
            if message is not None and error is None and message.offset() == offset:
                return _decoded(topic, offset, message.value() or b"")
            if message is not None and error is None:
                break
            known = error is None or error.code() == KafkaError._PARTITION_EOF
            if error is not None and not known and not client.transient(error):
                raise client.translate(error, f"topic {topic!r}")
    raise MeanderError(
        f"topic {topic!r}, offset {offset}",
        "the checkpoint that was there cannot be read any more",
        "see who else writes to the topic, or deletes from it",
    )


def _decoded(topic: str, offset: int, data: bytes) -> Checkpoint:
    try:
        return Checkpoint.from_bytes(data)
    except MeanderError as error:
        raise SetupError(
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
