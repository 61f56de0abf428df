"""The event loop of a simulated worker: its coroutines run in the turns of the worker.

Guarantees that a run is a function of its seed: time is that of the simulated clock, and each
`poll` takes one pass over the coroutines that may continue. A coroutine that waits for a socket or
a thread is outside of the simulation. Cost: one pass of asyncio per poll.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.async_map import Outcome

Ts = TypeVarTuple("Ts")
CLOSE_PASSES = 8
"""The passes in which cancelled coroutines may end."""


class SimulatedEventLoop:
    """An event loop of one simulated worker; implements `EventLoop`.

    >>> from meander.dataflow.simulation.simulator import SimClock
    >>> loop, outcomes = SimulatedEventLoop(clock := SimClock()), []
    >>> async def call():
    ...     await asyncio.sleep(2.0)
    ...     return Outcome("done", None, 0)
    >>> loop.start(call(), outcomes.append); loop.poll(); loop.wait_seconds()
    2.0
    >>> clock.advance(2.0); loop.poll(); loop.poll(); loop.poll(); outcomes[0].value
    'done'
    >>> loop.close()
    """

    def __init__(self, clock: Clock) -> None:
        self._loop = _ClockedLoop(clock)
        self._tasks = list[tuple[asyncio.Task[Outcome], Callable[[Outcome], None]]]()

    def start(
        self, coroutine: Coroutine[Any, Any, Outcome], ended: Callable[[Outcome], None]
    ) -> None:
        """Start a coroutine, which the next `poll` continues."""
        self._tasks.append((self._loop.create_task(coroutine), ended))

    def poll(self) -> None:
        """Continue the coroutines that may continue, and report those that have ended."""
        self._loop.run_once()
        ended = [one for one in self._tasks if one[0].done()]
        self._tasks = [one for one in self._tasks if not one[0].done()]
        for task, report in ended:
            report(task.result())

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next coroutine may continue."""
        return self._loop.seconds_to_next()

    def close(self) -> None:
        """Cancel all coroutines. One that waits again by then stays without an end."""
        for task, _ in self._tasks:
            task.cancel()
        for _ in range(CLOSE_PASSES):
            self._loop.run_once()
        self._loop.close()


class _ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio that never waits, and whose time is that of a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._timers = list[asyncio.TimerHandle]()

    def time(self) -> float:
        """Return the seconds of the clock."""
        return self._clock.monotonic()

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Note the time of the call, besides what asyncio does."""
        handle = super().call_at(when, callback, *args, context=context)
        self._timers.append(handle)
        return handle

    def run_once(self) -> None:
        """Make the calls that are due, also where a notebook runs an event loop in this thread."""
        outer = events._get_running_loop()
        events._set_running_loop(None)
        try:
            self.call_soon(self.stop)
            self.run_forever()
        finally:
            events._set_running_loop(outer)

    def seconds_to_next(self) -> float:
        """Return the seconds until the next call is due; little where others may be."""
        now = self.time()
        self._timers = [one for one in self._timers if not one.cancelled() and one.when() > now]
        return min((one.when() - now for one in self._timers), default=0.001)
