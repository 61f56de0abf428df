"""The stateful operator: S of live reconfiguration, for any logic and any number of inputs.

Guarantees I2 and I3: a record (bin b, time s) is applied here only while b's state is here for
s, in the total order once its time has passed (`order="time"`) or as it comes
(`order="arrival"`). Its output frontier never passes what it still owes: records that wait,
timers, and bins on their way in. Invariant: what waits for a bin's arrival is applied before
anything later of that bin. Records that wait spill past a bound, and nothing is taken while that is
exceeded or the output blocked (I6). Cost: per slice one multi-get and one write of the keys in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from dataflow.batch import Batch, Int64s
from dataflow.bound import Bound
from dataflow.migrate.arrivals import Arrivals
from dataflow.migrate.delivery import Delivery
from dataflow.nested import Rounds, at, outer, outward, place, rounds_of
from dataflow.operators.base import InputPort, OutputPort, Quiet, Underway, least_of
from dataflow.operators.logic import Logic, Why
from dataflow.operators.notices import Notices
from dataflow.operators.outputs import Outputs
from dataflow.operators.pool import Pool
from dataflow.operators.rows import Rows, in_order
from dataflow.operators.slices import Slices
from dataflow.operators.timers import Timers
from dataflow.pace import Pace
from dataflow.protocols import Clock
from state.antichain import Antichain
from state.bins import BinSpace
from state.extraction import Extraction
from state.ids import Bin, CheckpointId, LayerId
from state.manifest import Manifest
from state.retention import Retention
from state.store import Bins, Store
from state.time import MIN_TIME, Time, to_millis
from state.topic import StateTopic
from state.trace import Trace

Order = Literal["time", "arrival"]
Work = Callable[[Store, Bins], Batch]
"""What is done with the states of a batch's keys, which lie in these bins."""

SLICE = 3072
"""Records applied per turn, so that no turn is long."""


