"""The state writer: layers of bins that changed much, and bundles of the deltas of the others.

Guarantees that `manifests` and `bundles`, once `done`, are durable and describe the bins at their
freeze (`BinLayers.freeze`). A turn writes a slice. Leaving bins get their layer first, as their
moves wait for it. Cost: 1.3 ms per layer, 2 us per key in a bundle. A bundle holds the changes
since the last checkpoint, and for one in `DEPTH` of the bins the whole delta.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from meander.dataflow.checkpoint.upload import Upload
from meander.dataflow.migration.migrator import OutgoingState
from meander.state.checkpoint import delta_bundles
from meander.state.checkpoint.delta_bundles import Bundle, Delta
from meander.state.keys.ids import Bin, CheckpointId, ExecutionId, WorkerId
from meander.state.layers.delta_chains import Link
from meander.state.layers.layer import NO_DELTA
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import UNPLACED, StateTopic

ENTRIES = 512
"""The entries written per turn, of a bin or into a bundle."""
AT_ONCE = 32
"""The bins that get a layer concurrently."""
SMALL_DELTA = 8 << 10
"""About the most bytes of a delta that goes into a bundle."""
BYTES = 64 << 10
"""About the bytes of a bundle."""
DEPTH = 8
"""The most bundles per bin: each costs a reference in every checkpoint."""


class StateWriter:
    """A writer of one worker's states for one checkpoint; `unloaded` are bins that are not loaded
    yet."""

    def __init__(
        self,
        me: WorkerId,
        execution: ExecutionId,
        number: int,
        outgoing: Sequence[OutgoingState],
        unloaded: Iterable[Manifest],
        topic: StateTopic,
    ) -> None:
        self._me, self._at = me, CheckpointId(execution, number)
        self._outgoing = outgoing
        self._bin_layers = {one.keyed.name: one.keyed.bin_layers for one in outgoing}
        self._manifests = {(one.operator, one.bin): one for one in unloaded}
        self._left = deque((o, bin) for o in outgoing for bin in o.keyed.bin_layers.frozen)
        """Bins that have not been examined."""
        self._to_layer: list[tuple[OutgoingState, Bin]] = []
        """Bins that get a layer."""
        self._writing: list[tuple[OutgoingState, Bin, LayerWriter]] = []
        self._gathered: list[Delta] = []
        """The deltas of the next bundle, all of one operator."""
        self._gathered_bytes = 0
        self._upload = Upload[Bundle](
            topic, lambda one, locations: one._replace(location=locations[0])
        )
        self._sequence = 0
        self._earlier = defaultdict[tuple[Link, str], list[Bin]](list)
        """The bins whose deltas are in a bundle of an earlier checkpoint."""

    @property
    def manifests(self) -> list[Manifest]:
        """The manifest of each bin."""
        return list(self._manifests.values())

    @property
    def done(self) -> bool:
        """Whether all is durable."""
        unwritten = self._left or self._to_layer or self._gathered
        return not (unwritten or self._writing or self._upload)

    @property
    def bundles(self) -> list[Bundle]:
        """The bundles that complete the layers; for each bin the earliest first."""
        earlier = sorted(self._earlier.items(), key=lambda one: one[0])
        before = [Bundle(name, tuple(bins), link.location) for (link, name), bins in earlier]
        return before + self._upload.placed

    def unreadable(self, manifests: Iterable[Manifest]) -> Manifest | None:
        """Return one of some manifests that names an unreadable layer, or None."""
        named = (one for one in manifests if one.operator in self._bin_layers)
        return next(
            (one for one in named if self._bin_layers[one.operator].is_unreadable(one)), None
        )

    def step(self) -> bool:
        """Write a slice; return whether anything was done."""
        gathered = self._gather()
        placed = self._note_durable()
        self._start_writing()
        written = self._write()
        return gathered or placed or written

    def cancel(self) -> None:
        """Leave the frozen bins to the next checkpoint, and forget what was written."""
        if self._left or self._to_layer or self._writing:
            # Otherwise the frozen bins belong to another checkpoint by now.
            for outgoing in self._outgoing:
                outgoing.keyed.bin_layers.thaw()
        self._upload.cancel()
        for known in (self._left, self._to_layer, self._writing, self._gathered):
            known.clear()

    # -- bundles

    def _gather(self) -> bool:
        """Examine some bins and gather small deltas."""
        if not self._left:
            return False
        count = 0
        while self._left and count < ENTRIES:
            outgoing, bin = self._left.popleft()
            count += 1 + self._gather_bin(outgoing, bin)
        if not self._left:
            self._send_bundle()
        return True

    def _gather_bin(self, outgoing: OutgoingState, bin: Bin) -> int:
        """Gather the delta of a bin, or note that it gets a layer; return the number of gathered
        keys."""
        name, layers = outgoing.keyed.name, outgoing.keyed.bin_layers
        delta = layers.frozen_delta(
            bin, SMALL_DELTA, cumulative=(self._at.number + bin) % DEPTH == 0
        )
        if delta is None:
            self._to_layer.append((outgoing, bin))
            return 0
        links, remainder = delta
        for link in links:
            self._earlier[link, name].append(bin)
        self._note(layers.manifest(bin))
        if remainder != NO_DELTA:
            full = self._gathered_bytes >= BYTES
            if self._gathered and (full or self._gathered[0].operator != name):
                self._send_bundle()
            one = Delta(name, bin, remainder)
            self._gathered.append(one)
            self._gathered_bytes += one.size
        return len(remainder.keys)

    def _send_bundle(self) -> None:
        """Send the gathered deltas as one bundle."""
        if not self._gathered:
            return
        key = delta_bundles.bundle_key(*self._at, self._me, self._sequence)
        self._sequence += 1
        bins = tuple(one.bin for one in self._gathered)
        bundle = Bundle(self._gathered[0].operator, bins, UNPLACED)
        self._upload.send(key, delta_bundles.encode_deltas(self._gathered), bundle)
        self._gathered, self._gathered_bytes = [], 0

    def _note_durable(self) -> bool:
        """Note the locations of bundles that have become durable; return whether any has."""
        known = len(self._upload.placed)
        self._upload.poll()
        for sequence, one in enumerate(self._upload.placed[known:], known):
            link = Link(self._at.number, sequence, one.location)
            self._bin_layers[one.operator].record_bundle(self._at, one.bins, link)
        return len(self._upload.placed) > known

    # -- layers

    def _start_writing(self) -> None:
        while self._to_layer and len(self._writing) < AT_ONCE:
            outgoing, bin = one = next(filter(_leaves, self._to_layer), self._to_layer[0])
            self._to_layer.remove(one)
            layers = outgoing.keyed.bin_layers
            writer = layers.write_frozen(bin)
            if writer is None:
                self._note(layers.manifest(bin))
            else:
                self._writing.append((outgoing, bin, writer))

    def _write(self) -> bool:
        worked = False
        for one in list(self._writing):
            outgoing, bin, writer = one
            if writer.cancelled:
                # One of its layers is unreadable, so a new base is written.
                self._writing.remove(one)
                self._to_layer.append((outgoing, bin))
            elif writer.step(ENTRIES):
                self._writing.remove(one)
                self._note(writer.manifest)
                worked = True
            worked |= not writer.awaits_delivery
        return worked

    def _note(self, manifest: Manifest) -> None:
        self._manifests[manifest.operator, manifest.bin] = manifest


def _leaves(one: tuple[OutgoingState, Bin]) -> bool:
    """Return whether a bin is about to leave."""
    outgoing, bin = one
    return any(leaving.transfer.bin == bin for leaving in outgoing.leaving)
