"""What strikes at a named step: faults, as data.

A new one is a class here, and a case in `Mortal.strike` or in `befall`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.simulator import SimTopic
from meander.state.layers.topic import RecordLocation
from tests.support.property.watched import Watched, WatchedTopic, of_the_next_version


class Killed(BaseException):
    """A process is no more, in the midst of what it was doing: nobody catches this."""


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """The process is killed, and its flow goes on from the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Stop(Fault):
    """The process takes no turns for so many steps once this one is over, then it goes on, whatever
    has become of the flow: another life may have begun before or after."""

    steps: int


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """A checkpoint is taken as soon as the turn is over; soon after it all are killed."""


@dataclass(frozen=True, slots=True)
class BrokerDown(Fault):
    """Nothing becomes durable, committed or readable for so many steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class CorruptLayer(Fault):
    """One bit of a layer that the newest checkpoint names."""


@dataclass(frozen=True, slots=True)
class TruncatedPiece(Fault):
    """A record in flight of the newest checkpoint has lost its end."""


@dataclass(frozen=True, slots=True)
class UnknownVersion(Fault):
    """The newest checkpoint's record, or one in flight that it names, is of a release to come."""

    record: bool
    """The checkpoint's own."""


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """The worker's database takes no more: as soon as it is to, the life ends with an error that
    says so."""


class FullDisk:
    """What RocksDB does there."""

    def __init__(self, rocks: Any) -> None:
        self._rocks = rocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rocks, name)

    def write(self, *_: object) -> None:
        raise OSError("IO error: No space left on device: While appending to file")

    ingest_external_file = write


def befall(world: Watched, fault: Fault, rng: random.Random) -> bool:
    """What a fault does to the broker and to what lies there; whether there was any of it."""
    match fault:
        case BrokerDown(steps):
            world.until = world.steps + steps
            return True
        case UnknownVersion(record=True):
            world.future = world.checkpoints[-1] if world.checkpoints else None
            return bool(world.checkpoints)
        case CorruptLayer():
            return _spoil(world.state, layers(world), rng, _with_another_bit)
        case TruncatedPiece():
            return _spoil(world.in_flight, pieces(world), rng, _without_its_end)
        case UnknownVersion():
            return _spoil(world.in_flight, pieces(world), rng, of_the_next_version)
    raise AssertionError(f"nobody knows what {fault} does")


def layers(world: Watched) -> list[RecordLocation]:
    """The chunks that the newest checkpoint names."""
    manifests = world.checkpoints[-1].manifests if world.checkpoints else ()
    return [at for manifest in manifests for layer in manifest.layers for at in layer.chunks]


def pieces(world: Watched) -> list[RecordLocation]:
    """What it names on the topic of records in flight."""
    return [*world.checkpoints[-1].places] if world.checkpoints else []


def _spoil(
    topic: SimTopic,
    places: list[RecordLocation],
    rng: random.Random,
    spoilt: Callable[[bytes], bytes],
) -> bool:
    assert isinstance(topic, WatchedTopic), "the world is watched"
    if places:
        topic.spoil(rng.choice(places), spoilt)
    return bool(places)


def _with_another_bit(payload: bytes) -> bytes:
    middle = len(payload) // 2
    return payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]


def _without_its_end(payload: bytes) -> bytes:
    return payload[: len(payload) // 2]
