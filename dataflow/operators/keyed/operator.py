"""The keyed operator (Megaphone's S), for any logic and any number of inputs.

Guarantees I2 and I3: a record (bin b, time s) is applied here only while b's state is here for s.
Records are applied in the total order once their time has passed (`order="event"`), or on arrival
(`order="processing"`). Its output frontier never passes waiting records, timers or incoming bins.

Invariant: records that wait for a bin are applied before any later record of that bin. Waiting
records spill past a bound, and the operator takes none while it is exceeded or the output blocked
(I6). Cost: per slice one multi-get and one write of the keys in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import numpy as np

from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.operators.adaptive_batch import AdaptiveBatch
from meander.dataflow.operators.buffer.rows import EMPTY, Rows, in_order
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.incoming_bins import IncomingBins
from meander.dataflow.operators.keyed.logic import Logic
from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.output_group import Outputs
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import (
    Rounds,
    at,
    outer,
    outward,
    place,
    rounds_of,
    settled,
)
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time, to_millis

Order = Literal["event", "processing"]
SLICE = 3072
"""Records applied per turn, so that no turn is long."""


class KeyedOperator(BaseOperator):
    """A keyed operator that applies records to the states of their keys on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        origin: int,
        inputs: Sequence[InputPort],
        pointers: InputPort,
        outputs: Sequence[OutputPort],
        logic: Logic,
        store: Store,
        order: Order,
        most_delivered: int,
        out: Callable[[int], bool],
    ) -> None:
        """Take ports, logic and store. `out` tells whether all results before a time have left by
        the sinks behind the operator."""
        self.name, self.store, self.timers = context.name, store, Timers()
        self._notices = Notifications()
        self.heat: Int64s = np.zeros(context.space.count, np.int64)
        """Records applied so far, by bin."""
        self._origin, self._inputs, self._outputs = origin, inputs, Outputs(outputs)
        self._logic, self._order, self._space = logic, order, context.space
        self._control = context.control
        self._bound = MemoryLimit(f"operator {self.name!r}", context.max_waiting)
        self.trace = BinLayers(
            self.name, store, context.topic, context.next_layer, context.retention
        )
        self.arrivals = IncomingBins(context, self.trace, store, self.timers, pointers, out)
        self._waiting, self._most_delivered = context.buffer("records"), most_delivered
        self._most, self._over = context.max_waiting, False
        self._clock, self._slices = context.clock, AdaptiveBatch(context.clock, SLICE)
        self._queue: deque[tuple[int, Rows]] = deque()
        self._queued_bytes = 0

    @property
    def frontier(self) -> Antichain:
        """Return the output frontier of all workers in outer time. State before it is final."""
        return outward(self._outputs.frontier)

    def schedule(self) -> bool:
        """Install bins, take records, apply ready ones, and make due calls. Return whether the
        operator worked."""
        frontier = self._passed()
        if self.arrivals.following:
            self.arrivals.passed(outward(self._until(frontier)))
        installed = self.arrivals.schedule(self._outputs.retain)
        blocked = self._outputs.blocked
        received = not (blocked or self._over) and self._receive()
        admitted = self._admit()
        ready = self._ready(frontier)
        applied = not blocked and self._apply(frontier)
        worked = installed or received or admitted or ready or applied
        if worked or self._over:
            worked |= self._relieve()
            self._keep()
        return worked

    def wait_seconds(self) -> float | None:
        """Return a short time while layers are being read."""
        return 0.001 if self.arrivals.busy() else None

    def finished(self) -> bool:
        """Return whether no bin is incoming."""
        return not self.arrivals.busy()

    def delivery(self, bin: Bin, at: int) -> BinHandoff | None:
        """Return the bin handoff at the time `at`, once the output frontier has reached `at`.
        Return None where its delta is not small."""
        remainder = self.trace.pop_delta(bin, self.timers.of(bin), self._most_delivered)
        if remainder is None:
            return None
        return BinHandoff(Manifest(self.name, bin, at, self.trace.layers(bin)), remainder)

    def extraction(self, bin: Bin, at: int) -> LayerWriter:
        """Return a layer writer for the same bin, for a delta of any size."""
        return self.trace.write(bin, at, self.timers.of(bin))

    def standing(self, bin: Bin) -> Manifest | None:
        """Return the manifest of a bin with a delta that fits a bin handoff, else None."""
        if not self.trace.has_small_delta(bin, self._most_delivered // 2):
            return None
        return Manifest(self.name, bin, self._now, self.trace.layers(bin))

    def snapshot(self, bin: Bin) -> LayerWriter:
        """Return a layer writer for the current state of a bin."""
        return self.trace.write(bin, self._now, self.timers.all(bin), rebase=True)

    @property
    def _now(self) -> int:
        return min(map(outer, self._outputs.frontier), default=MIN_TIME)

    def follow(self, bin: Bin, time: int) -> None:
        """Order a bin's records around its move at `time`, from before the recovery that this
        execution began with. The order of time does this by itself."""
        if self._order == "processing":
            self.arrivals.follow(bin, time)

    def departed(self, bin: Bin) -> Sequence[tuple[int, bytes]]:
        """Release a bin that moves to its new owner, and return the timers that travel with it."""
        self.trace.release(bin)
        timers = self.timers.of(bin)
        self.timers.departed(bin)
        self._keep()
        return timers

    # -- checkpoints

    def freeze(self, at: CheckpointId, others: Collection[Bin]) -> None:
        """Freeze the installed bins for a checkpoint. `others` are retained bins, or bins that are
        still being loaded."""
        coming = {delivery.manifest.bin for delivery in self.arrivals.deliveries}
        bins = sorted(self._held - coming - self.arrivals.staged - set(others))
        timers = {bin: self.timers.all(bin) for bin in self.timers.bins}
        self.trace.freeze(at, bins, timers, self._now)
        self.store.record_checkpoint(at, {bin: timers.get(bin, ()) for bin in bins})

    def settle(self, at: CheckpointId) -> None:
        """Note that a checkpoint is complete."""
        self.trace.complete_checkpoint(at)
        self.store.complete_checkpoint(at)

    def begins(self, at: CheckpointId) -> None:
        """Note that all bins are here as a checkpoint holds them."""
        self.store.record_checkpoint(at, {bin: self.timers.all(bin) for bin in self._held})

    @property
    def _held(self) -> set[Bin]:
        return {*self.store.bins(), *self.trace.bins, *self.timers.bins, *self.store.changed_bins()}

    def underway(self) -> Iterable[InFlight]:
        """Return the records that wait for their time, their bin or their turn."""
        queued = [rows.isolated() for _, rows in self._queue]
        waiting = chain(queued, self.arrivals.stashed, self._waiting.rows())
        return chain.from_iterable(map(self._by_input, waiting))

    def _by_input(self, rows: Rows) -> Iterator[InFlight]:
        for side in np.unique(rows.sides).tolist():
            some, _ = rows.split(rows.sides == side)
            yield InFlight(self._inputs[side].location, some.least_time, some.batch)

    @property
    def notices(self) -> list[tuple[Time, bytes]]:
        """Return the notifications in order."""
        return self._notices.all()

    def resume(self, bottom: Time) -> None:
        """Hold a capability from `bottom` on while states and timers are being restored."""
        self._outputs.open(bottom)

    def begin(self, notices: Iterable[tuple[Time, bytes]]) -> None:
        """Add restored notifications, as all states and timers are here."""
        for time, key in notices:
            self._notices.ask(time, key)
        self._keep()

    # -- records

    def _passed(self) -> Antichain:
        """Return the frontier before which all records have arrived, and all decisions about their
        owners."""
        passed = self._control()
        for port in self._inputs:
            passed = passed.meet(port.frontier)
        return passed

    def _receive(self) -> bool:
        received = False
        for side, port in enumerate(self._inputs):
            for message in port.hold():
                received = True
                assert isinstance(message.payload, Batch)
                self._outputs.retain(message)
                rounds = rounds_of(message.time)
                self._waiting.add(Rows.of(message.payload, side, rounds, message.arrived))
        return received

    def _relieve(self) -> bool:
        """Spill records where too many wait, and return whether any were spilled. Raises
        MeanderError for too many timers, which stay in memory."""
        calls = self.timers.size + self._notices.size
        if calls > self._bound.most:
            since = to_millis(min(map(outer, self._owed_calls())))
            self._bound.check(calls, f"timers wait for its time to pass {since} ms")
        waiting = self._waiting.size + self._queued_bytes + self.arrivals.size
        self._over = waiting > self._most
        return self._over and (bool(self._waiting.shed()) or self.arrivals.shed())

    def _ready(self, frontier: Antichain) -> bool:
        if self._waiting.spilled and not self._precedes(self._waiting.owed):
            return False
        bound = frontier if self._order == "event" else self._control()
        ready, more = self._waiting.passed(bound)
        mine = [self.arrivals.stash(r, self._bins(r.batch)) for r in self._ordered(ready)]
        if more:
            # Records of a slice may be earlier than those released with a bin.
            self._merge([rows for rows in mine if len(rows)])
        else:
            for rows in mine:
                self._enqueue(rows)
        return bool(ready) or more

    def _ordered(self, many: list[Rows]) -> list[Rows]:
        if not many:
            return []
        return in_order(many) if self._order == "event" else [Rows.concat(many)]

    def _admit(self) -> bool:
        """Queue the released records of installed bins before later records of these bins. Return
        whether there were any, or more remain."""
        if self.arrivals.spilled and not self._precedes(self.arrivals.ahead):
            return False
        released, more = self.arrivals.release()
        self._merge(released)
        return bool(released) or more

    def _precedes(self, times: Iterable[Time]) -> bool:
        """Return whether any of these times comes before all queued records."""
        if not self._queue:
            return True
        least, rows = self._queue[0]
        head = place(at(least, rows.rounds))
        return self._order == "event" and any(place(time) < head for time in times)

    def _merge(self, many: list[Rows]) -> None:
        if not many:
            return
        ordered = self._ordered([*many, *(rows for _, rows in self._queue)])
        self._queue.clear()
        self._queued_bytes = 0
        for rows in ordered:
            self._enqueue(rows)

    def _enqueue(self, rows: Rows) -> None:
        rest = rows
        while len(rest):
            piece, rest = rest.cut(SLICE)
            self._queue.append((piece.least, piece))
            self._queued_bytes += piece.batch.weight

    def _bins(self, batch: Batch) -> Int64s:
        assert batch.hashes is not None
        return self._space.bins_of(batch.hashes)

    # -- applying

    def _apply(self, frontier: Antichain) -> bool:
        applied = False
        if not self._queue and self.timers.first is None and self._notices.first is None:
            return False
        budget = self._slices.rows
        while budget > 0:
            done = self._apply_some(frontier, budget)
            if not done:
                break
            budget -= done
            applied = True
        return applied

    def _apply_some(self, frontier: Antichain, most: int) -> int:
        """Apply the next records, with the calls before, between and behind them. Return the number
        of both."""
        rows, calls = self._next(frontier, most)
        if calls.next() is None and not len(rows):
            return 0
        began = self._clock.monotonic()
        bins = self._bins(rows.batch)
        applied = self._logic.apply(self.store, bins, rows, calls)
        np.add.at(self.heat, bins[: applied.rows], 1)
        if applied.called is not None:
            np.add.at(self.heat, self._bins(applied.called), 1)
        for number, batch in enumerate((applied.results, *applied.beside)):
            if len(batch):
                self._slices.gave(batch.guessed_weight)
                self._outputs.send(at(int(batch.times.min()), calls.rounds), batch, number)
        self._drop(applied.rows)
        self._inputs[0].stay.over_each(rows.arrived[: applied.rows])
        count = applied.rows + (0 if applied.called is None else len(applied.called))
        self._slices.took(count, self._clock.monotonic() - began)
        return count

    def _next(self, frontier: Antichain, most: int) -> tuple[Rows, Calls]:
        """Return the first queued records, which stay queued, and the calls among them."""
        if self._order == "event" and not self._in_loop:
            rows = self._first(most)
            calls = self._calls(self._until(frontier, len(rows)), (), most)
            fit = calls.fits(rows.batch.times) if self._logic.answers else len(rows)
            return (rows if fit == len(rows) else rows.take(np.arange(fit))), calls
        # Records on arrival are in no order of time, and a loop separates those of one time:
        # calls come before them.
        bound = self._until(frontier)
        calls = self._calls(bound, self._notices.rounds, most)
        if calls.next() is not None:
            return EMPTY, calls
        rows = self._first(most)
        return rows, self._calls(bound, rows.rounds, most)

    @property
    def _in_loop(self) -> bool:
        return bool(self._notices.rounds or (self._queue and self._queue[0][1].rounds))

    def _calls(self, bound: Antichain, rounds: Rounds, most: int) -> Calls:
        return Calls(
            self.name, self._origin, self._space, self.timers, self._notices, self._logic.answers,
            rounds, settled(bound, rounds), most,
        )  # fmt: skip

    def _until(self, frontier: Antichain, taken: int = 0) -> Antichain:
        """Return the frontier before which only calls remain, and `taken` queued records. All other
        records, here or to come, are at its times or later."""
        return Antichain.of(*frontier, *self._ahead(taken))

    def _overtakes(self) -> bool:
        """Return whether queued records must wait for slices from disk, as timers lie between."""
        if not (self._waiting.spilled or self.arrivals.spilled):
            return False
        return self._precedes(chain(self._waiting.owed, self.arrivals.ahead))

    def _ahead(self, taken: int = 0) -> Iterator[Time]:
        """Yield the times of records that precede later calls, except the first `taken` queued
        ones. Lower bounds may replace times."""
        yield from self._queued(taken)
        yield from self._waiting.owed
        yield from self.arrivals.ahead

    def _queued(self, taken: int) -> Iterator[Time]:
        if self._order != "event":
            yield from (at(least, rows.rounds) for least, rows in self._queue)
        elif self._queue:
            least, rows = self._queue[0]
            if not taken:
                yield at(least, rows.rounds)
            elif taken < len(rows):
                yield at(int(rows.batch.times[taken]), rows.rounds)
            elif len(self._queue) > 1:
                least, rows = self._queue[1]
                yield at(least, rows.rounds)

    def _first(self, most: int) -> Rows:
        """Return the first queued records of one piece. They stay queued."""
        if not self._queue or self._overtakes():
            return EMPTY
        rows = self._queue[0][1]
        return rows if most >= len(rows) else rows.take(np.arange(most))

    def _drop(self, count: int) -> None:
        """Remove the first `count` queued records, which are applied."""
        if count:
            _, rows = self._queue.popleft()
            self._queued_bytes -= rows.batch.weight
            if count < len(rows):
                rest = rows.take(np.arange(count, len(rows)))
                self._queue.appendleft((rest.least, rest))
                self._queued_bytes += rest.batch.weight

    # -- capabilities

    def _keep(self) -> None:
        queued = (at(least, rows.rounds) for least, rows in self._queue)
        waiting = (*self._waiting.owed, *queued, *self.arrivals.owed)
        self._outputs.keep(*least_of(*waiting, *self._owed_calls()))

    def _owed_calls(self) -> tuple[Time, ...]:
        return least_of(self.timers.least, *self._notices.owed)
