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
"""Keys of a remainder whose states are looked at at once, as it may be too large."""
Layers = tuple[LayerPointer, ...]
_NO_TIMERS: Final = hash(())


class BinLayers:
    """The live layers of each bin of one operator on one worker."""

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
        self._told: dict[Bin, int | None] = {}
        """A hash of the timers that the newest layer of a bin holds, None where it is not known."""
        self._writing: dict[Bin, tuple[LayerWriter, Sequence[bytes]]] = {}
        """What is being written, and the keys that were taken for it."""
        self._refused: dict[Bin, Layers] = {}
        """What is to be forgotten once another layer stands in its place."""
        self._condemned = set[LayerId]()
        """What has proved unreadable."""
        self._frozen: dict[Bin, tuple[Sequence[bytes], Timers, int]] = {}
        """The bins that a checkpoint is to have as they were: the keys that had changed, the
        timers, and the time."""
        self._chains = Chains()
        self._pins: Counter[Bin] = Counter()
        self._due: dict[Bin, None] = {}
        """Bins of which something may have to be merged, the longest due first."""
        self._merging: tuple[Bin, LayerWriter] | None = None

    @property
    def bins(self) -> list[Bin]:
        """Those of which something lies on the topic."""
        return list(self._layers)

    def layers(self, bin: Bin) -> Layers:
        """What of a bin lies on the topic, in the order of installation."""
        return self._layers.get(bin, ())

    def size(self, bin: Bin) -> int:
        """How many bytes that takes."""
        return sum(layer.bytes for layer in self.layers(bin))

    def write(self, bin: Bin, upper: int, timers: Timers, *, renew: bool = False) -> LayerWriter:
        """Write what of a bin has changed since its last layer, or all where it has none, as one
        more layer; `timers` are all that it has. With `renew` all is written, in place of what
        there is, where the deltas take too much beside their base.

        Its manifest names all layers of the bin. No layer is added where there is nothing to tell.
        What is being written of the bin already is cancelled.
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
        """A checkpoint is to have these bins as they are now, with their timers, at about a time.

        What is being written is cancelled; nothing else is written of them before that.
        """
        for bin in [*self._writing]:
            self.cancel(bin)
        assert not self._frozen, "one checkpoint after the other"
        self._unchain(self._chains.open)
        self._chains.begin(at)
        changed = self._store.freeze(bins)
        self._frozen = {bin: (changed.get(bin, ()), timers.get(bin, ()), upper) for bin in bins}

    def thaw(self) -> None:
        """Nobody needs to know any more what the bins were: the checkpoint has been given up."""
        for bin, (keys, _, _) in [*self._frozen.items()]:
            self.cancel(bin)
            self._store.give_back(bin, keys)
            self._store.mark(bin)
            self._thaw(bin)

    @property
    def frozen(self) -> Collection[Bin]:
        """The bins of which it still has to be written what they were."""
        return self._frozen.keys()

    def write_frozen(self, bin: Bin) -> LayerWriter | None:
        """Write what a bin was when it was frozen, as `write` does; None where its layers say so
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
        """What the layers of a bin lacked when it was frozen, where that takes about so little;
        None where `write_frozen` has to write it. For the next layer it counts as changed still.
        Bundles tell of what lies in them already, unless all of it is to be told `anew` where
        anything is new."""
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
        """What a checkpoint was given of some of them as little lies in a bundle."""
        self._chains.place(at, bins, link)

    def settle(self, at: CheckpointId) -> None:
        """A checkpoint exists: the next one names its bundles."""
        self._chains.settle(at)

    def _thread(self, bin: Bin) -> None:
        """No bundle is to tell of what a frozen bin was."""
        if self._chains.of(bin) is not None:
            self._chains.end(bin)
            keys, timers, upper = self._frozen[bin]
            aside = self._store.take_aside(bin)
            self._frozen[bin] = list(aside.union(keys)), timers, upper

    def _unchain(self, bins: Iterable[Bin]) -> None:
        """No bundle tells of what has changed in some bins."""
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
        # A bin may have come with what is later than all that this worker can tell of.
        lower = layers[-1].description.upper
        head = self._head(bin, "delta", lower, max(lower, upper))
        extraction = LayerWriter(head, contents, self._topic, partial(self._stands, bin, told))
        self._writing[bin] = extraction, keys
        return extraction

    def lacks_little(self, bin: Bin, most_bytes: int) -> bool:
        """Whether what has changed of a bin since its last layer takes about so little."""
        layers, changed = self.layers(bin), self._store.count_changed(bin)
        keys = sum(layer.count for layer in layers)
        if changed is None or not keys or bin in self._writing:
            return False
        return changed * self.size(bin) <= most_bytes * keys

    def remainder(self, bin: Bin, timers: Timers, most_bytes: int) -> DeltaEntries | None:
        """Take what of a bin has changed since its last layer, all of which then count as changed
        no longer; None, and nothing is taken, where that is more, or it has no layer yet.

        What is being written of the bin is cancelled.
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
        """Write all that the store still has of a bin that has been released: its next owner could
        not read the layers that it was to have."""
        return self._base(bin, upper, timers, lambda layer: (layer,))

    def cancel(self, bin: Bin) -> None:
        """Give up what is being written of a bin, if anything; its changes are left to the next."""
        if bin in self._writing:
            extraction, keys = self._writing.pop(bin)
            extraction.cancel()
            if bin not in self._frozen:
                self._store.give_back(bin, keys)
                self._store.mark(bin)

    def adopt(self, manifest: Manifest) -> None:
        """A bin has been installed from these layers, which are this worker's from now on."""
        self._layers[manifest.bin] = manifest.layers
        self._told[manifest.bin] = None
        self._due[manifest.bin] = None

    def rewrite(self, bin: Bin) -> None:
        """The layers of a bin are of no use: the next one is to be a base, in place of them all;
        until then the bin counts as changed."""
        self.cancel(bin)
        self._unchain([bin])
        self._cancel_merging(bin)
        self._store.mark(bin)
        self.condemn(self.layers(bin))
        self._refuse(bin)

    def condemn(self, layers: Layers) -> None:
        """Layers cannot be read: no checkpoint may name them from now on."""
        self._condemned.update(layer.id for layer in layers)

    def condemned(self, manifest: Manifest) -> bool:
        """Whether a manifest names a layer that cannot be read."""
        return any(layer.id in self._condemned for layer in manifest.layers)

    def release(self, bin: Bin) -> None:
        """A bin has left, and its layers are its new owner's."""
        if bin in self._writing:
            self._writing.pop(bin)[0].cancel()
        self._chains.end(bin)
        self._cancel_merging(bin)
        self._forget(self._refused.pop(bin, ()))
        for layer in self.layers(bin):
            self._retention.left(layer.id)
        for known in (self._layers, self._told, self._pins, self._due):
            known.pop(bin, None)

    def pin(self, bin: Bin) -> None:
        """Somebody reads the layers of a bin: they are neither merged nor forgotten."""
        self._pins[bin] += 1
        self._cancel_merging(bin)

    def unpin(self, bin: Bin) -> None:
        """Who pinned a bin reads it no longer."""
        self._pins[bin] -= 1
        if not self._pins[bin]:
            del self._pins[bin]
            self._settle(bin)

    @property
    def merges(self) -> bool:
        """Whether anything is being merged, or may have to be."""
        return self._merging is not None or bool(self._due)

    def tend(self, budget_entries: int) -> bool:
        """Merge a little; whether anything was done.

        Raises Unreadable where a layer could not be read: its bin counts as changed
        then, and is written anew out of the state.
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
        """A base is durable: nothing else is needed."""
        self._cancel_merging(bin)
        self._refuse(bin)
        self._told.pop(bin, None)
        return self._stands(bin, told, layer)

    def _refuse(self, bin: Bin) -> None:
        """The layers of a bin are to be forgotten, once another stands."""
        self._refused[bin] = (*self._refused.get(bin, ()), *self._layers.pop(bin, ()))

    def _stands(self, bin: Bin, told: int, layer: LayerPointer) -> Layers:
        """A layer is durable: which ones there are now."""
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
        """Look after a bin that has got another layer, or is no longer pinned."""
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
        """A layer is durable that stands for some."""
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
        """Have tombstones for layers, once no checkpoint needs them."""
        for layer in layers:
            self._retention.replaced(layer.id, layer.chunks)