class Keyed(Quiet):
    """One stateful operator on one worker."""

    def __init__(
        self,
        name: str,
        origin: int,
        inputs: Sequence[InputPort],
        pointers: InputPort,
        outputs: Sequence[OutputPort],
        logic: Logic,
        store: Store,
        order: Order,
        space: BinSpace,
        topic: StateTopic,
        next_layer: Callable[[], LayerId],
        control: Callable[[], Antichain],
        clock: Clock,
        bound: Bound,
        most_delivered: int,
        pools: Callable[[str], Pool],
        pace: Pace,
        report: Callable[[dict[str, object]], None],
        retention: Retention,
        out: Callable[[int], bool],
    ) -> None:
        """`out` says whether all results of before a time have left by the sinks behind it."""
        self.name, self.store, self.timers = name, store, Timers()
        self._notices = Notices()
        self.heat: Int64s = np.zeros(space.count, np.int64)
        """Records applied so far, by bin."""
        self._origin, self._inputs, self._outputs = origin, inputs, Outputs(outputs)
        self._logic, self._order, self._space = logic, order, space
        self._topic, self._control, self._bound = topic, control, bound
        self.trace = Trace(name, store, topic, next_layer, retention)
        self.arrivals = Arrivals(
            self.trace, store, self.timers, topic, pointers, pools, pace, report, out
        )
        self._waiting, self._most_delivered = pools("records"), most_delivered
        self._most, self._over = bound.most, False
        self._slices = Slices(clock, SLICE)
        self._queue: deque[tuple[int, Rows]] = deque()
        self._queued_bytes = 0

    @property
    def frontier(self) -> Antichain:
        """What may still leave, from any worker, in outer time: state before it is final."""
        return outward(self._outputs.frontier)

    def schedule(self) -> bool:
        """Install what arrives, take records, apply those whose turn it is, call back."""
        frontier = self._passed()
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
        """Soon, while layers are being read."""
        return 0.001 if self.arrivals.busy() else None

    def finished(self) -> bool:
        """Whether no bin is on its way in."""
        return not self.arrivals.busy()

    def delivery(self, bin: Bin, at: int) -> Delivery | None:
        """The bin as of `at`, once the output frontier has reached `at`, where little of it does
        not lie on the state topic."""
        remainder = self.trace.remainder(bin, self.timers.of(bin), self._most_delivered)
        if remainder is None:
            return None
        return Delivery(Manifest(self.name, bin, at, self.trace.layers(bin)), remainder)

    def extraction(self, bin: Bin, at: int) -> Extraction:
        """The same by way of the state topic, whatever it is."""
        return self.trace.write(bin, at, self.timers.of(bin))

    def standing(self, bin: Bin) -> Manifest | None:
        """The layers of a bin, where these lack so little that it can be handed over with it."""
        if not self.trace.lacks_little(bin, self._most_delivered // 2):
            return None
        return Manifest(self.name, bin, self._now, self.trace.layers(bin))

    def snapshot(self, bin: Bin) -> Extraction:
        """The bin's state as of about now."""
        return self.trace.write(bin, self._now, self.timers.all(bin), renew=True)

    @property
    def _now(self) -> int:
        return min(map(outer, self._outputs.frontier), default=MIN_TIME)

    def departed(self, bin: Bin) -> Sequence[tuple[int, bytes]]:
        """The bin is on its way to its new owner, and its timers with it: these."""
        self.trace.release(bin)
        timers = self.timers.of(bin)
        self.timers.departed(bin)
        self._keep()
        return timers

    # -- checkpoints

    def freeze(self, at: CheckpointId, others: Collection[Bin]) -> None:
        """A checkpoint is to have the bins that are here as they are now, but these: of those that
        have gone only copies are left, and some are still being loaded."""
        coming = {delivery.manifest.bin for delivery in self.arrivals.deliveries}
        bins = sorted(self._held - coming - self.arrivals.staged - set(others))
        timers = {bin: self.timers.all(bin) for bin in self.timers.bins}
        self.trace.freeze(at, bins, timers, self._now)
        self.store.remember(at, {bin: timers.get(bin, ()) for bin in bins})

    def settle(self, at: CheckpointId) -> None:
        """A checkpoint exists."""
        self.trace.settle(at)
        self.store.settle(at)

    def begins(self, at: CheckpointId) -> None:
        """All bins are here, as a checkpoint has them."""
        self.store.remember(at, {bin: self.timers.all(bin) for bin in self._held})

    @property
    def _held(self) -> set[Bin]:
        return {*self.store.bins(), *self.trace.bins, *self.timers.bins, *self.store.changed()}

    def underway(self) -> Iterable[Underway]:
        """What waits for its time, for its bin, or in line."""
        queued = [rows.isolated() for _, rows in self._queue]
        waiting = chain(queued, self.arrivals.stashed, self._waiting.rows())
        return chain.from_iterable(map(self._by_input, waiting))

    def _by_input(self, rows: Rows) -> Iterator[Underway]:
        for side in np.unique(rows.sides).tolist():
            some, _ = rows.split(rows.sides == side)
            yield Underway(self._inputs[side].location, some.least_time, some.batch)

    @property
    def notices(self) -> list[tuple[Time, bytes]]:
        """The calls that keys have asked for, in order."""
        return self._notices.all()

    def resume(self, bottom: Time) -> None:
        """States and timers are still to come, which may owe results of any time."""
        self._outputs.open(bottom)

    def begin(self, notices: Iterable[tuple[Time, bytes]]) -> None:
        """All states and timers are here, and keys have asked for these calls."""
        for time, key in notices:
            self._notices.ask(time, key)
        self._keep()

    # -- records

    def _passed(self) -> Antichain:
        """All records before this have come, and all commands that say whose they are."""
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
        """Make some room where too much waits; whether anything was done. Raises MeanderError where
        too many timers do, which stay in memory."""
        calls = self.timers.size + self._notices.size
        if calls > self._bound.most:
            since = to_millis(min(map(outer, self._calls())))
            self._bound.check(calls, f"timers wait for its time to pass {since} ms")
        waiting = self._waiting.size + self._queued_bytes + self.arrivals.size
        self._over = waiting > self._most
        return self._over and (bool(self._waiting.shed()) or self.arrivals.shed())

    def _ready(self, frontier: Antichain) -> bool:
        if self._waiting.spilled and not self._precedes(self._waiting.owed):
            return False
        bound = frontier if self._order == "time" else self._control()
        ready, more = self._waiting.passed(bound)
        mine = [self.arrivals.stash(r, self._bins(r.batch)) for r in self._ordered(ready)]
        if more:
            # What comes in slices may be earlier than what a bin has brought with it.
            self._merge([rows for rows in mine if len(rows)])
        else:
            for rows in mine:
                self._enqueue(rows)
        return bool(ready) or more

    def _ordered(self, many: list[Rows]) -> list[Rows]:
        if not many:
            return []
        return in_order(many) if self._order == "time" else [Rows.concat(many)]

    def _admit(self) -> bool:
        """Records whose bin has arrived come before all that is queued of that bin; whether any
        have been admitted, or moved in order to be."""
        if self.arrivals.spilled and not self._precedes(self.arrivals.ahead):
            return False
        released, more = self.arrivals.release()
        self._merge(released)
        return bool(released) or more

    def _precedes(self, times: Iterable[Time]) -> bool:
        """Whether any of these comes before all that is queued."""
        if not self._queue:
            return True
        least, rows = self._queue[0]
        head = place(at(least, rows.rounds))
        return self._order == "time" and any(place(time) < head for time in times)

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
        budget = self._slices.rows
        while budget > 0:
            done = self._apply_some(frontier, budget)
            if not done:
                break
            budget -= done
            applied = True
        return applied

    def _apply_some(self, frontier: Antichain, most: int) -> int:
        """The timers or notices that come next, or else the next records; how many."""
        due, notice = self.timers.next_due(frontier), self._notices.next_due(frontier)
        if due is not None and self._before_all(due) and (notice is None or due <= outer(notice)):
            return self._call_back(self.timers.take(due), due, "timer")
        if notice is not None and self._before_all(notice):
            return self._call_back(self._notices.take(notice), notice, "notice")
        if not self._queue or self._overtakes():
            return 0
        rows = self._slice(most)
        with self._slices.of(len(rows)):
            self._run(rows.batch, partial(self._logic.apply, rows=rows), rows.rounds)
        self._inputs[0].stay.over_each(rows.arrived)
        return len(rows)

    def _overtakes(self) -> bool:
        """Whether what is queued has to wait for slices of what is on disk: timers between the two
        do."""
        if not (self._waiting.spilled or self.arrivals.spilled):
            return False
        return self._precedes(chain(self._waiting.owed, self.arrivals.ahead))

    def _before_all(self, time: Time) -> bool:
        """Whether all records that need wait no longer come later in the total order."""
        return all(place(time) < place(ahead) for ahead in self._ahead())

    def _ahead(self) -> Iterator[Time]:
        """The times of records that are applied before later timers and notices."""
        yield from (at(least, rows.rounds) for least, rows in self._queue)
        yield from self._waiting.owed
        yield from self.arrivals.ahead

    def _slice(self, most: int) -> Rows:
        least, rows = self._queue.popleft()
        self._queued_bytes -= rows.batch.weight
        rows, rest = rows.cut(most)
        if len(rest):
            self._queue.appendleft((rest.least, rest))
            self._queued_bytes += rest.batch.weight
        if self._logic.timed and self._order == "time":
            # A timer set by these records may come before the next time's records.
            chosen = rows.batch.times == least
            rows, rest = rows.split(chosen)
            if len(rest):
                self._queue.appendleft((rest.least, rest))
                self._queued_bytes += rest.batch.weight
        return rows

    def _call_back(self, keys: list[bytes], time: Time, why: Why) -> int:
        hashes = self._space.hash_keys(keys)
        zeros = np.zeros(len(keys), np.int64)
        fired = Batch(
            zeros + outer(time),
            zeros + self._origin,
            hashes.view(np.int64),
            zeros + (why == "notice"),
            zeros,
            [None] * len(keys),
            keys,
            hashes,
        )
        self._run(fired, partial(self._logic.fire, fired=fired, why=why), rounds_of(time))
        return len(keys)

    def _run(self, batch: Batch, work: Work, rounds: Rounds = ()) -> None:
        bins = self._bins(batch)
        np.add.at(self.heat, bins, 1)
        results = work(self.store, bins)
        beside = self._logic.beside()
        for time, key in beside.timers:
            self.timers.set(Bin(self._space.bin_of(key)), time, key)
        for time, key in beside.notices:
            self._notices.ask(at(time, rounds), key)
        for number, batch in enumerate((results, *beside.batches)):
            if len(batch):
                self._slices.gave(batch.guessed_weight)
                self._outputs.send(at(int(batch.times.min()), rounds), batch, number)

    # -- what is owed

    def _keep(self) -> None:
        queued = (at(least, rows.rounds) for least, rows in self._queue)
        waiting = (*self._waiting.owed, *queued, *self.arrivals.owed)
        self._outputs.keep(*least_of(*waiting, *self._calls()))

    def _calls(self) -> tuple[Time, ...]:
        return least_of(self.timers.least, *self._notices.owed)
