"""The keyed operator (Megaphone's S), for any logic and any number of inputs.

Guarantees I2 and I3: a record (bin b, time s) is applied here only while b's state is here for s.
Records are applied in the total order once their time has passed (`order="event"`), or on arrival
(`order="processing"`). Its output frontier never passes waiting records, timers or incoming bins.

Invariant: records that wait for a bin are applied before any later record of that bin. Waiting
records spill past a bound. The operator receives none while they exceed it or the output is blocked
(I6). Cost: per slice one multi-get and one write of the keys in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.control.logic_timeline import LogicTimeline
from meander.dataflow.operators.adaptive_batch import AdaptiveBatch
from meander.dataflow.operators.buffer.rows import EMPTY, Rows, in_order
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.alarms import AlarmClock
from meander.dataflow.operators.keyed.callbacks import AlarmCalls, Calls, without_function
from meander.dataflow.operators.keyed.logic import Logic
from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.run_end import RunEnd
from meander.dataflow.operators.keyed.spilling_queue import NEAR_BYTES
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort, least_of
from meander.dataflow.operators.retries import Retries
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import (
    Iterations,
    iterations_of,
    nested_time,
    outer_frontier,
    outer_time,
    passed_frontier,
    total_order_key,
)
from meander.state.encoding.codec import Sealed
from meander.state.encoding.timers import ROW
from meander.state.keys.ids import Bin
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME, MIN_TIME, Time, to_millis

Order = Literal["event", "processing"]
SLICE = 3072
"""Records applied per turn, so that no turn is long."""
NEAR_SHARE = 16
"""The part of the bound of waiting records that bounds near timers."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of the logic, and the time of the change behind it, or None."""

    logic: Logic
    until: int | None


