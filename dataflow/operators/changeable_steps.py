"""A chain of stateless steps of which some have changeable logic.

Guarantees that a record meets, at each step, the version of its time: it waits until the control
frontier has passed that time, so every earlier change is known. Records of one partition keep their
order. Waiting records have a capability, and spill past a bound (I6). Cost: the wait for the
control frontier, and one pass per version in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from meander.dataflow.control.logic_timeline import LogicTimeline
from meander.dataflow.operators.adaptive_batch import AdaptiveBatch
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import BaseOperator, InFlight, InputPort, OutputPort, least_of
from meander.dataflow.operators.stateless import MAX_ROWS, Step, apply_chain
from meander.dataflow.operators.waiting_records import receive_records
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.loop_times import nested_time


class ChangeableSteps(BaseOperator):
    """A chain of stateless steps on one worker, each with the versions of its logic."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        steps: Sequence[tuple[LogicTimeline[Step], Guard]],
    ) -> None:
        self._input, self._output, self._steps = source, output, steps
        self._control, self._max_waiting = context.control, context.max_waiting
        self._waiting, self._ready = context.buffer("records"), deque[Rows]()
        self._batch_size = AdaptiveBatch(context.clock, MAX_ROWS)
        self._capabilities = CapabilitySet()
        self._over_limit = False

    def schedule(self) -> bool:
        """Receive records, and apply the chain to those of passed times. Return whether it
        worked."""
        if self._input.empty and self._waiting.empty and not self._ready:
            return False
        worked = not self._over_limit and self._receive()
        if not self._ready:
            passed, more = self._waiting.pop_passed(self._control())
            self._ready += passed
            worked |= bool(passed) or more
        rows = self._batch_size.rows
        while self._ready and rows > 0 and not (self._output.blocked() or self._rests):
            rows -= self._apply_next(rows)
            worked = True
        if worked or self._over_limit:
            worked |= self._spill()
            ready = (some.least_time for some in self._ready)
            self._capabilities.downgrade(*least_of(*self._waiting.pending_times, *ready))
        return worked

    def in_flight(self) -> Iterable[InFlight]:
        """Return the records that wait."""
        at, rows = self._input.location, chain([*self._ready], self._waiting.rows())
        return (InFlight.isolated(at, some.least_time, some.batch) for some in rows)

    def _receive(self) -> bool:
        return receive_records(self._input, self._output, self._capabilities, self._waiting)

    def _spill(self) -> bool:
        """Spill records where too many wait. Return whether any record was spilled."""
        self._over_limit = self._waiting.size > self._max_waiting
        return self._over_limit and bool(self._waiting.spill_some())

    @property
    def _rests(self) -> bool:
        return any(guard.waiting for _, guard in self._steps)

    def wait_seconds(self) -> float | None:
        """Return the seconds until a function is called again on a record, or None."""
        retries = (guard.retries.wait_seconds() for _, guard in self._steps if guard.retries)
        return min((seconds for seconds in retries if seconds is not None), default=None)

    def _apply_next(self, most: int) -> int:
        """Apply the chain to the next records that have one version at each step, at most `most`.
        Return their number. A chain with retries has one step, so records from a failed call on
        stay ready."""
        rows = self._ready.popleft()
        times = rows.batch.times[:most]
        count = min(timeline.count_equal(times) for timeline, _ in self._steps)
        rows, rest = rows.split_at(count)
        if len(rest):
            self._ready.appendleft(rest)
        at = int(rows.batch.times[0])
        versions = [(timeline.at(at), guard) for timeline, guard in self._steps]
        with self._batch_size.measure(count):
            batch, output_bytes = apply_chain(versions, rows.batch)
            self._batch_size.count_output(output_bytes)
        done = min(guard.end_pass(count) for _, guard in self._steps)
        if done < count:
            rows, rest = rows.split_at(done)
            self._ready.appendleft(rest)
        if len(batch):
            time = nested_time(int(batch.times.min()), rows.iterations)
            self._output.send(self._capabilities.capability_for(time), time, batch)
        self._input.latency.complete_each(rows.arrivals)
        return count
