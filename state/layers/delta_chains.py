"""Delta chains: the bundles that complete the layers of each bin, the earliest first.

A checkpoint puts the changes of a bin since its last bundle into a new bundle, and also names the
earlier bundles. Invariant: the layers, the chain and the new keys of a bin together make up the
bin. So each new layer ends the chain. A checkpoint that is not complete at the next freeze also
ends it, because its bundles may be deleted. Cost: one reference per bin and bundle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.topic import RecordLocation


class Link(NamedTuple):
    """A link that names one bundle of a chain; links sort by the time of writing."""

    checkpoint: int
    sequence: int
    location: RecordLocation


class ChainedDelta(NamedTuple):
    """A delta of a frozen bin: the links to earlier bundles, and the remaining changes."""

    links: tuple[Link, ...]
    entries: DeltaEntries


@dataclass(frozen=True, slots=True)
class DeltaChain:
    """A chain that holds the links of one bin, their bytes, and a hash of the last bundle's
    timers."""

    size: int
    timers_hash: int
    links: tuple[Link, ...] = ()


class DeltaChains:
    """The delta chains that the bins of one operator have on one worker.

    >>> from meander.state.keys.ids import ExecutionId
    >>> one, two = (CheckpointId(ExecutionId(7), number) for number in (1, 2))
    >>> chains, link = DeltaChains(), Link(1, 0, RecordLocation(b"bundle", 0, 5, 99))
    >>> chains.start_checkpoint(one); chains.add(Bin(3), 99, timers_hash=0)
    >>> chains.record_bundle(one, [Bin(3)], link); chains.of(Bin(3)), chains.pending_bins
    (None, [3])
    >>> chains.complete_checkpoint(one); chains.of(Bin(3)).links == (link,), chains.pending_bins
    (True, [])
    """

    def __init__(self) -> None:
        self._chains: dict[Bin, DeltaChain] = {}
        self._pending: dict[Bin, DeltaChain] = {}
        """The chains as they become once the pending checkpoint is complete."""
        self._at: CheckpointId | None = None

    def of(self, bin: Bin) -> DeltaChain | None:
        """Return the chain of a bin, or None."""
        return self._chains.get(bin)

    @property
    def pending_bins(self) -> list[Bin]:
        """Return the bins whose newest bundle belongs to the pending checkpoint."""
        return list(self._pending)

    def start_checkpoint(self, at: CheckpointId) -> None:
        """Start a checkpoint. No other checkpoint may be pending."""
        assert not self._pending, "an earlier checkpoint is pending"
        self._at = at

    def add(self, bin: Bin, size: int, timers_hash: int) -> None:
        """Add a delta to the chain of a bin for the pending checkpoint."""
        before = self._chains.get(bin, DeltaChain(0, timers_hash))
        self._pending[bin] = DeltaChain(before.size + size, timers_hash, before.links)

    def record_bundle(self, at: CheckpointId, bins: Iterable[Bin], link: Link) -> None:
        """Record the durable bundle of some bins, except for bins whose chain has ended
        meanwhile."""
        for bin in bins if at == self._at else ():
            if (chain := self._pending.get(bin)) is not None:
                self._pending[bin] = replace(chain, links=(*chain.links, link))

    def complete_checkpoint(self, at: CheckpointId) -> None:
        """Complete a checkpoint: its chains become current."""
        if at == self._at:
            self._chains.update(self._pending)
            self._pending.clear()

    def end(self, bin: Bin) -> None:
        """End the chain of a bin."""
        self._chains.pop(bin, None)
        self._pending.pop(bin, None)