class KeyedOperator(StatefulOperator):
    """A keyed operator that applies records to the states of their keys on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        origin: int,
        inputs: Sequence[InputPort],
        handoffs: InputPort,
        outputs: Sequence[OutputPort],
        held: OutputPort | None,
        logic: LogicTimeline[Logic],
        store: Store,
        order: Order,
        inputs_first: bool,
        max_handoff_bytes: int,
        downstream_passed: Callable[[int], bool],
        retries: Retries | None = None,
    ) -> None:
        """Take the arguments of a stateful operator, besides its own. With `inputs_first` the
        records of one time are applied input by input. `retries` are those of its functions."""
        super().__init__(
            context, handoffs, outputs, store, max_handoff_bytes, downstream_passed, held
        )
        self.timers.set_max_bytes(min(NEAR_BYTES, context.max_waiting // NEAR_SHARE))
        self._notifications = Notifications()
        self._origin, self._inputs = origin, inputs
        self._timeline, self._order, self._retries = logic, order, retries
        self._inputs_first = inputs_first
        self._memory_limit = MemoryLimit(f"operator {self.name!r}", context.max_waiting)
        self._waiting = context.buffer("records")
        self._max_waiting, self._over_limit = context.max_waiting, False
        self._end = RunEnd(context, self.timers)
        self._clock, self._batch_size = context.clock, AdaptiveBatch(context.clock, SLICE)
        self._alarms = None if held is None else AlarmClock(self.timers, self._clock, retries)
        self._queue: deque[tuple[int, Rows]] = deque()
        self._queued_bytes = 0

    def schedule(self) -> bool:
        """Install bins, receive records, apply ready ones, and make due calls. Return whether the
        operator worked."""
        frontier, least = self._complete_frontier(), self.timers.least
        retired = self._end.step()
        if self.incoming.is_ordering:
            self.incoming.note_passed(outer_frontier(self._call_frontier(frontier)))
        installed = self.incoming.schedule(self._outputs.retain)
        blocked = self._outputs.blocked
        received = not (blocked or self._over_limit) and self._receive()
        released = self._enqueue_released()
        ready = self._enqueue_ready(frontier)
        applied = not (blocked or self._rests) and self._apply(frontier)
        # A cancelled far timer may have held a time until now.
        passed = self.timers.least != least
        worked = retired or installed or received or released or ready or applied or passed
        if self._alarms is not None:
            worked |= not (blocked or self._rests) and self._call_alarms(frontier)
            worked |= self._alarms.pending and self._outputs.held != self._alarm_times(frontier)
        if worked or self._over_limit:
            worked |= self._spill()
            self._downgrade()
        return worked

    @property
    def _rests(self) -> bool:
        """Whether a record waits for another call of a function."""
        return self._retries is not None and self._retries.waiting

    def order_around_move(self, bin: Bin, time: int) -> None:
        """Order a bin's in-flight records around its move at `time` in an earlier execution. In
        the order of event time no such care is needed."""
        if self._order == "processing":
            self.incoming.order_around_move(bin, time)

    def in_flight(self) -> Iterable[InFlight]:
        """Return the records that wait for their time, their bin or their turn."""
        queued = [rows.isolated() for _, rows in self._queue]
        waiting = chain(queued, self.incoming.stashed, self._waiting.rows())
        return chain.from_iterable(map(self._by_input, waiting))

    def _by_input(self, rows: Rows) -> Iterator[InFlight]:
        for number in np.unique(rows.inputs).tolist():
            some, _ = rows.split(rows.inputs == number)
            yield InFlight(self._inputs[number].location, some.least_time, some.batch)

    def states(self, bin: Bin, now: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys of a bin with their encoded states, without those that have expired at
        a time."""
        return (one for one in super().states(bin, now) if not one[0].startswith(ROW))

    @property
    def notifications(self) -> list[tuple[Time, bytes]]:
        """Return the notifications in order."""
        return self._notifications.all()

    def start(self, notifications: Iterable[tuple[Time, bytes]]) -> None:
        """Add restored notifications, once all states and timers are restored."""
        for time, key in notifications:
            self._notifications.request(time, key)
        self._expect_alarms()
        self._downgrade()

    # -- records

    def _complete_frontier(self) -> Antichain:
        """Return the frontier before which all records, and decisions about their owners, have
        arrived."""
        passed = self._control()
        for port in self._inputs:
            passed = passed.meet(port.frontier)
        return passed

    def _receive(self) -> bool:
        received = False
        for number, port in enumerate(self._inputs):
            for message in port.consume():
                received = True
                assert isinstance(message.payload, Batch)
                self._outputs.retain(message)
                iterations = iterations_of(message.time)
                self._waiting.add(Rows.of(message.payload, number, iterations, message.arrived_at))
        return received

    def _spill(self) -> bool:
        """Spill records where too many wait. Return whether any record was spilled. Raises
        MeanderError for too many notifications, which stay in memory."""
        calls = self._notifications.size
        if calls > self._memory_limit.max_bytes:
            since = to_millis(min(map(outer_time, self._notifications.least_times)))
            self._memory_limit.check(calls, f"notifications wait for its time to pass {since} ms")
        waiting = self._waiting.size + self._queued_bytes + self.incoming.size
        self._over_limit = waiting > self._max_waiting
        return self._over_limit and (bool(self._waiting.spill_some()) or self.incoming.spill_some())

    def _enqueue_ready(self, frontier: Antichain) -> bool:
        if self._waiting.spilled and not self._precedes(self._waiting.pending_times):
            return False
        bound = frontier if self._order == "event" else self._control()
        ready, more = self._waiting.pop_passed(bound)
        applicable = [self.incoming.stash(r, self._bins(r.batch)) for r in self._ordered(ready)]
        if more:
            # Records of a slice may be earlier than those released with a bin.
            self._merge([rows for rows in applicable if len(rows)])
        else:
            for rows in applicable:
                self._enqueue(rows)
        return bool(ready) or more

    def _ordered(self, batches: list[Rows]) -> list[Rows]:
        if not batches:
            return []
        if self._order == "event":
            return in_order(batches, self._inputs_first)
        return [Rows.concat(batches)]

    def _enqueue_released(self) -> bool:
        """Queue the released records of installed bins before later records of these bins. Return
        whether there were any, or more remain."""
        if self.incoming.spilled and not self._precedes(self.incoming.released_times):
            return False
        released, more = self.incoming.pop_released()
        self._merge(released)
        return bool(released) or more

    def _precedes(self, times: Iterable[Time]) -> bool:
        """Return whether any of some times precedes all queued records."""
        if not self._queue:
            return True
        least, rows = self._queue[0]
        head = total_order_key(nested_time(least, rows.iterations))
        return self._order == "event" and any(total_order_key(time) < head for time in times)

    def _merge(self, batches: list[Rows]) -> None:
        if not batches:
            return
        ordered = self._ordered([*batches, *(rows for _, rows in self._queue)])
        self._queue.clear()
        self._queued_bytes = 0
        for rows in ordered:
            self._enqueue(rows)

    def _enqueue(self, rows: Rows) -> None:
        rest = rows
        while len(rest):
            piece, rest = rest.split_at(SLICE)
            self._queue.append((piece.least, piece))
            self._queued_bytes += piece.batch.weight

    def _bins(self, batch: Batch) -> Int64s:
        assert batch.hashes is not None
        return self._space.bins_of(batch.hashes)

    # -- applying

    def _apply(self, frontier: Antichain) -> bool:
        applied = False
        if not self._queue and self.timers.first is None and self._notifications.first is None:
            return False
        if self._alarms is not None and self._alarms.failed:
            return False
        budget = self._batch_size.rows
        while budget > 0 and not self._rests:
            done = self._apply_some(frontier, budget)
            if not done:
                break
            budget -= done
            applied = True
        return applied

    def _call_alarms(self, frontier: Antichain) -> bool:
        """Call the alarms that are due, at the earliest time at which the operator may still
        send. Return whether there were any."""
        assert self._alarms is not None
        time = self._reached(frontier)
        due = self._alarms.due(time, self._batch_size.rows)
        if time is None or not due:
            return False
        version = self._version_at(time)
        self._outputs.call_at(time)
        calls = AlarmCalls(
            self.name, self._origin, self._space, self.timers, self._notifications,
            version.logic.call_kinds, time, due, self._clock.now_ms,
        )  # fmt: skip
        self._run(version.logic, EMPTY, calls)
        self._alarms.note_called()
        return True

    def _alarm_times(self, frontier: Antichain) -> tuple[Time, ...]:
        """Return the time to hold for pending alarms, if any."""
        time = self._reached(frontier)
        held = self._outputs.held
        if time is None or not held or self._alarms is None or not self._alarms.pending:
            return ()
        # A restore holds times that this worker's frontier has not reached.
        return (max(time, *map(outer_time, held)),)

    def _reached(self, frontier: Antichain) -> int | None:
        """Return the earliest time at which the operator may still send; None where its inputs have
        ended."""
        times = (*self._call_frontier(frontier), *self._call_times())
        return min(map(outer_time, times), default=None)

    def _on_installed(self, bin: Bin, time: int) -> None:
        self._expect_alarms()
        self._end.note_arrival(bin, time)
        if self._alarms is not None:
            self.timers.note_arrival(bin, time)

    def _expect_alarms(self) -> None:
        """Raise MeanderError for alarms without a function for them."""
        if self._alarms is None and self.timers.alarms.bins:
            raise without_function(self.name, "alarm")

    def wait_seconds(self) -> float | None:
        """Return a short time while layers are being read, or the seconds until the next alarm, or
        until a function is called again on a record."""
        again = None if self._retries is None else self._retries.wait_seconds()
        alarm = None
        if self._alarms is not None and self._outputs.held and again is None:
            alarm = self._alarms.wait_seconds()
        waits = (super().wait_seconds(), again, alarm)
        return min((wait for wait in waits if wait is not None), default=None)

    def decode(self, state: bytes) -> object:
        """Return a state of `states` in the form of the version that the next records meet."""
        time = min(map(outer_time, self._control()), default=END_TIME)
        return self._timeline.at(time).sealing.unseal(Sealed(state))

    def _apply_some(self, frontier: Antichain, max_count: int) -> int:
        """Apply the next records, and make the calls before, between and behind them. Return the
        number of both."""
        logic, rows, calls = self._next(frontier, max_count)
        if calls.next() is None and not len(rows):
            return 0
        return self._run(logic, rows, calls)

    def _run(self, logic: Logic, rows: Rows, calls: Calls) -> int:
        """Apply records and make calls in one pass. Return the number of both."""
        started_at = self._clock.undisturbed()
        bins = self._bins(rows.batch)
        applied = logic.apply(self.store, bins, rows, calls)
        np.add.at(self.heat, bins[: applied.rows], 1)
        if applied.called is not None:
            np.add.at(self.heat, self._bins(applied.called), 1)
        for number, batch in enumerate((applied.results, *applied.side_outputs)):
            if len(batch):
                self._batch_size.count_output(batch.estimated_weight)
                time = nested_time(int(batch.times.min()), calls.iterations)
                self._outputs.send(time, batch, number)
        self._drop(applied.rows)
        self._inputs[0].latency.complete_each(rows.arrivals[: applied.rows])
        count = applied.rows + (0 if applied.called is None else len(applied.called))
        self._batch_size.adapt(count, self._clock.undisturbed() - started_at)
        return count

    def _next(self, frontier: Antichain, max_count: int) -> tuple[Logic, Rows, Calls]:
        """Return the first queued records and the calls among them, with the version of the logic
        that all of them have. The records stay queued."""
        if self._order == "event" and not self._is_in_loop:
            rows = self._peek(max_count)
            version = self._version_at(*rows.batch.times[:1].tolist(), *self._first_calls())
            if version.until is not None:
                rows = rows.between(0, int(np.searchsorted(rows.batch.times, version.until)))
            bound = self._call_frontier(frontier, len(rows))
            calls = self._calls(bound, (), max_count, version)
            if not version.logic.call_kinds:
                return version.logic, rows, calls
            return version.logic, rows.between(0, calls.count_before_calls(rows.batch.times)), calls
        # Records on arrival are in no order of time, and a loop separates records of one time:
        # calls come before them.
        bound = self._call_frontier(frontier)
        version = self._version_at(*self._first_calls())
        calls = self._calls(bound, self._notifications.iterations, max_count, version)
        if calls.next() is not None:
            return version.logic, EMPTY, calls
        rows = self._peek(max_count)
        rows = rows.between(0, self._timeline.count_equal(rows.batch.times))
        version = self._version_at(*rows.batch.times[:1].tolist())
        return version.logic, rows, self._calls(bound, rows.iterations, max_count, version)

    def _version_at(self, *times: int) -> _Version:
        """Return the version at the least of some times; any one where there is no time."""
        time = min(times, default=MIN_TIME)
        return _Version(self._timeline.at(time), self._timeline.next_change(time))

    def _first_calls(self) -> Iterator[int]:
        """Yield the outer times of the first timer and the first notification."""
        for first in (self.timers.first, self._notifications.first):
            if first is not None:
                yield outer_time(first[0])

    @property
    def _is_in_loop(self) -> bool:
        iterations = self._notifications.iterations
        return bool(iterations or (self._queue and self._queue[0][1].iterations))

    def _calls(
        self, bound: Antichain, iterations: Iterations, max_count: int, version: _Version
    ) -> Calls:
        until, limits = passed_frontier(bound, iterations), self._end.limits
        if version.until is not None:
            limits = *limits, version.until
        if limits:
            until = Antichain.of(*map(outer_time, until), *limits)
        return Calls(
            self.name, self._origin, self._space, self.timers, self._notifications,
            version.logic.call_kinds, iterations, until, max_count, self._clock.now_ms,
        )  # fmt: skip

    def _call_frontier(self, frontier: Antichain, applied: int = 0) -> Antichain:
        """Return a frontier: `applied` queued records may be before it, and calls. No other record
        is, waiting or still to arrive."""
        return Antichain.of(*frontier, *self._earlier_times(applied))

    def _overtakes(self) -> bool:
        """Return whether records on disk precede the queued ones, so that these have to wait."""
        if not (self._waiting.spilled or self.incoming.spilled):
            return False
        return self._precedes(chain(self._waiting.pending_times, self.incoming.released_times))

    def _earlier_times(self, applied: int = 0) -> Iterator[Time]:
        """Yield times, or lower bounds, of the records that precede later calls. The first
        `applied` queued records are not among them."""
        yield from self._queued_times(applied)
        yield from self._waiting.pending_times
        yield from self.incoming.released_times

    def _queued_times(self, applied: int) -> Iterator[Time]:
        if self._order != "event":
            yield from (nested_time(least, rows.iterations) for least, rows in self._queue)
        elif self._queue:
            least, rows = self._queue[0]
            if not applied:
                yield nested_time(least, rows.iterations)
            elif applied < len(rows):
                yield nested_time(int(rows.batch.times[applied]), rows.iterations)
            elif len(self._queue) > 1:
                least, rows = self._queue[1]
                yield nested_time(least, rows.iterations)

    def _peek(self, max_count: int) -> Rows:
        """Return the first queued records of one slice. They stay queued."""
        if not self._queue or self._overtakes():
            return EMPTY
        return self._queue[0][1].between(0, max_count)

    def _drop(self, count: int) -> None:
        """Remove the first `count` queued records, which are applied."""
        if count:
            _, rows = self._queue.popleft()
            self._queued_bytes -= rows.batch.weight
            if count < len(rows):
                rest = rows.between(count, len(rows))
                self._queue.appendleft((rest.least, rest))
                self._queued_bytes += rest.batch.weight

    # -- capabilities

    def _downgrade(self) -> None:
        queued = (nested_time(least, rows.iterations) for least, rows in self._queue)
        waiting = (*self._waiting.pending_times, *queued, *self.incoming.pending_times)
        least = least_of(*waiting, *self._call_times())
        self._outputs.downgrade(*least)
        if self._alarms is not None:
            held = self._alarm_times(self._complete_frontier()) if self._alarms.pending else ()
            self._outputs.downgrade_held(*least_of(*least, *held))

    def _call_times(self) -> tuple[Time, ...]:
        return least_of(self.timers.least, *self._notifications.least_times)
