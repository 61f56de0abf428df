"""The instructions of the coordinator to workers about bins, besides their moves (`Moves`).

A pre-copy has two instructions. `StartPreCopy` lets the owner write all of a bin to the state
topic. `Prefetch` sends the next owner the manifest, so that it fetches the layers. Only later
changes remain for the move. The coordinator may cancel a pre-copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from meander.dataflow.control.logic_change import PrepareLogic
from meander.dataflow.control.strict_decoding import expect_count
from meander.state.keys.ids import Bin
from meander.state.layers.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StartPreCopy:
    """An instruction that starts a pre-copy. The owner of a bin writes the missing changes to the
    state topic, reports the manifest, and keeps those layers.

    >>> StartPreCopy.from_bytes(StartPreCopy(1, Bin(3)).to_bytes())
    StartPreCopy(number=1, bin=3)
    """

    number: int
    """The number of the pre-copy. Its reports carry it."""
    bin: Bin

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb((self.number, self.bin)))

    @staticmethod
    def from_bytes(data: bytes) -> StartPreCopy:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        number, bin = msgpack.unpackb(data)
        return StartPreCopy(expect_count(number), Bin(expect_count(bin)))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """An instruction that lets the next owner of a bin fetch one operator's layers of it."""

    number: int
    manifest: Manifest

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb((self.number, self.manifest.to_bytes())))

    @staticmethod
    def from_bytes(data: bytes) -> Prefetch:
        """Decode `to_bytes`. Raises ValueError or MeanderError for other bytes."""
        number, manifest = msgpack.unpackb(data)
        return Prefetch(expect_count(number), Manifest.from_bytes(manifest))


@dataclass(frozen=True, slots=True)
class CancelMove:
    """An instruction that cancels a move. The current and the planned owner of the bin receive it.

    >>> CancelMove.from_bytes(CancelMove(Bin(3)).to_bytes())
    CancelMove(bin=3)
    """

    bin: Bin

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb(self.bin))

    @staticmethod
    def from_bytes(data: bytes) -> CancelMove:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        return CancelMove(Bin(expect_count(msgpack.unpackb(data))))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An instruction that lets the writer of an operator's bin write its unreadable layers again.

    >>> Rewrite.from_bytes(Rewrite("per_plane", Bin(3), 7).to_bytes())
    Rewrite(operator='per_plane', bin=3, time=7)
    """

    operator: str
    bin: Bin
    time: int | None
    """The time at which the bin has left, so that its next owner waits. None where it has not
    left."""

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb((self.operator, self.bin, self.time)))

    @staticmethod
    def from_bytes(data: bytes) -> Rewrite:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        operator, bin, time = msgpack.unpackb(data)
        if type(operator) is not str or not (time is None or type(time) is int):
            raise ValueError("a rewrite names no operator, or no time")
        return Rewrite(operator, Bin(expect_count(bin)), time)


@dataclass(frozen=True, slots=True)
class Revoke:
    """An instruction that withdraws the moves of a command at a time. All workers receive it.

    >>> Revoke.from_bytes(Revoke("m1", 7).to_bytes())
    Revoke(command='m1', time=7)
    """

    command: str
    time: int

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb((self.command, self.time)))

    @staticmethod
    def from_bytes(data: bytes) -> Revoke:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        command, time = msgpack.unpackb(data)
        if type(command) is not str or type(time) is not int:
            raise ValueError("a revoke names no command, or no time")
        return Revoke(command, time)


Instruction = StartPreCopy | Prefetch | CancelMove | Rewrite | Revoke | PrepareLogic
