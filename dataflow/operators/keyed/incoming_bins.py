"""The incoming bins of a stateful operator, its second input (Megaphone's S, 2.2).

Guarantees I2 and I4: a record at or after the time of its bin's move waits until the worker has
fetched, verified and installed the state. The order of handoff, decision and records does not
matter. Where sinks write on arrival, the record also waits until all results before the move are
out (I9).

After a recovery records from before and after a move may be in flight to one worker. The later ones
wait for the earlier ones. The old owner retains its bin until the install, so it writes an
unreadable layer again. Cost: one mask per incoming bin and batch, nothing without incoming bins.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.instructions import Prefetch
from meander.dataflow.control.reports import BinInstalled
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.prefetch import PrefetchedBin, PrefetchedBins, bin_unreadable
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.ports import InputPort, Message
from meander.dataflow.records.batch import Int64s
from meander.dataflow.records.loop_times import outer_time
from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import bytes_of
from meander.state.keys.ids import Bin
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time

ENTRIES = 2048
"""Entries that a turn installs per bin."""


@dataclass(frozen=True, slots=True)
class IncomingBin:
    """An incoming bin whose install runs."""

    time: Time
    handoff: BinHandoff
    loader: LayerLoader
    prefetched: PrefetchedBin


class IncomingBins:
    """A set of bins that one operator on one worker expects or installs."""

    def __init__(
        self,
        context: OperatorContext,
        bin_layers: BinLayers,
        store: Store,
        timers: Timers,
        handoff_port: InputPort,
        downstream_passed: Callable[[int], bool],
        on_installed: Callable[[Bin, int], None],
    ) -> None:
        """`downstream_passed` returns whether sinks that write on arrival have passed a time.
        `on_installed` is called with each bin whose state is complete, and the time of its move."""
        self._on_installed = on_installed
        self._downstream_passed = downstream_passed
        self._bin_layers, self._store, self._timers = bin_layers, store, timers
        self._topic, self._handoff_port, self._report = context.topic, handoff_port, context.report
        self._buffer, self._throttle = context.buffer, context.throttle
        self._awaited: dict[Bin, list[int]] = {}
        self._newest: dict[Bin, int] = {}
        self._early: set[tuple[Bin, int]] = set()
        self._ordered_moves: dict[Bin, list[int]] = {}
        """Times of moves in earlier executions whose earlier records are not all applied."""
        self._stashed: dict[Bin, SpillBuffer] = {}
        self._released: set[Bin] = set()
        self._queued: list[tuple[Time, BinHandoff]] = []
        self._installing: list[IncomingBin] = []
        self._prefetched = PrefetchedBins(context, store)
        self._unreadable: dict[tuple[Bin, int], tuple[Time, BinHandoff]] = {}
        """The first handoffs of moves with unreadable layers, by bin and time."""

    def expect(self, bin: Bin, time: int) -> None:
        """Expect a bin that this worker owns from `time` on. Call this once every decision up to
        that time is known."""
        if (bin, time) in self._early:
            self._early.remove((bin, time))
        else:
            insort(self._awaited.setdefault(bin, []), time)

    def order_around_move(self, bin: Bin, time: int) -> None:
        """Order a bin's in-flight records around its move at `time` in an earlier execution: later
        records wait for earlier ones."""
        insort(self._ordered_moves.setdefault(bin, []), time)

    def note_passed(self, frontier: Antichain) -> None:
        """Release records that waited for those before the frontier, which are applied."""
        for bin, times in list(self._ordered_moves.items()):
            pending = [time for time in times if frontier.less_than(time)]
            if len(pending) < len(times) and bin in self._stashed:
                self._released.add(bin)
            if pending:
                self._ordered_moves[bin] = pending
            else:
                del self._ordered_moves[bin]

    @property
    def is_ordering(self) -> bool:
        """Return whether records of an installed bin may wait for those before an earlier move."""
        return bool(self._ordered_moves)

    def _move_times(self, bin: Bin) -> list[int]:
        """Return the times of the moves that delay records of a bin."""
        return [*self._awaited.get(bin, ()), *self._ordered_moves.get(bin, ())]

    def stash(self, rows: Rows, bins: Int64s) -> Rows:
        """Stash the records that wait for their bin, and return the others."""
        delayed = self._awaited.keys() | self._ordered_moves.keys() | self._released
        for bin in sorted(delayed.intersection(bins.tolist())) if delayed else ():
            # A record of an installed bin waits behind the records stashed before it.
            time = MIN_TIME if bin in self._released else min(self._move_times(bin))
            waits = (bins == bin) & (rows.batch.times >= time)
            if waits.any():
                waiting, rows = rows.split(waits)
                bins = bins[~waits]
                if bin not in self._stashed:
                    self._stashed[bin] = self._buffer(f"bin {bin}")
                self._stashed[bin].add(waiting)
        return rows

    def schedule(self, retain: Callable[[Message], None]) -> bool:
        """Receive bin handoffs and install some entries. Return whether it worked. `retain` holds
        the capability of a handoff."""
        if self._handoff_port.drained and not self.busy():
            return False
        worked = False
        for message in self._handoff_port.drain():
            assert isinstance(message.payload, BinHandoff)
            retain(message)
            self._queued.append((message.time, message.payload))
            worked = True
        for one in list(self._queued):
            # One bin is fetched while another is installed.
            prefetching = self._prefetched.is_running(one[1].manifest.bin)
            if self._throttle.move_memory.open and not prefetching:
                self._queued.remove(one)
                self._installing.append(self._start_install(*one))
        for bin in self._throttle.run_due(self._delayed_bins()):
            worked |= self._prefetched.step_bin(bin)
        for incoming in self._throttle.run_due(list(self._installing)):
            if self._install(incoming):
                self._installing.remove(incoming)
                worked = True
        return self._prefetched.step() or worked

    def start_prefetch(self, prefetch: Prefetch, time: Time) -> None:
        """Start to prefetch a bin that will move here. `time` is that of the instruction."""
        # A retained bin of an earlier move away may still be here.
        bin = prefetch.manifest.bin
        self._newest[bin] = outer_time(time)
        self._store.drop(bin)
        self._prefetched.start(prefetch.number, prefetch.manifest)

    @property
    def handoffs(self) -> list[BinHandoff]:
        """Return the handoffs whose install has not ended, unreadable ones included."""
        waiting = (message.payload for message in self._handoff_port.waiting)
        arrived = [
            *(one for one in waiting if isinstance(one, BinHandoff)),
            *(handoff for _, handoff in self._queued),
            *(incoming.handoff for incoming in self._installing),
        ]
        here = {handoff.manifest.bin for handoff in arrived}
        unreadable = (handoff for _, handoff in self._unreadable.values())
        return [*arrived, *(one for one in unreadable if one.manifest.bin not in here)]

    @property
    def stashed(self) -> Iterator[Rows]:
        """Return the records that wait for bins as of the call, oldest first. They stay."""
        return chain.from_iterable([stash.rows() for stash in self._stashed.values()])

    def cancel_prefetch(self, bin: Bin) -> None:
        """Cancel the prefetch of a bin."""
        self._prefetched.cancel(bin)

    @property
    def prefetched(self) -> set[Bin]:
        """Return the prefetched bins, which other workers own."""
        return self._prefetched.bins

    def pop_released(self) -> tuple[list[Rows], bool]:
        """Remove and return the records that no longer wait, or the first slice of them. Return
        too whether there are more."""
        found: list[Rows] = []
        for bin in sorted(self._released):
            # The bin may have left, and this worker may expect it again.
            until = Antichain.of(*self._move_times(bin))
            rows, more = self._stashed[bin].pop_passed(until)
            found += rows
            if not more:
                self._released.remove(bin)
                if self._stashed[bin].least is None:
                    del self._stashed[bin]
        return found, bool(self._released)

    def spill_some(self) -> bool:
        """Move some waiting records to disk. Return whether there were any."""
        return any(stash.spill_some() for stash in self._stashed.values())

    @property
    def pending_times(self) -> Iterator[Time]:
        """Yield the times of capabilities that incoming bins need."""
        for stash in self._stashed.values():
            yield from stash.pending_times
        yield from (time for time, _ in self._queued)
        yield from (incoming.time for incoming in self._installing)
        yield from (time for time, _ in self._unreadable.values())

    @property
    def released_times(self) -> Iterator[Time]:
        """Yield the times of records that no longer wait, or lower bounds of them."""
        for bin in self._released:
            yield from self._stashed[bin].pending_times

    @property
    def spilled(self) -> bool:
        """Return whether records that no longer wait are on disk."""
        return any(self._stashed[bin].spilled for bin in self._released)

    @property
    def awaited_times(self) -> Iterator[int]:
        """Yield the times from which on this worker owns bins that it expects."""
        return chain.from_iterable(self._awaited.values())

    @property
    def expecting(self) -> bool:
        """Return whether this worker expects bins at certain times."""
        return bool(self._awaited)

    @property
    def size(self) -> int:
        """Return about the bytes of records that wait for their bins in memory."""
        return sum(stash.size for stash in self._stashed.values())

    def has_newer(self, bin: Bin, time: int) -> bool:
        """Return whether the store has, or will get, a state of the bin after a time."""
        return self._newest.get(bin, -1) > time

    def busy(self) -> bool:
        """Return whether an install or a prefetch runs."""
        return bool(self._installing or self._queued) or self._prefetched.busy

    def _delayed_bins(self) -> list[Bin]:
        """Return the bins with a handoff whose prefetch still runs."""
        queued = (handoff.manifest.bin for _, handoff in self._queued)
        return [bin for bin in queued if self._prefetched.is_running(bin)]

    def _start_install(self, time: Time, handoff: BinHandoff) -> IncomingBin:
        """Start the install of a bin. A second handoff of it keeps the time of the first one."""
        manifest = handoff.manifest
        self._newest[manifest.bin] = manifest.epoch
        first, _ = self._unreadable.get((manifest.bin, manifest.epoch), (time, handoff))
        prefetched = self._prefetched.pop(manifest.bin)
        loader = self._throttle.move_memory.admit(
            LayerLoader(self._store, manifest, self._topic, prefetched.layers, prefetched.timers)
        )
        return IncomingBin(first, handoff, loader, prefetched)

    def _install(self, incoming: IncomingBin) -> bool:
        """Install some entries. Return whether the install has ended. Raises MeanderError for
        layers that are unreadable a second time."""
        manifest, loader = incoming.handoff.manifest, incoming.loader
        move = manifest.bin, manifest.epoch
        try:
            if not (loader.step(ENTRIES) and self._downstream_passed(manifest.epoch)):
                return False
        except MeanderError as error:
            if move in self._unreadable:
                raise
            self._unreadable[move] = incoming.time, incoming.handoff
            self._bin_layers.mark_unreadable(manifest.layers)
            self._report(bin_unreadable(manifest, error, time=manifest.epoch))
            return True
        self._unreadable.pop(move, None)
        self._bin_layers.adopt(manifest)
        remainder = incoming.handoff.remainder
        self.add_delta(manifest.bin, remainder, loader.timers)
        self._on_installed(manifest.bin, manifest.epoch)
        size = sum(map(len, remainder.keys)) + bytes_of(remainder.states)
        prefetched = incoming.prefetched
        self._note_installed(
            manifest,
            prefetched.bytes + loader.bytes + size,
            prefetched.keys + loader.count + len(remainder.keys),
        )
        return True

    def add_delta(
        self, bin: Bin, remainder: DeltaEntries, timers: Sequence[tuple[int, bytes]]
    ) -> None:
        """Install the delta that the layers of a bin lack; the next layer will hold it. `timers`
        are those of the last layer. Far timers are among the entries."""
        if remainder.keys:
            self._store.install_changed(bin, remainder.keys, remainder.states)
        if remainder.timers is not None:
            self._store.mark_changed(bin)
        self._timers.install(bin, timers if remainder.timers is None else remainder.timers)

    def _note_installed(self, manifest: Manifest, bytes: int, keys: int) -> None:
        bin, time = manifest.bin, manifest.epoch
        self._report(BinInstalled(manifest.operator, bin, time, bytes, keys))
        if bin not in self._awaited or time not in self._awaited[bin]:
            self._early.add((bin, time))
            return
        later = [t for t in self._awaited.pop(bin) if t != time]
        if later:
            self._awaited[bin] = later
        if bin in self._stashed:
            self._released.add(bin)
