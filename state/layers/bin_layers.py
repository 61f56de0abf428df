"""Bin layers: the layers of the bins that this worker owns, for one operator.

Guarantees that a named layer stays on the topic until the bin is released and its next owner has
merged it. A pinned bin keeps all its layers. A tombstone deletes a layer only after a durable layer
has replaced it. Invariant: after all due compactions a bin without a pin has few layers, which take
little more space than its state (`compaction.py`). A compaction merges deltas as they lie on the
topic, and writes a base again from the store. Cost: proportional to the changed entries, and log n
merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId, LayerId
from meander.state.layers.chunk import Head
from meander.state.layers.compaction import similar, worn
from meander.state.layers.delta_chains import Chains, Link, Little
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.layer_input import Changed, Merged, Whole
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Description, Kind, LayerPointer, Manifest
from meander.state.layers.retention import Retention
from meander.state.layers.topic import LayerUnreadable, StateTopic
from meander.state.store.store import Store
from meander.state.times.time import MIN_TIME, Time

SLICE: Final = 64
"""Keys of a delta whose states are read at once, as the delta may prove too large."""
Layers = tuple[LayerPointer, ...]
_NO_TIMERS: Final = hash(())


class BinLayers:
    """The live layers that each bin of one operator has on one worker."""

    def __init__(
        self,
        operator: str,
        store: Store,
        topic: StateTopic,
        next_layer: Callable[[], LayerId],
        retention: Retention | None = None,
    ) -> None:
        self._operator, self._store, self._topic = operator, store, topic
        self._next_layer = next_layer
        self._retention = retention or Retention(topic.forget)
        self._layers: dict[Bin, Layers] = {}
        self._manifests: dict[Bin, Manifest] = {}
        """The newest manifest of each bin for a checkpoint, with its bytes."""
        self._told: dict[Bin, int | None] = {}
        """The hash of the timers in the newest layer of each bin; None where it is unknown."""
        self._writing: dict[Bin, tuple[LayerWriter, Sequence[bytes]]] = {}
        """The writer of each bin, and the changed keys that it took."""
        self._refused: dict[Bin, Layers] = {}
        """The layers of each bin to delete once another layer replaces them."""
        self._condemned = set[LayerId]()
        """The layers that have proved unreadable."""
        self._frozen: dict[Bin, tuple[Sequence[bytes], Timers, int]] = {}
        """The frozen bins of a checkpoint: the changed keys, the timers, and the time."""
        self._chains = Chains()
        self._pins: Counter[Bin] = Counter()
        self._due: dict[Bin, None] = {}
        """The bins that may need a compaction, the longest due first."""
        self._merging: tuple[Bin, LayerWriter] | None = None

    @property
    def bins(self) -> list[Bin]:
        """Return the bins that have layers on the topic."""
        return list(self._layers)

    def layers(self, bin: Bin) -> Layers:
        """Return the layers of a bin on the topic, in the order of installation."""
        return self._layers.get(bin, ())

    def manifest(self, bin: Bin) -> Manifest:
        """Return the manifest of a bin for a checkpoint; the same one while no layer changes."""
        layers, known = self.layers(bin), self._manifests.get(bin)
        if known is None or known.layers is not layers:
            known = self._manifests[bin] = Manifest(self._operator, bin, 0, layers)
        return known

    def size(self, bin: Bin) -> int:
        """Return the bytes of a bin's layers."""
        return sum(layer.bytes for layer in self.layers(bin))

    def write(self, bin: Bin, upper: int, timers: Timers, *, renew: bool = False) -> LayerWriter:
        """Write the changes of a bin since its last layer as a further layer, or the whole bin
        where it has none. `timers` are all timers of the bin. With `renew`, a base replaces the
        layers where the deltas are too large beside their base.

        The manifest names all layers of the bin. A bin without changes gets no further layer. The
        call cancels a running write of the bin.
        """
        assert bin not in self._frozen, "a frozen bin is written as it was first"
        self.cancel(bin)
        self._chains.end(bin)
        if not self.layers(bin):
            self._store.forget_changes(bin)
            return self._write_base(bin, upper, timers, ())
        return self._write(bin, upper, timers, self._store.take_changes(bin), renew)

    def freeze(
        self, at: CheckpointId, bins: Sequence[Bin], timers: Mapping[Bin, Timers], upper: int
    ) -> None:
        """Freeze bins with their timers for a checkpoint, at about a time.

        The call cancels all running writes. No other write of these bins may precede the
        checkpoint's.
        """
        for bin in [*self._writing]:
            self.cancel(bin)
        assert not self._frozen, "one checkpoint after the other"
        self._unchain(self._chains.open)
        self._chains.begin(at)
        changed = self._store.freeze(bins)
        self._frozen = {bin: (changed.get(bin, ()), timers.get(bin, ()), upper) for bin in bins}

    def thaw(self) -> None:
        """Release all frozen bins, as the checkpoint has been cancelled."""
        for bin, (keys, _, _) in [*self._frozen.items()]:
            self.cancel(bin)
            self._store.give_back(bin, keys)
            self._store.mark(bin)
            self._thaw(bin)

    @property
    def frozen(self) -> Collection[Bin]:
        """Return the frozen bins that have not been written yet."""
        return self._frozen.keys()

    def write_frozen(self, bin: Bin) -> LayerWriter | None:
        """Write a frozen bin as `write` does. Return None where its layers hold that state
        already."""
        self._thread(bin)
        keys, timers, upper = self._frozen[bin]
        if not self.layers(bin):
            return self._write_base(bin, upper, timers, keys)
        if not keys and hash(tuple(timers)) == self._told.get(bin):
            self._thaw(bin)
            return None
        return self._write(bin, upper, timers, keys, renew=True)

    def little_frozen(self, bin: Bin, most_bytes: int, *, anew: bool) -> Little | None:
        """Return the delta of a frozen bin where it takes at most about `most_bytes`, else None for
        `write_frozen`. Its keys still count as changed for the next layer. Earlier bundles hold the
        other changes; with `anew` the delta repeats them where it has new ones."""
        if anew and self._frozen[bin][0]:
            self._thread(bin)
        keys, timers, _ = self._frozen[bin]
        chain, layers = self._chains.of(bin), self.layers(bin)
        before, links = (0, ()) if chain is None else (chain.size, chain.links)
        known = sum(layer.count for layer in layers)
        if not known or before * known + len(keys) * self.size(bin) > most_bytes * known:
            return None
        hashed, layered = hash(tuple(timers)), self._told.get(bin)
        told = hashed == (layered if chain is None else chain.told)
        keys = sorted(keys)
        states = self._store.take_states(bin, keys)
        size = sum(map(len, keys)) + sum(map(len, states))
        size += 0 if told else sum(len(key) for _, key in timers)
        if before + size > most_bytes:
            return None
        if keys or not told:
            self._store.put_aside(bin, keys)
            self._chains.add(bin, size, hashed)
        if hashed != layered:
            self._store.mark(bin)
        self._thaw(bin)
        return Little(links, DeltaEntries(keys, states, None if told else timers))

    def bundled(self, at: CheckpointId, bins: Sequence[Bin], link: Link) -> None:
        """Record the durable bundle that holds the deltas of some bins for a checkpoint."""
        self._chains.place(at, bins, link)

    def settle(self, at: CheckpointId) -> None:
        """Complete a checkpoint: the next one names its bundles."""
        self._chains.settle(at)

    def _thread(self, bin: Bin) -> None:
        """End the delta chain of a frozen bin; its changes then include those in bundles."""
        if self._chains.of(bin) is not None:
            self._chains.end(bin)
            keys, timers, upper = self._frozen[bin]
            aside = self._store.take_aside(bin)
            self._frozen[bin] = list(aside.union(keys)), timers, upper

    def _unchain(self, bins: Iterable[Bin]) -> None:
        """End the delta chains of some bins; their changes in bundles count as new."""
        for bin in bins:
            self._chains.end(bin)
            self._store.renew_changes(bin)

    def _thaw(self, bin: Bin) -> None:
        del self._frozen[bin]
        self._store.thaw(bin)

    def _write(
        self, bin: Bin, upper: int, timers: Timers, keys: Sequence[bytes], renew: bool
    ) -> LayerWriter:
        layers = self.layers(bin)
        if renew and worn(layers) and bin not in self._pins:
            return self._write_base(bin, upper, timers, keys)
        told = hash(tuple(timers))
        unchanged = not keys and told == self._told.get(bin)
        contents = Changed(self._store, bin, keys, () if unchanged else timers)
        # A bin may arrive with times later than any that this worker knows.
        lower = layers[-1].description.upper
        head = self._head(bin, "delta", lower, max(lower, upper))
        extraction = LayerWriter(head, contents, self._topic, partial(self._stands, bin, told))
        self._writing[bin] = extraction, keys
        return extraction

    def lacks_little(self, bin: Bin, most_bytes: int) -> bool:
        """Return whether the changes of a bin since its last layer take at most about
        `most_bytes`."""
        layers, changed = self.layers(bin), self._store.count_changed(bin)
        keys = sum(layer.count for layer in layers)
        if changed is None or not keys or bin in self._writing:
            return False
        return changed * self.size(bin) <= most_bytes * keys

    def remainder(self, bin: Bin, timers: Timers, most_bytes: int) -> DeltaEntries | None:
        """Take the delta of a bin since its last layer, so that its keys no longer count as
        changed. Return None, and take nothing, where it exceeds `most_bytes` or the bin has no
        layer.

        The call cancels a running write of the bin.
        """
        self.cancel(bin)
        if not self.layers(bin):
            return None
        self._chains.end(bin)
        told = hash(tuple(timers)) == self._told.get(bin)
        keys, states = self._store.take_changes(bin), list[bytes]()
        size = sum(map(len, keys)) + (0 if told else sum(len(key) for _, key in timers))
        if size <= most_bytes:
            keys.sort()
        for first in range(0, len(keys), SLICE):
            if size > most_bytes:
                break
            states += self._store.take_states(bin, keys[first : first + SLICE])
            size += sum(map(len, states[first:]))
        if size > most_bytes:
            self._store.give_back(bin, keys)
            return None
        return DeltaEntries(keys, states, None if told else timers)

    def again(self, bin: Bin, upper: int, timers: Timers) -> LayerWriter:
        """Write the whole retained state of a released bin again, as its next owner could not read
        its layers."""
        return self._base(bin, upper, timers, lambda layer: (layer,))

    def cancel(self, bin: Bin) -> None:
        """Cancel a running write of a bin; the next write takes its changes."""
        if bin in self._writing:
            extraction, keys = self._writing.pop(bin)
            extraction.cancel()
            if bin not in self._frozen:
                self._store.give_back(bin, keys)
                self._store.mark(bin)

    def adopt(self, manifest: Manifest) -> None:
        """Adopt the layers from which this worker has installed a bin."""
        self._layers[manifest.bin] = manifest.layers
        self._told[manifest.bin] = None
        self._due[manifest.bin] = None

    def rewrite(self, bin: Bin) -> None:
        """Replace all layers of a bin by a base at the next write. The bin counts as changed until
        then."""
        self.cancel(bin)
        self._unchain([bin])
        self._cancel_merging(bin)
        self._store.mark(bin)
        self.condemn(self.layers(bin))
        self._refuse(bin)

    def condemn(self, layers: Layers) -> None:
        """Mark layers as unreadable, so no later checkpoint names them."""
        self._condemned.update(layer.id for layer in layers)

    def condemned(self, manifest: Manifest) -> bool:
        """Return whether a manifest names an unreadable layer."""
        return any(layer.id in self._condemned for layer in manifest.layers)

    def release(self, bin: Bin) -> None:
        """Release a bin and its layers to its new owner."""
        if bin in self._writing:
            self._writing.pop(bin)[0].cancel()
        self._chains.end(bin)
        self._cancel_merging(bin)
        self._forget(self._refused.pop(bin, ()))
        for layer in self.layers(bin):
            self._retention.left(layer.id)
        for known in (self._layers, self._manifests, self._told, self._pins, self._due):
            known.pop(bin, None)

    def pin(self, bin: Bin) -> None:
        """Pin the layers of a bin for a reader: compaction neither merges nor deletes them."""
        self._pins[bin] += 1
        self._cancel_merging(bin)

    def unpin(self, bin: Bin) -> None:
        """Release a pin on a bin."""
        self._pins[bin] -= 1
        if not self._pins[bin]:
            del self._pins[bin]
            self._settle(bin)

    @property
    def merges(self) -> bool:
        """Return whether a compaction runs or may be due."""
        return self._merging is not None or bool(self._due)

    def tend(self, budget_entries: int) -> bool:
        """Compact for at most `budget_entries` entries; return whether any work was done.

        Raise LayerUnreadable where a layer cannot be read. Its bin then counts as changed, and the
        next write makes a base of its state.
        """
        if self._merging is None:
            self._begin_merging()
        if self._merging is None:
            return False
        bin, merging = self._merging
        try:
            merging.step(budget_entries)
        except LayerUnreadable:
            self.rewrite(bin)
            raise
        return True

    # -- writing

    def _write_base(
        self, bin: Bin, upper: int, timers: Timers, keys: Sequence[bytes]
    ) -> LayerWriter:
        extraction = self._base(
            bin, upper, timers, partial(self._stands_alone, bin, hash(tuple(timers)))
        )
        self._writing[bin] = extraction, keys
        return extraction

    def _base(
        self, bin: Bin, upper: int, timers: Timers, stands: Callable[[LayerPointer], Layers]
    ) -> LayerWriter:
        head = self._head(bin, "base", MIN_TIME, upper)
        contents = Whole(self._store, bin, timers)
        return LayerWriter(head, contents, self._topic, stands, partial(self._store.table, bin))

    def _head(self, bin: Bin, kind: Kind, lower: Time, upper: Time) -> Head:
        description = Description(lower, upper, since=upper)
        codec = self._store.codec.name
        layer = self._next_layer()
        return Head(self._operator, bin, layer, kind, codec, description)

    def _stands_alone(self, bin: Bin, told: int, layer: LayerPointer) -> Layers:
        """Return the layers of a bin after its base is durable: the base alone."""
        self._cancel_merging(bin)
        self._refuse(bin)
        self._told.pop(bin, None)
        return self._stands(bin, told, layer)

    def _refuse(self, bin: Bin) -> None:
        """Delete the layers of a bin once another layer is durable."""
        self._refused[bin] = (*self._refused.get(bin, ()), *self._layers.pop(bin, ()))

    def _stands(self, bin: Bin, told: int, layer: LayerPointer) -> Layers:
        """Return the layers of a bin after a further layer is durable."""
        del self._writing[bin]
        if bin in self._frozen:
            self._thaw(bin)
        if layer.chunks or told != self._told.get(bin, _NO_TIMERS):
            self._layers[bin] = (*self.layers(bin), layer)
            self._told[bin] = told
            self._retention.written(layer.id)
        self._settle(bin)
        return self.layers(bin)

    # -- merging

    def _settle(self, bin: Bin) -> None:
        """Queue a bin for compaction, unless it is pinned, and delete layers that another has
        replaced."""
        if bin in self._pins:
            return
        self._due[bin] = None
        if self.layers(bin):
            self._forget(self._refused.pop(bin, ()))

    def _begin_merging(self) -> None:
        for bin in [bin for bin in self._due if bin not in self._pins]:
            del self._due[bin]
            layers = similar(self.layers(bin)[1:])
            if layers:
                self._merge(bin, layers)
                return

    def _merge(self, bin: Bin, layers: Layers) -> None:
        first, last = layers[0].description, layers[-1].description
        head = self._head(bin, "delta", first.lower, last.upper)
        merged = Merged(self._topic, self._operator, bin, layers)
        stands = partial(self._replace, bin, layers)
        self._merging = bin, LayerWriter(head, merged, self._topic, stands)

    def _replace(self, bin: Bin, old: Layers, new: LayerPointer) -> Layers:
        """Return the layers of a bin after a durable layer has replaced some."""
        self._merging = None
        layers = self.layers(bin)
        first = layers.index(old[0])
        self._retention.written(new.id)
        self._layers[bin] = (*layers[:first], new, *layers[first + len(old) :])
        self._due[bin] = None
        self._forget(old)
        return self.layers(bin)

    def _cancel_merging(self, bin: Bin) -> None:
        if self._merging is not None and self._merging[0] == bin:
            self._merging[1].cancel()
            self._merging = None
            self._due[bin] = None

    def _forget(self, layers: Layers) -> None:
        """Send tombstones for layers that no checkpoint needs any more."""
        for layer in layers:
            self._retention.replaced(layer.id, layer.chunks)
