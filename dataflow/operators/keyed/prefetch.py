"""Bins that are to come: what of each lies on the state topic is fetched ahead of its move.

Guarantees that what is fetched is nobody's state until the bin has come: it is dropped when the bin
is spared, or when a layer cannot be read, which is reported and harms nothing. Cost: as for an
installation, spread over turns in which records go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.dataflow.control.reports import BinPrefetched, BinUnreadableReport
from meander.dataflow.operators.context import OperatorContext
from meander.schemas.errors import MeanderError
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, LayerId
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store

ENTRIES = 1024
"""Entries installed per bin and turn, less than a millisecond."""


@dataclass(slots=True)
class Staged:
    """One bin."""

    number: int
    """Of the preparation."""
    manifest: Manifest
    installation: LayerLoader | None = None
    """None while it waits for its turn."""
    done: bool = False
    steps: int = 0
    """Slices taken: those that have had fewest come first."""


@dataclass(frozen=True, slots=True)
class FetchedBin:
    """What has been fetched of a bin that has come."""

    layers: tuple[LayerId, ...]
    timers: Timers
    bytes: int
    keys: int


NOTHING = FetchedBin((), (), 0, 0)


class PrefetchedBins:
    """Those of one operator on one worker."""

    def __init__(self, context: OperatorContext, store: Store) -> None:
        self._store, self._topic = store, context.topic
        self._pace, self._report = context.throttle, context.report
        self._bins: dict[Bin, Staged] = {}

    @property
    def bins(self) -> set[Bin]:
        """All that are here and not this worker's."""
        return set(self._bins)

    @property
    def busy(self) -> bool:
        """Whether anything is being fetched."""
        return any(not staged.done for staged in self._bins.values())

    def begin(self, number: int, manifest: Manifest) -> None:
        """A bin is to come, of which these layers lie on the topic."""
        self.spare(manifest.bin)
        self._bins[manifest.bin] = Staged(number, manifest)

    def spare(self, bin: Bin) -> None:
        """It is not to come, after all."""
        staged = self._bins.pop(bin, None)
        if staged is not None and staged.installation is not None:
            staged.installation.cancel()
            self._store.drop(bin)

    def under_way(self, bin: Bin) -> bool:
        """Whether a bin is just being fetched: what comes of it later has to wait for that."""
        staged = self._bins.get(bin)
        return staged is not None and staged.installation is not None and not staged.done

    def claim(self, bin: Bin) -> FetchedBin:
        """A bin has come: what of it has been fetched."""
        staged = self._bins.pop(bin, None)
        if staged is None or staged.installation is None:
            return NOTHING
        layers = tuple(layer.id for layer in staged.manifest.layers)
        ahead = staged.installation
        return FetchedBin(layers, tuple(ahead.timers), ahead.bytes, ahead.count)

    def push(self, bin: Bin) -> bool:
        """Fetch a little of a bin that is waited for; whether anything of it came."""
        return self._fetch(self._bins[bin])

    def step(self) -> bool:
        """Fetch a little; whether anything has been done."""
        worked = False
        open = [staged for staged in self._bins.values() if not staged.done]
        for staged in sorted(open, key=lambda staged: staged.steps):
            begun = staged.installation is not None
            if self._pace.open and (begun or self._pace.ahead.open):
                worked |= self._fetch(staged)
        return worked

    def _fetch(self, staged: Staged) -> bool:
        """Fetch a little of a bin; whether anything of it came."""
        manifest, staged.steps = staged.manifest, staged.steps + 1
        try:
            if staged.installation is None:
                staged.installation = self._pace.ahead.admit(
                    LayerLoader(self._store, manifest, self._topic)
                )
            with self._pace.spending():
                staged.done = staged.installation.step(ENTRIES)
        except MeanderError as error:
            self.spare(manifest.bin)
            self._report(bin_unreadable(manifest, error, number=staged.number))
            return True
        if staged.done:
            size = staged.installation.bytes
            self._report(BinPrefetched(staged.number, manifest.operator, manifest.bin, size))
        return staged.done


def bin_unreadable(
    manifest: Manifest, error: MeanderError, *, number: int | None = None, time: int | None = None
) -> BinUnreadableReport:
    """The report that a bin's layers cannot be read, in a pre-copy or at the time of its move."""
    return BinUnreadableReport(manifest.operator, manifest.bin, number, time, str(error))
