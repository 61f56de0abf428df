"""The state of a stateful operator: bins that are here, come, leave, and go into checkpoints.

Guarantees I2 and I4 for any way to apply records: a bin leaves once the output frontier has passed
the time of its move, with its layers, its small delta and its timers, and an incoming one is
complete before use. A checkpoint freezes the bins that are here. Cost: nothing while no bin moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.incoming_bins import IncomingBins
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.output_group import Outputs
from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort
from meander.dataflow.records.batch import Int64s
from meander.dataflow.records.loop_times import outer_frontier, outer_time
from meander.state.checkpoint.arrangements import UnreadRows
from meander.state.encoding.expiring import NEVER, split_due
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store
from meander.state.store.timer_rows import TimerRows
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time


class StatefulOperator(BaseOperator):
    """An operator that keeps state in bins on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        handoffs: InputPort,
        outputs: Sequence[OutputPort],
        store: Store,
        max_handoff_bytes: int,
        downstream_passed: Callable[[int], bool],
        held: OutputPort | None = None,
    ) -> None:
        """At `held` it holds times for the wall clock. `downstream_passed` returns whether the
        sinks that write its results on arrival have passed a time."""
        self.name, self.store, self.timers = context.name, store, Timers(TimerRows(store))
        self.heat: Int64s = np.zeros(context.space.count, np.int64)
        """The number of applied records, by bin."""
        self._outputs, self._control = Outputs(outputs, held), context.control
        self._space = context.space
        self._max_handoff_bytes = max_handoff_bytes
        self.bin_layers = BinLayers(
            self.name, store, context.topic, context.next_layer, context.retention
        )
        self.incoming = IncomingBins(
            context, self.bin_layers, store, self.timers, handoffs, downstream_passed,
            self._on_installed,
        )  # fmt: skip

    @property
    def notifications(self) -> list[tuple[Time, bytes]]:
        """Return the notifications in order."""
        raise NotImplementedError

    @property
    def unread(self) -> Sequence[UnreadRows]:
        """Return the rows that it has not read in the arrangements of other operators."""
        return ()

    def start(self, notifications: Iterable[tuple[Time, bytes]]) -> None:
        """Add restored notifications, once all states and timers are restored."""
        raise NotImplementedError

    def order_around_move(self, bin: Bin, time: int) -> None:
        """Order a bin's in-flight records around its move at `time` in an earlier execution."""
        raise NotImplementedError

    def _on_installed(self, bin: Bin, time: int) -> None:
        """Do what an operator does with the complete state of a bin that has moved at a time."""

    def _write_back(self, bin: Bin | None = None) -> None:
        """Write to the store what an operator still buffers of a bin, or of all."""
        self.timers.settle(bin)

    def _downgrade(self) -> None:
        """Give up the times at which nothing can be sent any more."""
        raise NotImplementedError

    def states(self, bin: Bin, now: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys of a bin with their encoded states, without those that have expired at
        a time."""
        for key, data in self.store.scan(bin):
            due, state = split_due(data) if self.store.expires else (NEVER, data)
            if due > now:
                yield key, state

    @property
    def frontier(self) -> Antichain:
        """Return the output frontier of all workers in outer time. States before it are final."""
        return outer_frontier(self._outputs.frontier)

    def wait_seconds(self) -> float | None:
        """Return a short time while layers are being read."""
        return 0.001 if self.incoming.busy() else None

    def finished(self) -> bool:
        """Return whether no bin is incoming."""
        return not self.incoming.busy()

    def bin_handoff(self, bin: Bin, at: int) -> BinHandoff | None:
        """Return the handoff of a bin at the time `at`, which the output frontier has reached.
        Return None where the delta is not small."""
        self._write_back(bin)
        remainder = self.bin_layers.pop_delta(bin, self.timers.near(bin), self._max_handoff_bytes)
        if remainder is None:
            return None
        return BinHandoff(Manifest(self.name, bin, at, self.bin_layers.layers(bin)), remainder)

    def layer_writer(self, bin: Bin, at: int) -> LayerWriter:
        """Return a layer writer for a bin that leaves at the time `at`, for any size of delta."""
        self._write_back(bin)
        return self.bin_layers.write(bin, at, self.timers.near(bin))

    def small_delta_manifest(self, bin: Bin) -> Manifest | None:
        """Return the manifest of a bin, or None where its delta does not fit a bin handoff."""
        self._write_back(bin)
        if not self.bin_layers.has_small_delta(bin, self._max_handoff_bytes // 2):
            return None
        return Manifest(self.name, bin, self._now, self.bin_layers.layers(bin))

    def snapshot_writer(self, bin: Bin) -> LayerWriter:
        """Return a layer writer for the current state of a bin."""
        self._write_back(bin)
        return self.bin_layers.write(bin, self._now, self.timers.near(bin), rebase=True)

    @property
    def _now(self) -> int:
        return min(map(outer_time, self._outputs.frontier), default=MIN_TIME)

    def start_departure(self, bin: Bin, time: int) -> None:
        """Note that a bin leaves at `time`, which the control frontier has passed."""
        self.timers.start_departure(bin, time)

    def release_bin(self, bin: Bin, at: int) -> Sequence[tuple[int, bytes]]:
        """Release a bin that moves to its new owner at the time `at`. Return the timers that move
        with it beside its store."""
        self.bin_layers.release(bin)
        timers = self.timers.near(bin)
        self.timers.remove_departed(bin)
        self._downgrade()
        return timers

    # -- checkpoints

    def freeze(self, at: CheckpointId, excluded: Collection[Bin]) -> None:
        """Freeze the installed bins for a checkpoint, except the `excluded` ones: retained bins, or
        bins that a restore still loads."""
        self._write_back()
        incoming = {handoff.manifest.bin for handoff in self.incoming.handoffs}
        bins = sorted(self._bins_here - incoming - self.incoming.prefetched - set(excluded))
        timers = {bin: self.timers.near(bin) for bin in self.timers.bins}
        self.bin_layers.freeze(at, bins, timers, self._now)
        self.store.record_checkpoint(at, {bin: timers.get(bin, ()) for bin in bins})

    def complete_checkpoint(self, at: CheckpointId) -> None:
        """Handle the completion of a checkpoint."""
        self.bin_layers.complete_checkpoint(at)
        self.store.complete_checkpoint(at)

    def note_restored(self, at: CheckpointId) -> None:
        """Note that the states of all bins are those of a checkpoint."""
        self.store.record_checkpoint(at, {bin: self.timers.near(bin) for bin in self._bins_here})

    @property
    def _bins_here(self) -> set[Bin]:
        return {
            *self.store.bins(),
            *self.bin_layers.bins,
            *self.timers.bins,
            *self.store.changed_bins(),
        }

    def hold_times_from(self, bottom: Time) -> None:
        """Hold a capability from `bottom` on until `start`, while a restore loads states and
        timers."""
        self._outputs.open(bottom)
