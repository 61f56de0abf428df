"""Bins on their way into a stateful operator: S's second input (live reconfiguration, 2.2).

Guarantees I2 and I4: what is addressed to a bin at or after the time of its move waits until its
state has been fetched, verified and installed, however early or late pointer, command and records
come; and until all results of before the move are out, where sinks write what comes as it comes
(I9). After a recovery both sides of a move may be in flight to one worker: records from the move on
wait for those of before. What cannot be read is asked for once more: the old owner keeps its copy
until the install.
Cost: one mask per awaited bin and batch while bins are awaited, nothing otherwise.
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
"""Entries installed per bin and turn."""


@dataclass(frozen=True, slots=True)
class IncomingBin:
    """A bin whose last layers are being installed."""

    time: Time
    delivery: BinHandoff
    installation: LayerLoader
    ahead: FetchedBin


class IncomingBins:
    """The bins that one operator on one worker expects or installs."""

    def __init__(
        self,
        context: OperatorContext,
        trace: BinLayers,
        store: Store,
        timers: Timers,
        pointers: InputPort,
        out: Callable[[int], bool],
    ) -> None:
        """`out` says whether all results of before a time have left."""
        self._out = out
        self._trace, self._store, self._timers = trace, store, timers
        self._topic, self._pointers, self._report = context.topic, pointers, context.report
        self._buffer, self._pace = context.buffer, context.throttle
        self._awaited: dict[Bin, list[int]] = {}
        self._newest: dict[Bin, int] = {}
        self._early: set[tuple[Bin, int]] = set()
        self._followed: dict[Bin, list[int]] = {}
        """Times of moves before a recovery, of before which not all is applied."""
        self._stashed: dict[Bin, SpillBuffer] = {}
        self._released: set[Bin] = set()
        self._queued: list[tuple[Time, BinHandoff]] = []
        self._installing: list[IncomingBin] = []
        self._staging = PrefetchedBins(context, store)
        self._unreadable: dict[tuple[Bin, int], tuple[Time, BinHandoff]] = {}
        """Moves of which the layers could not be read, and are awaited anew: by bin and time."""

    def expect(self, bin: Bin, time: int) -> None:
        """From `time` on the bin is ours; called once every command up to then is known."""
        if (bin, time) in self._early:
            self._early.remove((bin, time))
        else:
            insort(self._awaited.setdefault(bin, []), time)

    def follow(self, bin: Bin, time: int) -> None:
        """The bin is here, and moved at `time` before the recovery with which the flow has begun:
        its records from then on follow those of before."""
        insort(self._followed.setdefault(bin, []), time)

    def passed(self, frontier: Antichain) -> None:
        """All records of before this are applied."""
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
        """Whether records of any bin that is here may have to wait for those of before a move."""
        return bool(self._followed)

    def _moves(self, bin: Bin) -> list[int]:
        """The times of the moves that hold up records of a bin."""
        return [*self._awaited.get(bin, ()), *self._followed.get(bin, ())]

    def stash(self, rows: Rows, bins: Int64s) -> Rows:
        """Keep what has to wait for its bin; the rest may be applied."""
        waiting = self._awaited.keys() | self._followed.keys() | self._released
        here = sorted(waiting.intersection(bins.tolist())) if waiting else ()
        for bin in here:
            # A record of an installed bin queues behind the records stashed before it.
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
        """Take pointers and install a little; whether anything was done. `retain` keeps the
        capability that a pointer brings."""
        if self._pointers.taken and not self.busy():
            return False
        worked = False
        for message in self._pointers.drain():
            assert isinstance(message.payload, BinHandoff)
            retain(message)
            self._queued.append((message.time, message.payload))
            worked = True
        for one in list(self._queued):
            # Fetching one overlaps installing another.
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
        """Fetch ahead what lies on the topic of a bin that is to come; told at a time."""
        # An older copy may still be here, until its leaving is acknowledged.
        bin = stage.manifest.bin
        self._newest[bin] = outer(time)
        self._store.drop(bin)
        self._staging.begin(stage.number, stage.manifest)

    @property
    def deliveries(self) -> list[BinHandoff]:
        """The bins that have come and are not whole here yet, also those that could not be read
        and are awaited anew."""
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
        """What waits for bins, as of the call, what has waited longest first; it stays."""
        return chain.from_iterable([pool.rows() for pool in self._stashed.values()])

    def spare(self, bin: Bin) -> None:
        """It is not to come, after all."""
        self._staging.spare(bin)

    @property
    def staged(self) -> set[Bin]:
        """Bins of which something is here, and that are another's."""
        return self._staging.bins

    def release(self) -> tuple[list[Rows], bool]:
        """Take what need wait no longer, or the first slice of it, and whether there is more."""
        found: list[Rows] = []
        for bin in sorted(self._released):
            # It may have left and be awaited again by now.
            until = Antichain.of(*self._moves(bin))
            rows, more = self._stashed[bin].passed(until)
            found += rows
            if not more:
                self._released.remove(bin)
                if self._stashed[bin].least is None:
                    del self._stashed[bin]
        return found, bool(self._released)

    def shed(self) -> bool:
        """Move some of what waits in memory to disk; whether there is any."""
        return any(pool.shed() for pool in self._stashed.values())

    @property
    def owed(self) -> Iterator[Time]:
        """The times at which something is owed on behalf of bins on their way."""
        for pool in self._stashed.values():
            yield from pool.owed
        yield from (time for time, _ in self._queued)
        yield from (incoming.time for incoming in self._installing)
        yield from (time for time, _ in self._unreadable.values())

    @property
    def ahead(self) -> Iterator[Time]:
        """The times of what need wait no longer, or lower bounds of them."""
        for bin in self._released:
            yield from self._stashed[bin].owed

    @property
    def spilled(self) -> bool:
        """Whether anything that need wait no longer is on disk."""
        return any(self._stashed[bin].spilled for bin in self._released)

    @property
    def expecting(self) -> bool:
        """Whether bins are to come, at times that are certain."""
        return bool(self._awaited)

    @property
    def size(self) -> int:
        """About how many bytes of records wait for their bins in memory."""
        return sum(pool.size for pool in self._stashed.values())

    def has_come_since(self, bin: Bin, time: int) -> bool:
        """Whether a later state of the bin is here, or on its way into the store."""
        return self._newest.get(bin, -1) > time

    def busy(self) -> bool:
        """Whether installations are under way."""
        return bool(self._installing or self._queued) or self._staging.busy

    def _late(self) -> list[Bin]:
        """The bins that have come while what lies on the topic of them is being fetched."""
        queued = (delivery.manifest.bin for _, delivery in self._queued)
        return [bin for bin in queued if self._staging.under_way(bin)]

    def _begin(self, time: Time, delivery: BinHandoff) -> IncomingBin:
        """The last of a bin has come. What is written anew was first told of at an earlier time."""
        manifest = delivery.manifest
        self._newest[manifest.bin] = manifest.epoch
        first, _ = self._unreadable.get((manifest.bin, manifest.epoch), (time, delivery))
        ahead = self._staging.claim(manifest.bin)
        rest = self._pace.due.admit(
            LayerLoader(self._store, manifest, self._topic, ahead.layers, ahead.timers)
        )
        return IncomingBin(first, delivery, rest, ahead)

    def _install(self, incoming: IncomingBin) -> bool:
        """Install a little; whether it is over. Raises what cannot be read when it comes again."""
        manifest, rest = incoming.delivery.manifest, incoming.installation
        move = manifest.bin, manifest.epoch
        try:
            if not (rest.step(ENTRIES) and self._out(manifest.epoch)):
                return False
        except MeanderError as error:
            if move in self._unreadable:
                raise
            self._unreadable[move] = incoming.time, incoming.delivery
            self._trace.condemn(manifest.layers)
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
        """The layers of a bin are installed, the last of which had these timers: what they lack the
        next one is to have."""
        if remainder.keys:
            self._store.install_changed(bin, remainder.keys, remainder.states)
        if remainder.timers is not None:
            self._store.mark(bin)
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
