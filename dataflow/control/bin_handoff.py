"""A bin as it is handed over: where its layers lie, and what little has changed since the last.

What has changed is little where a bin was prepared, or has been snapshotted lately; it need not go
by the state topic then, which would be waited for twice. Its new owner counts it as changed, so it
gets there with the next layer. Cost: the entries, as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from meander.dataflow.control.strict import plain, whole
from meander.state.layers.layer import NO_REMAINDER, DeltaEntries
from meander.state.layers.manifest import Manifest


@dataclass(frozen=True, slots=True)
class BinHandoff:
    """From the old owner of an operator's bin to the new one.

    >>> from meander.state.keys.ids import Bin
    >>> rest = DeltaEntries([b"N14228"], [b"state"], [(5, b"N14228")])
    >>> delivery = BinHandoff(Manifest("per_plane", Bin(3), epoch=7, layers=()), rest)
    >>> BinHandoff.from_bytes(delivery.to_bytes()) == delivery
    True
    """

    manifest: Manifest
    """Its epoch is the time from which the new owner owns the bin."""
    remainder: DeltaEntries = NO_REMAINDER
    """What the layers lack."""

    def to_bytes(self) -> bytes:
        """As it travels on the wire."""
        return bytes(msgpack.packb((self.manifest.to_bytes(), *self.remainder)))

    @staticmethod
    def from_bytes(data: bytes) -> BinHandoff:
        """The inverse. Raises ValueError, TypeError or MeanderError for anything else."""
        manifest, keys, states, timers = msgpack.unpackb(data)
        if len(keys) != len(states):
            raise ValueError(f"{len(keys)} keys have {len(states)} states")
        pairs = None if timers is None else [(whole(time), plain(key)) for time, key in timers]
        remainder = DeltaEntries([*map(plain, keys)], [*map(plain, states)], pairs)
        return BinHandoff(Manifest.from_bytes(manifest), remainder)
