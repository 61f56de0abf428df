"""The prefetch: layers of a bin that its next owner fetches ahead of the move.

Guarantees that prefetched entries are no worker's state until the bin handoff arrives. A cancelled
move or an unreadable layer drops them; the worker reports the layer. Cost: that of an install,
spread over turns in which records continue.
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
"""Entries that a turn fetches per bin, in less than a millisecond."""


@dataclass(slots=True)
class PrefetchingBin:
    """A bin whose prefetch runs or has ended."""

    number: int
    """The number of the pre-copy."""
    manifest: Manifest
    loader: LayerLoader | None = None
    """None before the first slice."""
    done: bool = False
    steps: int = 0
    """Slices so far. Bins with the fewest come first."""


@dataclass(frozen=True, slots=True)
class PrefetchedBin:
    """A prefetched bin whose handoff has arrived."""

    layers: tuple[LayerId, ...]
    timers: Timers
    bytes: int
    keys: int


NOT_PREFETCHED = PrefetchedBin((), (), 0, 0)


class PrefetchedBins:
    """A set of prefetched bins of one operator on one worker."""

    def __init__(self, context: OperatorContext, store: Store) -> None:
        self._store, self._topic = store, context.topic
        self._throttle, self._report = context.throttle, context.report
        self._bins: dict[Bin, PrefetchingBin] = {}

    @property
    def bins(self) -> set[Bin]:
        """Return all prefetched bins, which other workers own."""
        return set(self._bins)

    @property
    def busy(self) -> bool:
        """Return whether a prefetch runs."""
        return any(not prefetching.done for prefetching in self._bins.values())

    def start(self, number: int, manifest: Manifest) -> None:
        """Start the prefetch of a bin with the layers of a manifest."""
        self.cancel(manifest.bin)
        self._bins[manifest.bin] = PrefetchingBin(number, manifest)

    def cancel(self, bin: Bin) -> None:
        """Cancel the prefetch of a bin."""
        prefetching = self._bins.pop(bin, None)
        if prefetching is not None and prefetching.loader is not None:
            prefetching.loader.cancel()
            self._store.drop(bin)

    def is_running(self, bin: Bin) -> bool:
        """Return whether the prefetch of a bin runs. Its handoff must wait for the end."""
        prefetching = self._bins.get(bin)
        return prefetching is not None and prefetching.loader is not None and not prefetching.done

    def pop(self, bin: Bin) -> PrefetchedBin:
        """Remove and return a bin whose handoff has arrived."""
        prefetching = self._bins.pop(bin, None)
        if prefetching is None or prefetching.loader is None:
            return NOT_PREFETCHED
        layers = tuple(layer.id for layer in prefetching.manifest.layers)
        loader = prefetching.loader
        return PrefetchedBin(layers, tuple(loader.timers), loader.bytes, loader.count)

    def step_bin(self, bin: Bin) -> bool:
        """Fetch entries of a bin whose handoff waits. Return whether the prefetch has ended."""
        return self._fetch(self._bins[bin])

    def step(self) -> bool:
        """Fetch entries of several bins. Return whether a prefetch has ended."""
        worked = False
        open = [prefetching for prefetching in self._bins.values() if not prefetching.done]
        for prefetching in sorted(open, key=lambda prefetching: prefetching.steps):
            started = prefetching.loader is not None
            if self._throttle.open and (started or self._throttle.precopy_memory.open):
                worked |= self._fetch(prefetching)
        return worked

    def _fetch(self, prefetching: PrefetchingBin) -> bool:
        """Fetch entries of a bin. Return whether its prefetch has ended."""
        manifest, prefetching.steps = prefetching.manifest, prefetching.steps + 1
        try:
            if prefetching.loader is None:
                prefetching.loader = self._throttle.precopy_memory.admit(
                    LayerLoader(self._store, manifest, self._topic)
                )
            with self._throttle.measure():
                prefetching.done = prefetching.loader.step(ENTRIES)
        except MeanderError as error:
            self.cancel(manifest.bin)
            self._report(bin_unreadable(manifest, error, number=prefetching.number))
            return True
        if prefetching.done:
            size = prefetching.loader.bytes
            self._report(BinPrefetched(prefetching.number, manifest.operator, manifest.bin, size))
        return prefetching.done


def bin_unreadable(
    manifest: Manifest, error: MeanderError, *, number: int | None = None, time: int | None = None
) -> BinUnreadableReport:
    """Return the report of unreadable layers, in a pre-copy or at the time of a move."""
    return BinUnreadableReport(manifest.operator, manifest.bin, number, time, str(error))
