"""How long a result takes, open loop: from when its record was due, not from when it was sent.

The first seconds are a warm-up and do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import load, running
from benchmarks.open_loop import loading
from benchmarks.running import PARTITIONS
from meander.app.measurement.latencies import LatencySummary, Timeline
from meander.app.measurement.open_loop import Wave

WARM_UP = 5.0
"""Seconds."""
WARMTH = 30.0
"""Seconds of load until the JVM of a new broker has compiled the code that serves records."""


def echo(bootstrap: str, rate: int, seconds: float) -> LatencySummary:
    """Of a bare topic: what no engine can do better."""
    with load.topic(bootstrap, "echo", PARTITIONS) as topic:
        return measure(bootstrap, topic, topic, Wave.fixed(rate), seconds).summary()


def flow(bootstrap: str, rate: int, seconds: float, **bench: str) -> LatencySummary:
    """Of the counting flow on two workers."""
    with (
        load.topic(bootstrap, "latency", PARTITIONS) as source,
        running.flow(bootstrap, source, bench) as flow,
    ):
        return measure(bootstrap, source, flow.topic, Wave.fixed(rate), seconds).summary()


def idle(bootstrap: str, seconds: float) -> float:
    """Cores per worker of a flow that has nothing to do."""
    with (
        load.topic(bootstrap, "idle", PARTITIONS) as source,
        running.flow(bootstrap, source, {}) as flow,
    ):
        time.sleep(WARM_UP)
        before, after = _twice(lambda: sum(map(running.cpu_seconds, flow.workers)), seconds)
        return (after - before) / seconds / len(flow.workers)


def growth(bootstrap: str, rate: int, seconds: float) -> float:
    """Memory of the workers at the end over that after a tenth of the time."""
    with (
        load.topic(bootstrap, "growth", PARTITIONS) as source,
        running.flow(bootstrap, source, {}) as flow,
        loading(bootstrap, source, None, Wave.fixed(rate)),
    ):
        time.sleep(seconds / 10)
        before, after = _twice(lambda: sum(map(running.memory, flow.workers)), seconds * 0.9)
        return after / before


def _twice(look: Callable[[], float], seconds: float) -> tuple[float, float]:
    before = look()
    time.sleep(seconds)
    return before, look()


def measure(
    bootstrap: str, source: str, sink: str, wave: Wave, seconds: float, keys: int = load.KEYS
) -> Timeline:
    """Of what comes to one topic for what goes to another."""
    with loading(bootstrap, source, sink, wave, keys) as loop:
        time.sleep(WARM_UP + seconds)
        end = time.time()
    return loop.found().between(loop.began + WARM_UP, end)
