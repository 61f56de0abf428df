"""The incoming bins of a stateful operator, its second input (Megaphone's S, 2.2).

Guarantees I2 and I4: a record at or after the time of its bin's move waits until the state has been
fetched, verified and installed. The order of handoff, decision and records does not matter. Where
sinks write on arrival, the record also waits until all results before the move are out (I9).

After a recovery both sides of a move may be in flight to one worker. Records from the move on wait
for earlier ones. An unreadable layer is requested once more, as the old owner retains its bin until
the install. Cost: one mask per incoming bin and batch, nothing without incoming bins.
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
from meander.dataflow.operators.keyed.prefetch import FetchedBin, PrefetchedBins, bin_unreadable
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.ports import InputPort, Message
from meander.dataflow.records.batch import Int64s
from meander.dataflow.records.loop_times import outer
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time

ENTRIES = 2048
"""Entries that are installed per bin and turn."""


@dataclass(frozen=True, slots=True)
class IncomingBin:
    """An incoming bin that has its last layers being installed."""

    time: Time
    delivery: BinHandoff
    installation: LayerLoader
    ahead: FetchedBin


class IncomingBins:
    """The incoming bins that one operator on one worker expects or installs."""

    def __init__(
        self,
        context: OperatorContext,
        trace: BinLayers,
        store: Store,
        timers: Timers,
        pointers: InputPort,
        out: Callable[[int], bool],
    ) -> None:
        """Take stores and ports. `out` tells whether all results before a time have left."""
        self._out = out
        self._trace, self._store, self._timers = trace, store, timers
        self._topic, self._pointers, self._report = context.topic, pointers, context.report
        self._buffer, self._pace = context.buffer, context.throttle
        self._awaited: dict[Bin, list[int]] = {}
        self._newest: dict[Bin, int] = {}
        self._early: set[tuple[Bin, int]] = set()
        self._followed: dict[Bin, list[int]] = {}
        """Times of moves before a recovery whose earlier records are not all applied."""
        self._stashed: dict[Bin, SpillBuffer] = {}
        self._released: set[Bin] = set()
        self._queued: list[tuple[Time, BinHandoff]] = []
        self._installing: list[IncomingBin] = []
        self._staging = PrefetchedBins(context, store)
        self._unreadable: dict[tuple[Bin, int], tuple[Time, BinHandoff]] = {}
        """Moves with unreadable layers that wait for a second bin handoff, by bin and time."""

    def expect(self, bin: Bin, time: int) -> None:
        """Expect a bin that this worker owns from `time` on. Call this once every command up to
        then is known."""
        if (bin, time) in self._early:
            self._early.remove((bin, time))
        else:
            insort(self._awaited.setdefault(bin, []), time)

    def follow(self, bin: Bin, time: int) -> None:
        """Order a bin's records around its move at `time`, from before the recovery that this
        execution began with. Later records wait for earlier ones."""
        insort(self._followed.setdefault(bin, []), time)

    def passed(self, frontier: Antichain) -> None:
        """Note that all records before a frontier are applied."""
        for bin, times in list(self._followed.items()):
            left = [time for time in times if frontier.less_than(time)]
            if len(left) < len(times) and bin in self._stashed:
                self._released.add(bin)
            if left:
                self._followed[bin] = left
            else:
                del self._followed[bin]

    @property
    def following(self) -> bool:
        """Return whether records of an installed bin may wait for those before its move."""
        return bool(self._followed)

    def _moves(self, bin: Bin) -> list[int]:
        """Return the times of the moves that delay records of a bin."""
        return [*self._awaited.get(bin, ()), *self._followed.get(bin, ())]

    def stash(self, rows: Rows, bins: Int64s) -> Rows:
        """Keep the records that wait for their bin, and return the others."""
        waiting = self._awaited.keys() | self._followed.keys() | self._released
        here = sorted(waiting.intersection(bins.tolist())) if waiting else ()
        for bin in here:
            # A record of an installed bin waits behind the records stashed before it.
            time = MIN_TIME if bin in self._released else min(self._moves(bin))
            waits = (bins == bin) & (rows.batch.times >= time)
            if waits.any():
                mine, rows = rows.split(waits)
                bins = bins[~waits]
                if bin not in self._stashed:
                    self._stashed[bin] = self._buffer(f"bin {bin}")
                self._stashed[bin].add(mine)
        return rows

    def schedule(self, retain: Callable[[Message], None]) -> bool:
        """Take bin handoffs and install some entries. Return whether it worked. `retain` holds the
        capability of a handoff."""
        if self._pointers.taken and not self.busy():
            return False
        worked = False
        for message in self._pointers.drain():
            assert isinstance(message.payload, BinHandoff)
            retain(message)
            self._queued.append((message.time, message.payload))
            worked = True
        for one in list(self._queued):
            # One bin is fetched while another is installed.
            if self._pace.due.open and not self._staging.under_way(one[1].manifest.bin):
                self._queued.remove(one)
                self._installing.append(self._begin(*one))
        for bin in self._pace.hurry(self._late()):
            worked |= self._staging.push(bin)
        for incoming in self._pace.hurry(list(self._installing)):
            if self._install(incoming):
                self._installing.remove(incoming)
                worked = True
        return self._staging.step() or worked

    def stage(self, stage: Prefetch, time: Time) -> None:
        """Prefetch the layers of a bin that will move here. `time` is that of the instruction."""
        # A retained bin may still be here until its new owner has acknowledged it.
        bin = stage.manifest.bin
        self._newest[bin] = outer(time)
        self._store.drop(bin)
        self._staging.begin(stage.number, stage.manifest)

    @property
    def deliveries(self) -> list[BinHandoff]:
        """Return the bin handoffs that are not fully installed, unreadable ones included."""
        waiting = (message.payload for message in self._pointers.waiting)
        come = [
            *(one for one in waiting if isinstance(one, BinHandoff)),
            *(delivery for _, delivery in self._queued),
            *(incoming.delivery for incoming in self._installing),
        ]
        here = {delivery.manifest.bin for delivery in come}
        unreadable = (delivery for _, delivery in self._unreadable.values())
        return [*come, *(one for one in unreadable if one.manifest.bin not in here)]

    @property
    def stashed(self) -> Iterator[Rows]:
        """Return the records that wait for bins as of the call, oldest first. They stay."""
        return chain.from_iterable([pool.rows() for pool in self._stashed.values()])

    def spare(self, bin: Bin) -> None:
        """Cancel the prefetch of a bin."""
        self._staging.spare(bin)

    @property
    def staged(self) -> set[Bin]:
        """Return the prefetched bins, which other workers own."""
        return self._staging.bins

    def release(self) -> tuple[list[Rows], bool]:
        """Remove the records that no longer wait, or the first slice of them. Return them, and
        whether there are more."""
        found: list[Rows] = []
        for bin in sorted(self._released):
            # The bin may have left, and this worker may expect it again.
            until = Antichain.of(*self._moves(bin))
            rows, more = self._stashed[bin].passed(until)
            found += rows
            if not more:
                self._released.remove(bin)
                if self._stashed[bin].least is None:
                    del self._stashed[bin]
        return found, bool(self._released)

    def shed(self) -> bool:
        """Move some waiting records to disk, and return whether there were any."""
        return any(pool.shed() for pool in self._stashed.values())

    @property
    def owed(self) -> Iterator[Time]:
        """Yield the times of capabilities that incoming bins need."""
        for pool in self._stashed.values():
            yield from pool.owed
        yield from (time for time, _ in self._queued)
        yield from (incoming.time for incoming in self._installing)
        yield from (time for time, _ in self._unreadable.values())

    @property
    def ahead(self) -> Iterator[Time]:
        """Yield the times of records that no longer wait, or lower bounds of them."""
        for bin in self._released:
            yield from self._stashed[bin].owed

    @property
    def spilled(self) -> bool:
        """Return whether records that no longer wait are on disk."""
        return any(self._stashed[bin].spilled for bin in self._released)

    @property
    def expecting(self) -> bool:
        """Return whether this worker expects bins at certain times."""
        return bool(self._awaited)

    @property
    def size(self) -> int:
        """Return about the bytes of records that wait for their bins in memory."""
        return sum(pool.size for pool in self._stashed.values())

    def has_come_since(self, bin: Bin, time: int) -> bool:
        """Return whether a later state of the bin is here, or on its way into the store."""
        return self._newest.get(bin, -1) > time

    def busy(self) -> bool:
        """Return whether bins are being installed."""
        return bool(self._installing or self._queued) or self._staging.busy

    def _late(self) -> list[Bin]:
        """Return the bins with a handoff whose prefetch still runs."""
        queued = (delivery.manifest.bin for _, delivery in self._queued)
        return [bin for bin in queued if self._staging.under_way(bin)]

    def _begin(self, time: Time, delivery: BinHandoff) -> IncomingBin:
        """Start the install of a bin handoff. A rewritten bin keeps the time of its first
        handoff."""
        manifest = delivery.manifest
        self._newest[manifest.bin] = manifest.epoch
        first, _ = self._unreadable.get((manifest.bin, manifest.epoch), (time, delivery))
        ahead = self._staging.claim(manifest.bin)
        rest = self._pace.due.admit(
            LayerLoader(self._store, manifest, self._topic, ahead.layers, ahead.timers)
        )
        return IncomingBin(first, delivery, rest, ahead)

    def _install(self, incoming: IncomingBin) -> bool:
        """Install some entries, and return whether the install has ended. Raises MeanderError for
        layers that are unreadable a second time."""
        manifest, rest = incoming.delivery.manifest, incoming.installation
        move = manifest.bin, manifest.epoch
        try:
            if not (rest.step(ENTRIES) and self._out(manifest.epoch)):
                return False
        except MeanderError as error:
            if move in self._unreadable:
                raise
            self._unreadable[move] = incoming.time, incoming.delivery
            self._trace.mark_unreadable(manifest.layers)
            self._report(bin_unreadable(manifest, error, time=manifest.epoch))
            return True
        self._unreadable.pop(move, None)
        self._trace.adopt(manifest)
        remainder = incoming.delivery.remainder
        self.add(manifest.bin, remainder, rest.timers)
        size = sum(map(len, (*remainder.keys, *remainder.states)))
        ahead = incoming.ahead
        self._arrived(
            manifest, ahead.bytes + rest.bytes + size, ahead.keys + rest.count + len(remainder.keys)
        )
        return True

    def add(self, bin: Bin, remainder: DeltaEntries, timers: Sequence[tuple[int, bytes]]) -> None:
        """Add the delta that the installed layers of a bin lack. `timers` are those of the last
        layer. The next layer will hold the delta."""
        if remainder.keys:
            self._store.install_changed(bin, remainder.keys, remainder.states)
        if remainder.timers is not None:
            self._store.mark_changed(bin)
        self._timers.install(bin, timers if remainder.timers is None else remainder.timers)

    def _arrived(self, manifest: Manifest, bytes: int, keys: int) -> None:
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
