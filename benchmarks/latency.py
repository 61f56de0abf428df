"""How long a result takes, open loop: from when its record was due, not from when it was sent.

The first seconds are a warm-up and do not count.
"""

from __future__ import annotations

import time
from uuid import uuid4

from benchmarks import load, openloop, running
from benchmarks.running import PARTITIONS, Running
from benchmarks.timeline import Latency, Timeline
from benchmarks.wave import Wave

WARM_UP = 5.0
"""Seconds."""


def echo(bootstrap: str, rate: int, seconds: float) -> Latency:
    """Of a bare topic: what no engine can do better."""
    topic = f"echo-{uuid4().hex[:8]}"
    load.create(bootstrap, topic, partitions=PARTITIONS)
    found = measure(bootstrap, topic, topic, Wave.fixed(rate), seconds).latency()
    load.delete(bootstrap, topic)
    return found


def warm_up(bootstrap: str) -> None:
    """Load a new broker until its JVM has compiled the code that serves records."""
    echo(bootstrap, rate=5_000, seconds=30)


def flow(bootstrap: str, rate: int, seconds: float, **bench: str) -> Latency:
    """Of the counting flow on two workers."""
    source = f"latency-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with running.flow(bootstrap, source, bench) as flow:
        found = measure(bootstrap, source, flow.topic, Wave.fixed(rate), seconds).latency()
    load.delete(bootstrap, source)
    return found


def idle(bootstrap: str, seconds: float) -> float:
    """Cores per worker of a flow that has nothing to do."""
    source = f"idle-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with running.flow(bootstrap, source, {}) as flow:
        time.sleep(WARM_UP)
        before = sum(map(running.cpu_seconds, flow.workers))
        time.sleep(seconds)
        used = sum(map(running.cpu_seconds, flow.workers)) - before
    load.delete(bootstrap, source)
    return used / seconds / len(flow.workers)


def growth(bootstrap: str, rate: int, seconds: float) -> float:
    """Memory of the workers at the end over that after a tenth of the time."""
    source = f"growth-{uuid4().hex[:8]}"
    load.create(bootstrap, source, partitions=PARTITIONS)
    with (
        running.flow(bootstrap, source, {}) as flow,
        openloop.generating(bootstrap, source, Wave.fixed(rate)),
    ):
        time.sleep(seconds / 10)
        before = _held(flow)
        time.sleep(seconds * 9 / 10)
        after = _held(flow)
    load.delete(bootstrap, source)
    return after / before


def _held(flow: Running) -> int:
    return sum(map(running.memory, flow.workers))


def measure(
    bootstrap: str, source: str, sink: str, wave: Wave, seconds: float, keys: int = load.KEYS
) -> Timeline:
    """Of what comes to one topic for what goes to another."""
    with openloop.running(bootstrap, source, sink, wave, keys) as loop:
        time.sleep(WARM_UP + seconds)
    return loop.found().between(loop.began + WARM_UP, time.time())
