"""Faults at named steps, as data.

A new fault is a class here, and a case in `KilledFlow.strike_process` or in `strike_world`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meander.dataflow.simulation.faults import Fault
from meander.dataflow.simulation.simulator import SimTopic
from meander.state.layers.topic import RecordLocation
from tests.support.property.watched import WatchedTopic, WatchedWorld, of_the_next_version


class Killed(BaseException):
    """A process was killed within a step; no code of the engine catches this."""


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """A fault that kills the process; the next execution starts from the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Stop(Fault):
    """A fault that stops the process for some steps once its turn is over.

    Then the process continues, even if another execution has started.
    """

    steps: int


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """A fault that takes a checkpoint once the turn is over, and then kills all processes."""


@dataclass(frozen=True, slots=True)
class BrokerDown(Fault):
    """A fault that lets nothing become durable, committed or readable for some steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class CorruptLayer(Fault):
    """A fault that changes one bit of a layer of the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class TruncatedPiece(Fault):
    """A fault that cuts the end off an in-flight record of the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class UnknownVersion(Fault):
    """A fault that gives a record of the newest checkpoint the format of a later release."""

    record: bool
    """Whether it is the checkpoint's own record, not an in-flight one."""


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """A fault that fills the worker's disk; the next write ends the execution with an error."""


class FullDisk:
    """A RocksDB on a full disk."""

    def __init__(self, rocks: Any) -> None:
        self._rocks = rocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rocks, name)

    def write(self, *_: object) -> None:
        raise OSError("IO error: No space left on device: While appending to file")

    ingest_external_file = write


def strike_world(world: WatchedWorld, fault: Fault, rng: random.Random) -> bool:
    """Apply a fault to the broker or to its records; return whether there was such a record."""
    match fault:
        case BrokerDown(steps):
            world.until = world.steps + steps
            return True
        case UnknownVersion(record=True):
            world.future = world.checkpoints[-1] if world.checkpoints else None
            return bool(world.checkpoints)
        case CorruptLayer():
            return _corrupt(world.state, layers(world), rng, _with_another_bit)
        case TruncatedPiece():
            return _corrupt(world.in_flight, pieces(world), rng, _without_its_end)
        case UnknownVersion():
            return _corrupt(world.in_flight, pieces(world), rng, of_the_next_version)
    raise AssertionError(f"{fault} has no case")


def layers(world: WatchedWorld) -> list[RecordLocation]:
    """Return the locations of the chunks that the newest checkpoint names."""
    manifests = world.checkpoints[-1].manifests if world.checkpoints else ()
    return [at for manifest in manifests for layer in manifest.layers for at in layer.chunks]


def pieces(world: WatchedWorld) -> list[RecordLocation]:
    """Return the locations of the pieces that the newest checkpoint names."""
    return [*world.checkpoints[-1].locations] if world.checkpoints else []


def _corrupt(
    topic: SimTopic,
    places: list[RecordLocation],
    rng: random.Random,
    corrupted: Callable[[bytes], bytes],
) -> bool:
    assert isinstance(topic, WatchedTopic), "the world is watched"
    if places:
        topic.corrupt(rng.choice(places), corrupted)
    return bool(places)


def _with_another_bit(payload: bytes) -> bytes:
    middle = len(payload) // 2
    return payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]


def _without_its_end(payload: bytes) -> bytes:
    return payload[: len(payload) // 2]
