"""The event loop of a worker process: coroutines run in its thread, and end by its close."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from meander.app.worker.event_loop import ThreadedEventLoop
from meander.dataflow.operators.async_map import AsyncCalls, Outcome
from meander.dataflow.operators.retries import Retry

PATIENCE = 60.0


def outcomes_of(loop: ThreadedEventLoop, wakeup: threading.Event, count: int) -> list[Outcome]:
    """Start so many calls of a coroutine function, and return their outcomes."""
    found = list[Outcome]()

    async def twice(value: int) -> tuple[int, str]:
        await asyncio.sleep(0)
        if value == 3:
            raise ConnectionError(value)
        return 2 * value, threading.current_thread().name

    calls = AsyncCalls(twice, 10, PATIENCE, Retry(times=2, wait=0.0))
    for value in range(count):
        loop.start(calls.call(value), found.append)
    while len(found) < count:
        assert wakeup.wait(PATIENCE), "each end of a coroutine wakes the worker"
        wakeup.clear()
        loop.poll()
    return found


def test_coroutines_run_in_the_thread_of_the_event_loop() -> None:
    wakeup = threading.Event()
    loop = ThreadedEventLoop(wakeup)
    outcomes = outcomes_of(loop, wakeup, 5)
    loop.close()
    values = [one.value for one in outcomes if one.error is None]
    assert sorted(str(value) for value in values) == sorted(
        str((2 * n, "event loop")) for n in (0, 1, 2, 4)
    )
    (failed,) = (one for one in outcomes if one.error is not None)
    assert (repr(failed.error), failed.retries) == ("ConnectionError(3)", 2)


def test_close_cancels_calls_that_run() -> None:
    loop, started, cancelled = ThreadedEventLoop(threading.Event()), threading.Event(), list[str]()

    async def never(value: object) -> object:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append("cancelled")
            raise
        return value

    calls = AsyncCalls(never, 1, 3600.0, Retry(times=9, wait=0.0))
    loop.start(calls.call(1), lambda _: None)
    assert started.wait(PATIENCE)
    loop.close()
    assert cancelled == ["cancelled"]


def raise_out_of_a_loop() -> None:
    """An error ends an event loop, and reaches the worker."""
    wakeup = threading.Event()
    loop = ThreadedEventLoop(wakeup)

    async def ends() -> Outcome:
        raise KeyboardInterrupt

    loop.start(ends(), lambda _: None)
    assert wakeup.wait(PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        loop.poll()


def test_error_that_ends_the_event_loop_reaches_the_worker() -> None:
    raise_out_of_a_loop()


def test_asyncio_logs_no_error_that_the_worker_raises(caplog: pytest.LogCaptureFixture) -> None:
    raise_out_of_a_loop()
    gc.collect()
    assert caplog.records == []
