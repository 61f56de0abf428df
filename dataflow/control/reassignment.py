"""The moves of bins that the coordinator sends to every worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from meander.state.keys.ids import Bin, WorkerId


@dataclass(frozen=True, slots=True)
class Moves:
    """A decision that makes `target` the owner of `bins` from the logical time `time` on.

    >>> moves = Moves("m1", 7, WorkerId(1), (Bin(3), Bin(4)))
    >>> Moves.from_bytes(moves.to_bytes()) == moves
    True
    """

    command: str
    time: int
    target: WorkerId
    bins: tuple[Bin, ...]

    def to_bytes(self) -> bytes:
        """Encode the moves for the wire."""
        return bytes(msgpack.packb((self.command, self.time, self.target, self.bins)))

    @staticmethod
    def from_bytes(data: bytes) -> Moves:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        command, time, target, bins = msgpack.unpackb(data, use_list=False)
        if type(command) is not str or {type(n) for n in (time, target, *bins)} != {int}:
            raise ValueError("moves name no command, or no numbers")
        return Moves(command, time, WorkerId(target), tuple(map(Bin, bins)))
