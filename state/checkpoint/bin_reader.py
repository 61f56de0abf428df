"""Read the bins of one operator from a checkpoint, outside of a flow.

Guarantees the entries that a restart would install, or an error that names the layer. Bins come one
after the other. The layers of some bins are requested at once, as a sweep of the topic takes some
milliseconds. Memory: these bins, and the deltas of all wanted ones. Cost: one read of each layer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing

from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.delta_bundles import decode_deltas
from meander.state.keys.ids import Bin
from meander.state.layers.layer import DeltaEntries, merge_deltas, read_payloads
from meander.state.layers.layer_loader import AHEAD_BYTES, LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import RecordLocation, StateTopic
from meander.state.store.store import Store

BUDGET_ENTRIES = 1 << 16
"""The entries that one step installs."""
AT_ONCE_BYTES = 8 << 20
"""The most bytes of the layers that are requested at once, unless one bin has more."""


class BinReader:
    """A reader that loads the bins of one operator into a store, one by one."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        operator: str,
        store: Store,
        topic: StateTopic,
        in_flight: StateTopic,
        wait: Callable[[], None],
    ) -> None:
        """`store` is empty, and `wait` returns once an answer of a topic
        may have arrived."""
        self._checkpoint, self._operator, self._store = checkpoint, operator, store
        self._topic, self._in_flight, self._wait = topic, in_flight, wait

    def entries(self, bins: Collection[Bin] | None = None) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the keys and encoded states of each bin that has any, or of some `bins` alone.

        Raise MeanderError where a layer or a bundle cannot be read.
        """
        store, deltas = self._store, self._deltas(bins)
        for manifest in self._loaded(bins):
            bin = manifest.bin
            keys, states, _ = merge_deltas(deltas.pop(bin, ()))
            store.install(bin, keys, states)
            if entries := [*store.scan(bin)]:
                yield entries
            store.drop(bin)

    def _loaded(self, bins: Collection[Bin] | None) -> Iterator[Manifest]:
        """Yield the manifest of each wanted bin once the store has the layers of the bin."""
        left = deque(
            one
            for one in self._checkpoint.manifests
            if one.operator == self._operator and (bins is None or one.bin in bins)
        )
        loading, size = deque[tuple[Manifest, LayerLoader]](), 0
        while left or loading:
            while left and (not loading or size + bytes_of(left[0]) <= AT_ONCE_BYTES):
                manifest = left.popleft()
                loading.append((manifest, LayerLoader(self._store, manifest, self._topic)))
                size += bytes_of(manifest)
                # The first step requests the layers.
                loading[-1][1].step(BUDGET_ENTRIES)
            manifest, loader = loading.popleft()
            while not loader.step(BUDGET_ENTRIES):
                if loader.is_waiting:
                    self._wait()
            size -= bytes_of(manifest)
            yield manifest

    def _deltas(self, bins: Collection[Bin] | None) -> dict[Bin, Sequence[DeltaEntries]]:
        """Return the deltas that complete the layers of bins, the earliest first."""
        cut, operator = self._checkpoint.cut, self._operator
        bundles = [
            one
            for one in cut.bundles
            if one.operator == operator and (bins is None or not {*one.bins}.isdisjoint(bins))
        ]
        found = defaultdict[Bin, list[DeltaEntries]](list)
        payloads = self._payloads([one.location for one in bundles])
        for bundle, data in zip(bundles, payloads, strict=True):
            counted = {*bundle.bins}
            for name, bin, delta in decode_deltas(data):
                if name == operator and bin in counted:
                    found[bin].append(delta)
        # The delta of a bin in transit takes the place of those in bundles.
        return {**found, **{d.bin: [d.entries] for d in cut.deltas if d.operator == operator}}

    def _payloads(self, locations: Sequence[RecordLocation]) -> Iterator[bytes]:
        with closing(read_payloads(self._in_flight, locations, AHEAD_BYTES)) as payloads:
            for data in payloads:
                if data is None:
                    self._wait()
                else:
                    yield data


def bytes_of(manifest: Manifest) -> int:
    """Return the bytes of the layers of a bin."""
    return sum(layer.bytes for layer in manifest.layers)
