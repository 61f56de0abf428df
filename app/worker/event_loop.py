"""The event loop of a worker process: a thread that runs the coroutines of its operators.

Guarantees that a coroutine never delays the turns of the worker, and that `poll` reports outcomes
on the thread of the worker. A coroutine that blocks the event loop delays other coroutines alone.
Cost: one thread, from the first asynchronous map on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from meander.dataflow.interfaces import Wakeup
from meander.dataflow.operators.async_map import Outcome

CLOSE_SECONDS = 2.0
"""Seconds that cancelled coroutines may take to end."""


class ThreadedEventLoop:
    """An event loop in a thread of its own; implements `EventLoop`."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._ended = deque[tuple[asyncio.Task[Outcome], Callable[[Outcome], None]]]()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._log_unreported)
        self._thread = threading.Thread(target=self._run, name="event loop", daemon=True)
        self._thread.start()

    def start(
        self, coroutine: Coroutine[Any, Any, Outcome], ended: Callable[[Outcome], None]
    ) -> None:
        """Start a coroutine. A later `poll` passes its outcome to `ended`."""
        self._loop.call_soon_threadsafe(self._create, coroutine, ended)

    def poll(self) -> None:
        """Report the coroutines that have ended. Raises an error that has ended the event loop."""
        if self._failure is not None:
            raise self._failure
        while self._ended:
            task, report = self._ended.popleft()
            report(task.result())

    def wait_seconds(self) -> float | None:
        """Return None, as the end of a coroutine wakes the worker."""
        return None

    def close(self) -> None:
        """Cancel all coroutines, and wait a little for their end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.close()
        except BaseException as error:  # noqa: BLE001 (the worker raises it)
            self._failure = error
            self._wakeup.set()

    def _log_unreported(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of asyncio, besides that which `poll` raises."""
        if self._failure is None or context.get("exception") is not self._failure:
            loop.default_exception_handler(context)

    def _create(
        self, coroutine: Coroutine[Any, Any, Outcome], ended: Callable[[Outcome], None]
    ) -> None:
        self._loop.create_task(coroutine).add_done_callback(partial(self._note, ended))

    def _note(self, ended: Callable[[Outcome], None], task: asyncio.Task[Outcome]) -> None:
        self._ended.append((task, ended))
        self._wakeup.set()

    def _stop(self) -> None:
        """Cancel all coroutines, and stop once they have ended."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.create_task(self._stop_behind(tasks))

    async def _stop_behind(self, tasks: set[asyncio.Task[Any]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        self._loop.stop()
