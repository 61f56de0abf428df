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

from meander.state.encoding.cells import EncodedState, bytes_of
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId, LayerId
from meander.state.layers.chunk import Head
from meander.state.layers.compaction import RATIO, layers_to_merge, needs_base
from meander.state.layers.delta_chains import ChainedDelta, DeltaChains, Link
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.layer_input import ChangedInput, MergedLayersInput, WholeBinInput
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Description, Kind, LayerPointer, Manifest
from meander.state.layers.retention import Retention
from meander.state.layers.topic import LayerUnreadableError, StateTopic
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
        self._retention = retention or Retention(topic.delete)
        self.bytes = 0
        """The bytes of all layers."""
        self._manifests: dict[Bin, Manifest] = {}
        """The manifest of each bin that has layers."""
        self._timer_hashes: dict[Bin, int | None] = {}
        """The hash of the timers in the newest layer of each bin; None where it is unknown."""
        self._writing: dict[Bin, tuple[LayerWriter, Sequence[bytes]]] = {}
        """The writer of each bin, and the changed keys that it took."""
        self._superseded: dict[Bin, Layers] = {}
        """The layers of each bin to delete once another layer replaces them."""
        self._unreadable = set[LayerId]()
        """The layers that have proved unreadable."""
        self._frozen: dict[Bin, tuple[Sequence[bytes], Timers, int]] = {}
        """The frozen bins of a checkpoint: the changed keys, the timers, and the time."""
        self._chains = DeltaChains()
        self._pins: Counter[Bin] = Counter()
        self._due: dict[Bin, None] = {}
        """The bins that may need a compaction, the longest due first."""
        self._merging: tuple[Bin, LayerWriter] | None = None

    @property
    def bins(self) -> list[Bin]:
        """Return the bins that have layers on the topic."""
        return list(self._manifests)

    def layers(self, bin: Bin) -> Layers:
        """Return the layers of a bin on the topic, in the order of installation."""
        known = self._manifests.get(bin)
        return () if known is None else known.layers

    def manifest(self, bin: Bin) -> Manifest:
        """Return the manifest of a bin for a checkpoint; the same one while no layer changes."""
        return self._manifests.get(bin) or Manifest(self._operator, bin, 0, ())

    def size(self, bin: Bin) -> int:
        """Return the bytes of a bin's layers."""
        return sum(layer.bytes for layer in self.layers(bin))

    def write(self, bin: Bin, upper: int, timers: Timers, *, rebase: bool = False) -> LayerWriter:
        """Write the changes of a bin since its last layer as a further layer, or the whole bin
        where it has none. `timers` are all timers of the bin. With `rebase`, a base replaces the
        layers where the deltas are too large beside their base, or most of its keys are forgotten.

        The manifest names all layers of the bin. A bin without changes gets no further layer. The
        call cancels a running write of the bin.
        """
        assert bin not in self._frozen, "a frozen bin is written by `write_frozen`"
        self.cancel(bin)
        self._chains.end(bin)
        if not self.layers(bin):
            self._store.drop_changes(bin)
            return self._write_base(bin, upper, timers, ())
        return self._write(bin, upper, timers, self._store.pop_changes(bin), rebase)

    def freeze(
        self, at: CheckpointId, bins: Sequence[Bin], timers: Mapping[Bin, Timers], upper: int
    ) -> None:
        """Freeze bins with their timers for a checkpoint, at about a time.

        The call cancels all running writes. No other write of these bins may precede the
        checkpoint's.
        """
        for bin in [*self._writing]:
            self.cancel(bin)
        assert not self._frozen, "an earlier checkpoint still has frozen bins"
        self._end_chains(self._chains.pending_bins)
        self._chains.start_checkpoint(at)
        changed = self._store.freeze(bins)
        self._frozen = {bin: (changed.get(bin, ()), timers.get(bin, ()), upper) for bin in bins}

    def thaw(self) -> None:
        """Release all frozen bins, as the checkpoint has been cancelled."""
        for bin, (keys, _, _) in [*self._frozen.items()]:
            self.cancel(bin)
            self._store.restore_changes(bin, keys)
            self._store.mark_changed(bin)
            self._thaw(bin)

    @property
    def frozen(self) -> Collection[Bin]:
        """Return the frozen bins that have not been written yet."""
        return self._frozen.keys()

    def write_frozen(self, bin: Bin) -> LayerWriter | None:
        """Write a frozen bin as `write` does. Return None where its layers hold that state
        already."""
        self._end_chain(bin)
        keys, timers, upper = self._frozen[bin]
        if not self.layers(bin):
            return self._write_base(bin, upper, timers, keys)
        if not keys and hash(tuple(timers)) == self._timer_hashes.get(bin):
            self._thaw(bin)
            return None
        return self._write(bin, upper, timers, keys, rebase=True)

    def frozen_delta(self, bin: Bin, most_bytes: int, *, cumulative: bool) -> ChainedDelta | None:
        """Return the delta of a frozen bin where it takes at most about `most_bytes`, else None for
        `write_frozen`. Its keys still count as changed for the next layer. Earlier bundles hold
        earlier changes; with `cumulative` a delta with new changes repeats them."""
        if cumulative and self._frozen[bin][0]:
            self._end_chain(bin)
        keys, timers, _ = self._frozen[bin]
        chain, layers = self._chains.of(bin), self.layers(bin)
        before, links = (0, ()) if chain is None else (chain.size, chain.links)
        known = sum(layer.count for layer in layers)
        if not known or before * known + len(keys) * self.size(bin) > most_bytes * known:
            return None
        timers_hash, layer_hash = hash(tuple(timers)), self._timer_hashes.get(bin)
        same_timers = timers_hash == (layer_hash if chain is None else chain.timers_hash)
        keys = sorted(keys)
        states = self._store.collect_states(bin, keys)
        size = sum(map(len, keys)) + bytes_of(states)
        size += 0 if same_timers else sum(len(key) for _, key in timers)
        if before + size > most_bytes:
            return None
        if keys or not same_timers:
            self._store.mark_bundled(bin, keys)
            self._chains.add(bin, size, timers_hash)
        if timers_hash != layer_hash:
            self._store.mark_changed(bin)
        self._thaw(bin)
        return ChainedDelta(links, DeltaEntries(keys, states, None if same_timers else timers))

    def record_bundle(self, at: CheckpointId, bins: Sequence[Bin], link: Link) -> None:
        """Record the durable bundle that holds the deltas of some bins for a checkpoint."""
        self._chains.record_bundle(at, bins, link)

    def complete_checkpoint(self, at: CheckpointId) -> None:
        """Complete a checkpoint: the next one names its bundles."""
        self._chains.complete_checkpoint(at)

    def _end_chain(self, bin: Bin) -> None:
        """End the delta chain of a frozen bin; its changes then include bundled changes."""
        if self._chains.of(bin) is not None:
            self._chains.end(bin)
            keys, timers, upper = self._frozen[bin]
            bundled = self._store.pop_bundled(bin)
            self._frozen[bin] = list(bundled.union(keys)), timers, upper

    def _end_chains(self, bins: Iterable[Bin]) -> None:
        """End the delta chains of some bins; their changes in bundles count as new."""
        for bin in bins:
            self._chains.end(bin)
            self._store.unbundle(bin)

    def _thaw(self, bin: Bin) -> None:
        del self._frozen[bin]
        self._store.thaw(bin)

    def _write(
        self, bin: Bin, upper: int, timers: Timers, keys: Sequence[bytes], rebase: bool
    ) -> LayerWriter:
        layers = self.layers(bin)
        is_sparse = self._store.count_known(bin) * RATIO < layers[0].count
        if rebase and (is_sparse or needs_base(layers)) and bin not in self._pins:
            return self._write_base(bin, upper, timers, keys)
        timers_hash = hash(tuple(timers))
        unchanged = not keys and timers_hash == self._timer_hashes.get(bin)
        input = ChangedInput(self._store, bin, keys, () if unchanged else timers)
        # A bin may arrive with times later than any that this worker knows.
        lower = layers[-1].description.upper
        head = self._head(bin, "delta", lower, max(lower, upper))
        writer = LayerWriter(head, input, self._topic, partial(self._append, bin, timers_hash))
        self._writing[bin] = writer, keys
        return writer

    def has_small_delta(self, bin: Bin, most_bytes: int) -> bool:
        """Return whether the changes of a bin since its last layer take at most about
        `most_bytes`."""
        layers, changed = self.layers(bin), self._store.count_changed(bin)
        keys = sum(layer.count for layer in layers)
        if changed is None or not keys or bin in self._writing:
            return False
        return changed * self.size(bin) <= most_bytes * keys

    def pop_delta(self, bin: Bin, timers: Timers, most_bytes: int) -> DeltaEntries | None:
        """Remove and return the delta of a bin since its last layer; its keys no longer count as
        changed. Return None, and change nothing, where it exceeds `most_bytes` or the bin has no
        layer.

        The call cancels a running write of the bin.
        """
        self.cancel(bin)
        if not self.layers(bin):
            return None
        self._chains.end(bin)
        same_timers = hash(tuple(timers)) == self._timer_hashes.get(bin)
        keys, states = self._store.pop_changes(bin), list[EncodedState]()
        size = sum(map(len, keys)) + (0 if same_timers else sum(len(key) for _, key in timers))
        if size <= most_bytes:
            keys.sort()
        for first in range(0, len(keys), SLICE):
            if size > most_bytes:
                break
            states += self._store.collect_states(bin, keys[first : first + SLICE])
            size += bytes_of(states[first:])
        if size > most_bytes:
            self._store.restore_changes(bin, keys)
            return None
        return DeltaEntries(keys, states, None if same_timers else timers)

    def rewrite_retained(self, bin: Bin, upper: int, timers: Timers) -> LayerWriter:
        """Write the whole retained state of a released bin again, as its next owner could not read
        its layers."""
        return self._base(bin, upper, timers, lambda layer: (layer,))

    def cancel(self, bin: Bin) -> None:
        """Cancel a running write of a bin; the next write includes its changes."""
        if bin in self._writing:
            writer, keys = self._writing.pop(bin)
            writer.cancel()
            if bin not in self._frozen:
                self._store.restore_changes(bin, keys)
                self._store.mark_changed(bin)

    def adopt(self, manifest: Manifest) -> None:
        """Adopt the layers from which this worker has installed a bin."""
        self._set_layers(manifest.bin, manifest.layers)
        self._timer_hashes[manifest.bin] = None
        self._due[manifest.bin] = None

    def schedule_rewrite(self, bin: Bin) -> None:
        """Replace all layers of a bin by a base at the next write. The bin counts as changed until
        then."""
        self.cancel(bin)
        self._end_chains([bin])
        self._cancel_merge(bin)
        self._store.mark_changed(bin)
        self.mark_unreadable(self.layers(bin))
        self._supersede(bin)

    def mark_unreadable(self, layers: Layers) -> None:
        """Mark layers as unreadable, so no later checkpoint names them."""
        self._unreadable.update(layer.id for layer in layers)

    def is_unreadable(self, manifest: Manifest) -> bool:
        """Return whether a manifest names an unreadable layer."""
        return any(layer.id in self._unreadable for layer in manifest.layers)

    def release(self, bin: Bin) -> None:
        """Release a bin and its layers to its new owner."""
        if bin in self._writing:
            self._writing.pop(bin)[0].cancel()
        self._chains.end(bin)
        self._cancel_merge(bin)
        self._delete(self._superseded.pop(bin, ()))
        for layer in self.layers(bin):
            self._retention.release(layer.id)
        self._drop_manifest(bin)
        for known in (self._timer_hashes, self._pins, self._due):
            known.pop(bin, None)

    def pin(self, bin: Bin) -> None:
        """Pin the layers of a bin for a reader: compaction neither merges nor deletes them."""
        self._pins[bin] += 1
        self._cancel_merge(bin)

    def unpin(self, bin: Bin) -> None:
        """Release a pin on a bin."""
        self._pins[bin] -= 1
        if not self._pins[bin]:
            del self._pins[bin]
            self._queue_compaction(bin)

    @property
    def needs_compaction(self) -> bool:
        """Return whether a compaction runs or may be due."""
        return self._merging is not None or bool(self._due)

    def compact(self, budget_entries: int) -> bool:
        """Compact for at most `budget_entries` entries; return whether any work was done.

        Raise LayerUnreadable where a layer cannot be read. Its bin then counts as changed, and the
        next write makes a base of its state.
        """
        if self._merging is None:
            self._start_merge()
        if self._merging is None:
            return False
        bin, merging = self._merging
        try:
            merging.step(budget_entries)
        except LayerUnreadableError:
            self.schedule_rewrite(bin)
            raise
        return True

    # -- writing

    def _write_base(
        self, bin: Bin, upper: int, timers: Timers, keys: Sequence[bytes]
    ) -> LayerWriter:
        writer = self._base(
            bin, upper, timers, partial(self._replace_all, bin, hash(tuple(timers)))
        )
        self._writing[bin] = writer, keys
        return writer

    def _base(
        self, bin: Bin, upper: int, timers: Timers, on_durable: Callable[[LayerPointer], Layers]
    ) -> LayerWriter:
        head = self._head(bin, "base", MIN_TIME, upper)
        input, table = (
            WholeBinInput(self._store, bin, timers),
            partial(self._store.table_writer, bin),
        )
        return LayerWriter(head, input, self._topic, on_durable, table)

    def _head(self, bin: Bin, kind: Kind, lower: Time, upper: Time) -> Head:
        description = Description(lower, upper, since=upper)
        codec = self._store.codec_name
        layer = self._next_layer()
        return Head(self._operator, bin, layer, kind, codec, description)

    def _replace_all(self, bin: Bin, timers_hash: int, layer: LayerPointer) -> Layers:
        """Return the layers of a bin after its base is durable: the base alone."""
        self._cancel_merge(bin)
        self._supersede(bin)
        self._timer_hashes.pop(bin, None)
        self._store.note_count(bin, layer.count)
        return self._append(bin, timers_hash, layer)

    def _supersede(self, bin: Bin) -> None:
        """Delete the layers of a bin once another layer is durable."""
        self._superseded[bin] = (*self._superseded.get(bin, ()), *self.layers(bin))
        self._drop_manifest(bin)

    def _drop_manifest(self, bin: Bin) -> None:
        self.bytes -= self.size(bin)
        self._manifests.pop(bin, None)

    def _set_layers(self, bin: Bin, layers: Layers) -> None:
        self.bytes += sum(layer.bytes for layer in layers) - self.size(bin)
        self._manifests[bin] = Manifest(self._operator, bin, 0, layers)

    def _append(self, bin: Bin, timers_hash: int, layer: LayerPointer) -> Layers:
        """Return the layers of a bin after a further layer is durable."""
        del self._writing[bin]
        if bin in self._frozen:
            self._thaw(bin)
        if layer.chunks or timers_hash != self._timer_hashes.get(bin, _NO_TIMERS):
            self._set_layers(bin, (*self.layers(bin), layer))
            self._timer_hashes[bin] = timers_hash
            self._retention.record_durable(layer.id)
        elif not self.layers(bin) and bin not in self._pins:
            # The bin has become empty, so no layer replaces the former ones.
            self._delete(self._superseded.pop(bin, ()))
            self._store.note_empty(bin)
        self._queue_compaction(bin)
        return self.layers(bin)

    # -- merging

    def _queue_compaction(self, bin: Bin) -> None:
        """Queue a bin for compaction, unless it is pinned, and delete layers that another has
        replaced."""
        if bin in self._pins:
            return
        self._due[bin] = None
        if self.layers(bin):
            self._delete(self._superseded.pop(bin, ()))

    def _start_merge(self) -> None:
        for bin in [bin for bin in self._due if bin not in self._pins]:
            del self._due[bin]
            layers = layers_to_merge(self.layers(bin)[1:])
            if layers:
                self._merge(bin, layers)
                return

    def _merge(self, bin: Bin, layers: Layers) -> None:
        first, last = layers[0].description, layers[-1].description
        head = self._head(bin, "delta", first.lower, last.upper)
        merged = MergedLayersInput(self._topic, self._operator, bin, layers)
        on_durable = partial(self._replace, bin, layers)
        self._merging = bin, LayerWriter(head, merged, self._topic, on_durable)

    def _replace(self, bin: Bin, old: Layers, new: LayerPointer) -> Layers:
        """Return the layers of a bin after a durable layer has replaced some."""
        self._merging = None
        layers = self.layers(bin)
        first = layers.index(old[0])
        self._retention.record_durable(new.id)
        self._set_layers(bin, (*layers[:first], new, *layers[first + len(old) :]))
        self._due[bin] = None
        self._delete(old)
        return self.layers(bin)

    def _cancel_merge(self, bin: Bin) -> None:
        if self._merging is not None and self._merging[0] == bin:
            self._merging[1].cancel()
            self._merging = None
            self._due[bin] = None

    def _delete(self, layers: Layers) -> None:
        """Send tombstones for layers that no checkpoint needs any more."""
        for layer in layers:
            self._retention.replace(layer.id, layer.chunks)
