"""The prefetch: layers of a bin that its next owner fetches ahead of the move.

Guarantees that prefetched entries are no worker's state until the bin handoff arrives. They are
dropped where the move is cancelled. They are also dropped where a layer is unreadable, which is
reported and does no harm. Cost: that of an install, spread over turns in which records go on.
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
"""Entries that are fetched per bin and turn, in less than a millisecond."""


@dataclass(slots=True)
class Staged:
    """A bin that is being prefetched."""

    number: int
    """The number of the pre-copy."""
    manifest: Manifest
    installation: LayerLoader | None = None
    """The layer loader. None before the first slice."""
    done: bool = False
    steps: int = 0
    """Slices so far. Bins with the fewest come first."""


@dataclass(frozen=True, slots=True)
class FetchedBin:
    """A prefetched bin that has received its bin handoff."""

    layers: tuple[LayerId, ...]
    timers: Timers
    bytes: int
    keys: int


NOTHING = FetchedBin((), (), 0, 0)


class PrefetchedBins:
    """A set of prefetched bins that one operator on one worker holds."""

    def __init__(self, context: OperatorContext, store: Store) -> None:
        self._store, self._topic = store, context.topic
        self._pace, self._report = context.throttle, context.report
        self._bins: dict[Bin, Staged] = {}

    @property
    def bins(self) -> set[Bin]:
        """Return all prefetched bins, which other workers own."""
        return set(self._bins)

    @property
    def busy(self) -> bool:
        """Return whether a prefetch runs."""
        return any(not staged.done for staged in self._bins.values())

    def begin(self, number: int, manifest: Manifest) -> None:
        """Start the prefetch of a bin with the layers of a manifest."""
        self.spare(manifest.bin)
        self._bins[manifest.bin] = Staged(number, manifest)

    def spare(self, bin: Bin) -> None:
        """Cancel the prefetch of a bin."""
        staged = self._bins.pop(bin, None)
        if staged is not None and staged.installation is not None:
            staged.installation.cancel()
            self._store.drop(bin)

    def under_way(self, bin: Bin) -> bool:
        """Return whether the prefetch of a bin runs. Its bin handoff must wait for the end."""
        staged = self._bins.get(bin)
        return staged is not None and staged.installation is not None and not staged.done

    def claim(self, bin: Bin) -> FetchedBin:
        """Remove a bin whose handoff has arrived, and return its prefetched layers."""
        staged = self._bins.pop(bin, None)
        if staged is None or staged.installation is None:
            return NOTHING
        layers = tuple(layer.id for layer in staged.manifest.layers)
        ahead = staged.installation
        return FetchedBin(layers, tuple(ahead.timers), ahead.bytes, ahead.count)

    def push(self, bin: Bin) -> bool:
        """Fetch entries of a bin with a waiting handoff, and return whether its prefetch has
        ended."""
        return self._fetch(self._bins[bin])

    def step(self) -> bool:
        """Fetch some entries, and return whether a prefetch has ended."""
        worked = False
        open = [staged for staged in self._bins.values() if not staged.done]
        for staged in sorted(open, key=lambda staged: staged.steps):
            begun = staged.installation is not None
            if self._pace.open and (begun or self._pace.ahead.open):
                worked |= self._fetch(staged)
        return worked

    def _fetch(self, staged: Staged) -> bool:
        """Fetch some entries of a bin, and return whether its prefetch has ended."""
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
    """Return the report of unreadable layers, in a pre-copy or at the time of a move."""
    return BinUnreadableReport(manifest.operator, manifest.bin, number, time, str(error))
