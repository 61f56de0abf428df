"""What the coordinator tells workers about bins that are to move, besides when they do (`Moves`).

A prepared move goes: the owner is told to have all of a bin lie on the state topic
(`StartPreCopy`), the worker that is to have it next is told where (`Prefetch`) and fetches it, and
only what changes from then on is left to move at the time of the move. All of it may be called off.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from meander.dataflow.control.strict import count
from meander.state.keys.ids import Bin
from meander.state.layers.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StartPreCopy:
    """To the owner of a bin that is to move: write what does not lie on the state topic, say where
    all lies, and leave that as it is.

    >>> StartPreCopy.from_bytes(StartPreCopy(1, Bin(3)).to_bytes())
    StartPreCopy(number=1, bin=3)
    """

    number: int
    """Of the preparation: what is said of it names it."""
    bin: Bin

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb((self.number, self.bin)))

    @staticmethod
    def from_bytes(data: bytes) -> StartPreCopy:
        """The inverse. Raises ValueError for anything else."""
        number, bin = msgpack.unpackb(data)
        return StartPreCopy(count(number), Bin(count(bin)))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """To who is to have a bin next: fetch what of an operator's part lies on the state topic."""

    number: int
    manifest: Manifest

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb((self.number, self.manifest.to_bytes())))

    @staticmethod
    def from_bytes(data: bytes) -> Prefetch:
        """The inverse. Raises ValueError or MeanderError for anything else."""
        number, manifest = msgpack.unpackb(data)
        return Prefetch(count(number), Manifest.from_bytes(manifest))


@dataclass(frozen=True, slots=True)
class CancelMove:
    """To the owner of a bin and to whom it was prepared for: it stays.

    >>> CancelMove.from_bytes(CancelMove(Bin(3)).to_bytes())
    CancelMove(bin=3)
    """

    bin: Bin

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb(self.bin))

    @staticmethod
    def from_bytes(data: bytes) -> CancelMove:
        """The inverse. Raises ValueError for anything else."""
        return CancelMove(Bin(count(msgpack.unpackb(data))))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """To who has written the layers of an operator's bin: some cannot be read.

    >>> Rewrite.from_bytes(Rewrite("per_plane", Bin(3), 7).to_bytes())
    Rewrite(operator='per_plane', bin=3, time=7)
    """

    operator: str
    bin: Bin
    time: int | None
    """The bin has left at this time, and its next owner waits for it; None where it has not."""

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb((self.operator, self.bin, self.time)))

    @staticmethod
    def from_bytes(data: bytes) -> Rewrite:
        """The inverse. Raises ValueError for anything else."""
        operator, bin, time = msgpack.unpackb(data)
        if type(operator) is not str or not (time is None or type(time) is int):
            raise ValueError("this names nothing that could be written anew")
        return Rewrite(operator, Bin(count(bin)), time)


@dataclass(frozen=True, slots=True)
class Revoke:
    """To all: a command moves nothing at a time, after all.

    >>> Revoke.from_bytes(Revoke("m1", 7).to_bytes())
    Revoke(command='m1', time=7)
    """

    command: str
    time: int

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb((self.command, self.time)))

    @staticmethod
    def from_bytes(data: bytes) -> Revoke:
        """The inverse. Raises ValueError for anything else."""
        command, time = msgpack.unpackb(data)
        if type(command) is not str or type(time) is not int:
            raise ValueError("this revokes nothing")
        return Revoke(command, time)


Instruction = StartPreCopy | Prefetch | CancelMove | Rewrite | Revoke
