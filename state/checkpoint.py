"""Checkpoints: which layers a flow starts from.

Authority lies in the record alone: it is written once all that it names is durable, so layers that
no checkpoint names were never written. Cost: about 100 bytes a bin that holds keys, 30 a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from schemas.avro import Format
from state.bins import BinSpace
from state.ids import Incarnation
from state.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The states of a flow's operators; a bin that has no manifest holds no keys.

    >>> checkpoint = Checkpoint(1, Incarnation(7), BinSpace(8), millis=5, manifests=())
    >>> Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    True
    """

    number: int
    incarnation: Incarnation
    space: BinSpace
    millis: int
    manifests: tuple[Manifest, ...]

    @property
    def operators(self) -> set[str]:
        """The operators whose states it holds."""
        return {manifest.operator for manifest in self.manifests}

    def to_bytes(self) -> bytes:
        """The checkpoint as it rests on its topic."""
        return _FORMAT.encode(
            {
                "number": self.number,
                "incarnation": self.incarnation,
                "bits": self.space.bits,
                "millis": self.millis,
                "manifests": [manifest.to_bytes() for manifest in self.manifests],
            }
        )

    @staticmethod
    def from_bytes(data: bytes) -> Checkpoint:
        """Undo `to_bytes`. Raises MeanderError when another format version wrote it."""
        record = _FORMAT.decode(data)
        manifests = tuple(map(Manifest.from_bytes, record["manifests"]))
        incarnation, space = Incarnation(record["incarnation"]), BinSpace(record["bits"])
        return Checkpoint(record["number"], incarnation, space, record["millis"], manifests)


class _CheckpointRecord(TypedDict):
    number: int
    incarnation: int
    bits: int
    millis: int
    manifests: list[bytes]


_FORMAT: Final = Format[_CheckpointRecord]("checkpoint")
