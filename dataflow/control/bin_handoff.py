"""The bin handoff: the manifest of a bin, and the small delta since its last layer.

The delta is small after a pre-copy or an incremental snapshot. It skips the state topic, which
would cost a second wait. The new owner marks it as changed, so the next layer holds it. Cost: the
entries as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from meander.dataflow.control.strict_decoding import expect_bytes, expect_int
from meander.state.layers.layer import NO_DELTA, DeltaEntries
from meander.state.layers.manifest import Manifest


@dataclass(frozen=True, slots=True)
class BinHandoff:
    """A bin handoff that moves an operator's bin from its old owner to its new owner.

    >>> from meander.state.keys.ids import Bin
    >>> rest = DeltaEntries([b"N14228"], [b"state"], [(5, b"N14228")])
    >>> handoff = BinHandoff(Manifest("per_plane", Bin(3), epoch=7, layers=()), rest)
    >>> BinHandoff.from_bytes(handoff.to_bytes()) == handoff
    True
    """

    manifest: Manifest
    """Its epoch is the time from which the new owner owns the bin."""
    remainder: DeltaEntries = NO_DELTA
    """The delta that the layers lack."""

    def to_bytes(self) -> bytes:
        """Encode the bin handoff for the wire."""
        return bytes(msgpack.packb((self.manifest.to_bytes(), *self.remainder)))

    @staticmethod
    def from_bytes(data: bytes) -> BinHandoff:
        """Decode `to_bytes`. Raises ValueError, TypeError or MeanderError for other bytes."""
        manifest, keys, states, timers = msgpack.unpackb(data)
        if len(keys) != len(states):
            raise ValueError(f"{len(keys)} keys have {len(states)} states")
        pairs = (
            None
            if timers is None
            else [(expect_int(time), expect_bytes(key)) for time, key in timers]
        )
        known = [None if state is None else expect_bytes(state) for state in states]
        remainder = DeltaEntries([*map(expect_bytes, keys)], known, pairs)
        return BinHandoff(Manifest.from_bytes(manifest), remainder)
