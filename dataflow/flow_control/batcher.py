"""The batcher: it admits rows to the scope behind it in numbered batches (Faucet, section 4).

Guarantees that each worker has at most `in_flight` batches between its batcher and the ends of the
scope. Batches leave in the total order, once their times are closed. A batch is through when the
least time at all ends, of all workers, lies behind it in the total order. Batches that enter
together share a number, so steps behind get one message. Invariant: waiting rows have a capability;
the least waiting batch of all workers waits for no other, so loops do not block (I7). Past
`max_waiting` bytes of closed times the batcher takes no message; rows of open times go to disk
(I6). Cost: one sort of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import chain
from math import ceil

from meander.dataflow.flow_control.batch_numbers import BatchNumbers
from meander.dataflow.flow_control.batch_size import BatchSize
from meander.dataflow.flow_control.expansion import Expansion
from meander.dataflow.flow_control.ready_rows import ReadyRows
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.operators.ports import BaseOperator, InFlight
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import (
    iterations_of,
    nested_time,
    outer_time,
    passed_frontier,
)
from meander.state.times.time import Time

JOINED_ROWS = 1 << 12
"""The rows up to which batches share a number in any case, as a message costs as much as these.
Otherwise half of the batches in flight share one, so that two numbers overlap."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Batches of one number that are not through."""

    last: Time
    """The last time of their rows."""
    batches: int
    size: int
    """What their rows count together."""
    admitted_at: float
    """In seconds of the worker's clock."""


class Batcher(BaseOperator):
    """A batcher of one worker."""

    def __init__(
        self,
        services: OperatorServices,
        size: BatchSize,
        in_flight: int,
        ready: ReadyRows | Expansion,
    ) -> None:
        """`ready` sorts the rows of closed times, and gives them or their outputs."""
        context = services.context
        self._input, self._output, self._ends = services.input, services.output, services.ends
        self._clock, self._max_waiting = context.clock, context.max_waiting
        self._size, self._in_flight = size, in_flight
        self._open, self._ready = context.buffer("open"), ready
        self._numbers, self._admitted = BatchNumbers(), deque[Admitted]()
        self._capabilities = CapabilitySet()

    def schedule(self) -> bool:
        """Receive rows, note which batches are through, and admit others. Return whether the
        batcher worked."""
        worked = self._receive()
        worked |= self._complete_batches()
        worked |= self._admit_batches()
        if worked:
            self._capabilities.downgrade(*self._pending_times())
        return worked

    def in_flight(self) -> Iterable[InFlight]:
        """Return the rows that wait as of the call, with the least numbers that they may get."""
        at, numbers = self._input.location, copy(self._numbers)
        waiting = chain([*self._ready], self._open.rows())
        rows = chain.from_iterable(map(numbers.renumbered, waiting))
        return (InFlight.isolated(at, some.least_time, some.batch) for some in rows)

    def _receive(self) -> bool:
        """Receive messages, unless enough rows of closed times wait. Return whether there were
        any."""
        received = False
        while self._ready.size < self._max_waiting and not self._input.drained:
            message = next(self._input.consume())
            assert isinstance(message.payload, Batch)
            self._capabilities.retain(self._output.mint(message))
            iterations = iterations_of(message.time)
            self._open.add(Rows.of(message.payload, 0, iterations, message.arrived_at))
            received = True
        if received:
            self._open.spill_past(self._max_waiting)
        return received

    def _complete_batches(self) -> bool:
        """Forget the batches that are through. Return whether there were any."""
        before = len(self._admitted)
        while self._admitted and self._is_through(self._admitted[0]):
            done = self._admitted.popleft()
            seconds = self._clock.monotonic() - done.admitted_at
            self._size.measure(done.size // done.batches, seconds)
        return len(self._admitted) < before

    def _is_through(self, admitted: Admitted) -> bool:
        """Return whether the frontiers at all ends have passed batches in the total order."""
        time, iterations = outer_time(admitted.last), iterations_of(admitted.last)
        passed = (passed_frontier(end(), iterations) for end in self._ends)
        return not any(frontier.less_equal(time) for frontier in passed)

    def _admit_batches(self) -> bool:
        """Admit batches as long as there is room. Return whether there were rows for them."""
        worked = False
        if self._output.blocked():
            return False
        while room := self._in_flight - sum(one.batches for one in self._admitted):
            joined = max(1, self._in_flight // 2, JOINED_ROWS // self._size.rows)
            count = self._size.rows * min(room, joined)
            self._close_times(count)
            waiting = len(self._ready)
            rows = self._numbers.number(self._ready.take(count))
            # A row may have no outputs.
            worked |= bool(rows) or len(self._ready) < waiting
            if not rows:
                break
            self._admit(rows, count // self._size.rows)
        return worked

    def _close_times(self, count: int) -> None:
        """Move rows of closed times to the ready rows, until `count` rows are ready."""
        more = True
        while more and len(self._ready) < count:
            passed, more = self._open.pop_passed(self._input.frontier)
            self._ready.add(passed)

    def _admit(self, rows: list[Rows], most: int) -> None:
        """Admit rows of one number, as batches of which a heavy row fills `most`."""
        for some in rows:
            time = some.least_time
            self._output.send(self._capabilities.capability_for(time), time, some.batch)
        size, now = sum(map(self._ready.count, rows)), self._clock.monotonic()
        batches = min(most, max(1, ceil(size / self._size.rows)))
        self._admitted.append(Admitted(self._numbers.last, batches, size, now))

    def _pending_times(self) -> Iterator[Time]:
        """Yield the least times of the rows that wait, with their numbers."""
        yield from map(self._numbers.least, self._ready.least_times())
        for time in self._open.pending_times:
            yield self._numbers.least(time)
            # It may stand for rows of later times.
            yield nested_time(outer_time(time) + 1, iterations_of(time))
