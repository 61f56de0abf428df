"""The asynchronous map: coroutines of a user run beside the turns of a worker.

Guarantees that a result has the time, the place and the key of its record, and that the frontier
does not pass a record before its result has left. At most `concurrency` records are here, with
unsent results; the others wait at the input, so that their senders get no credit (I6). With
`order="kept"` results leave in the order of the records. Invariant: records here are in flight, so
a checkpoint holds them, and a restart makes their calls again. A call gets a copy of its value.
Cost: one task per record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.ports import InFlight, InputPort, Message, OutputPort
from meander.dataflow.operators.retries import OnError, Retry
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.batch import Batch, own_value
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time
from meander.state.times.time import Time

CoroutineFunction = Callable[[Any], Coroutine[Any, Any, object]]
"""A function that `async def` defines: `value -> result`."""
ResultOrder = Literal["kept", "any"]
"""The order of results: that of the records, or that in which calls end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of all calls for one record: a value, or the error of the last call."""

    value: object
    error: BaseException | None
    retries: int


class EventLoop(Protocol):
    """An event loop that runs coroutines beside the turns of one worker."""

    def start(
        self, coroutine: Coroutine[Any, Any, Outcome], ended: Callable[[Outcome], None]
    ) -> None:
        """Start a coroutine. A later `poll` passes its outcome to `ended`."""

    def poll(self) -> None:
        """Report the coroutines that have ended since the last call, on the thread of the worker.
        Raises an error that has ended the event loop."""

    def wait_seconds(self) -> float | None:
        """Return after how many seconds a coroutine may continue, or None where the event loop
        wakes the worker."""

    def close(self) -> None:
        """Cancel all coroutines."""


@dataclass(frozen=True, slots=True)
class AsyncCalls:
    """The calls of one coroutine function, with their limits."""

    function: CoroutineFunction
    concurrency: int
    """The most records at the operator of one worker."""
    timeout: float
    """The most seconds of one call."""
    on_error: OnError

    async def call(self, value: object) -> Outcome:
        """Call the function on a value, again where it fails and the error policy says so."""
        retry = self.on_error if isinstance(self.on_error, Retry) else None
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self.timeout):
                    return Outcome(await self.function(own_value(value)), None, failures)
            except failure() as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the event loop closes
                if retry is None or failures == retry.times:
                    return Outcome(None, error, failures)
            failures += 1
            await asyncio.sleep(retry.wait)


@dataclass(slots=True)
class _Calls:
    """The records of one message whose results have not left."""

    batch: Batch
    iterations: Iterations
    arrived_at: float
    unsent: list[int]
    """The rows whose results have not left, in order."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """The outcomes that have not left, by row."""

    @property
    def least_time(self) -> Time:
        """Return the least time of unsent results."""
        return nested_time(int(self.batch.times[self.unsent].min()), self.iterations)

    def ended(self, order: ResultOrder) -> list[int]:
        """Return the rows whose results may leave now."""
        if order == "any":
            return [row for row in self.unsent if row in self.outcomes]
        count = next((n for n, row in enumerate(self.unsent) if row not in self.outcomes), None)
        return self.unsent[:count]


class AsyncMap:
    """An asynchronous map on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        source: InputPort,
        output: OutputPort,
        calls: AsyncCalls,
        order: ResultOrder,
        guard: Guard,
        event_loop: EventLoop,
    ) -> None:
        self._input, self._output, self._guard, self._loop = source, output, guard, event_loop
        self._counters, self._calls, self._order = context.counters, calls, order
        self._open = deque[_Calls]()
        self._capabilities = CapabilitySet()

    def schedule(self) -> bool:
        """Send the results of ended calls, and start others. Return whether there were any."""
        if self._open:
            self._loop.poll()
        sent = not self._output.blocked() and self._send_ended()
        started = self._start_calls()
        if sent or started:
            self._capabilities.downgrade(*(one.least_time for one in self._open))
        return sent or started

    @property
    def pending(self) -> bool:
        """Return whether a call has not ended, or its result has not left."""
        return bool(self._open)

    def wait_seconds(self) -> float | None:
        """Return the seconds until a call may end, where nothing else wakes the worker."""
        return self._loop.wait_seconds() if self._open else None

    def finished(self) -> bool:
        """Return True, as a capability covers each record here."""
        return True

    def in_flight(self) -> Iterable[InFlight]:
        """Return the records whose results have not left. No function has changed them."""
        at = self._input.location
        return [
            InFlight(at, one.least_time, one.batch.take(np.array(one.unsent, np.int64)))
            for one in self._open
        ]

    def close(self) -> None:
        """Do nothing, as the worker closes the event loop."""

    def _start_calls(self) -> bool:
        room = self._calls.concurrency - sum(len(one.unsent) for one in self._open)
        started = False
        while room > 0 and (message := self._input.take(room)) is not None:
            started = True
            assert isinstance(message.payload, Batch)
            self._capabilities.retain(self._output.mint(message))
            room -= len(message.payload)
            self._start(message, message.payload)
        return started

    def _start(self, message: Message, batch: Batch) -> None:
        calls = _Calls(batch, iterations_of(message.time), message.arrived_at, [*range(len(batch))])
        self._open.append(calls)
        for row, value in enumerate(batch.values):
            self._loop.start(self._calls.call(value), partial(calls.outcomes.__setitem__, row))

    def _send_ended(self) -> bool:
        sent = False
        for calls in self._sendable():
            if rows := calls.ended(self._order):
                sent = True
                self._send(calls, rows)
        while self._open and not self._open[0].unsent:
            self._open.popleft()
        if sent and self._order == "any":
            self._open = deque(one for one in self._open if one.unsent)
        return sent

    def _sendable(self) -> Iterator[_Calls]:
        """Yield the calls whose results may leave now: with their order kept, those up to the first
        that has not ended."""
        for calls in self._open:
            yield calls
            if self._order == "kept" and calls.unsent:
                return

    def _send(self, calls: _Calls, rows: list[int]) -> None:
        outcomes = {row: calls.outcomes.pop(row) for row in rows}
        calls.unsent = [row for row in calls.unsent if row not in outcomes]
        for row, outcome in outcomes.items():
            if outcome.retries:
                self._counters["retries"] += outcome.retries
            if outcome.error is not None:
                self._guard.failed(calls.batch, row, outcome.error)
        answered = [row for row in rows if outcomes[row].error is None]
        if answered:
            batch = calls.batch.take(np.array(answered, np.int64))
            batch = batch.with_values([outcomes[row].value for row in answered])
            time = nested_time(int(batch.times.min()), calls.iterations)
            self._output.send(self._capabilities.capability_for(time), time, batch)
        self._input.latency.complete(calls.arrived_at, len(rows))
