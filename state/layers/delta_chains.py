"""Delta chains: the bundles that complete the layers of each bin, the earliest first.

A checkpoint puts the changes of a bin since its last bundle into a new bundle, and also names the
earlier ones. Invariant: the layers, the chain and the new keys of a bin together make up the bin.
So each new layer ends the chain. A checkpoint that is not complete at the next freeze also ends
it, because its bundles may be deleted. Cost: one reference per bin and bundle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.topic import RecordLocation


class Link(NamedTuple):
    """A bundle; in order of when it was written."""

    checkpoint: int
    sequence: int
    place: RecordLocation


class Little(NamedTuple):
    """What the layers of a bin lack: what lies in bundles, and the rest."""

    links: tuple[Link, ...]
    remainder: DeltaEntries


@dataclass(frozen=True, slots=True)
class Chain:
    """What the bundles of one bin take, and a hash of the timers that the last tells of."""

    size: int
    told: int
    links: tuple[Link, ...] = ()


class Chains:
    """Those of the bins of one operator on one worker.

    >>> from meander.state.keys.ids import ExecutionId
    >>> one, two = (CheckpointId(ExecutionId(7), number) for number in (1, 2))
    >>> chains, link = Chains(), Link(1, 0, RecordLocation(b"bundle", 0, 5, 99))
    >>> chains.begin(one); chains.add(Bin(3), 99, told=0); chains.place(one, [Bin(3)], link)
    >>> chains.of(Bin(3)), chains.open
    (None, [3])
    >>> chains.settle(one); chains.of(Bin(3)).links == (link,), chains.open
    (True, [])
    """

    def __init__(self) -> None:
        self._chains: dict[Bin, Chain] = {}
        self._open: dict[Bin, Chain] = {}
        """What they are once the checkpoint that is being taken exists."""
        self._at: CheckpointId | None = None

    def of(self, bin: Bin) -> Chain | None:
        """A bin's, where it has one."""
        return self._chains.get(bin)

    @property
    def open(self) -> list[Bin]:
        """The bins of which the last checkpoint has written a bundle, and is not known to exist."""
        return list(self._open)

    def begin(self, at: CheckpointId) -> None:
        """A checkpoint begins; none is open."""
        assert not self._open, "what is not known to exist counts for nothing"
        self._at = at

    def add(self, bin: Bin, size: int, told: int) -> None:
        """It has taken something for a bundle."""
        before = self._chains.get(bin, Chain(0, told))
        self._open[bin] = Chain(before.size + size, told, before.links)

    def place(self, at: CheckpointId, bins: Iterable[Bin], link: Link) -> None:
        """The bundle of some bins is durable; those whose chain has ended meanwhile have none."""
        for bin in bins if at == self._at else ():
            if (chain := self._open.get(bin)) is not None:
                self._open[bin] = replace(chain, links=(*chain.links, link))

    def settle(self, at: CheckpointId) -> None:
        """A checkpoint exists."""
        if at == self._at:
            self._chains.update(self._open)
            self._open.clear()

    def end(self, bin: Bin) -> None:
        """A bin is to have none."""
        self._chains.pop(bin, None)
        self._open.pop(bin, None)
