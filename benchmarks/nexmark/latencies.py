"""Latencies: how long after its `dateTime` a result lies on its topic, by the broker's clock.

The `dateTime` of a result is the earliest time at which it can be known: that of its last record,
or the end of its window. Times are whole milliseconds. The first seconds do not count.
"""

from __future__ import annotations

import json
import time

import numpy as np

from benchmarks import load, running
from benchmarks.nexmark import feed, topics
from benchmarks.nexmark.drains import FLOW
from benchmarks.nexmark.flink import Flink
from benchmarks.open_loop import Lost
from benchmarks.running import PARTITIONS

WARM_UP = 5.0
SETTLES = 2.0
"""Seconds that a topic gets for its last results."""
WINDOWS = 1.0, 0.2
"""Seconds of a window, and between hopping ones: short, so that many close."""


def meander(bootstrap: str, query: str, rate: int, seconds: float) -> dict[str, float]:
    """Return the latencies of a query on two workers. Raises Lost without results."""
    prefix = f"live-{time.time_ns():x}-"
    topics.create(bootstrap, prefix)
    bench = {"QUERY": query, "WINDOWS": "{:g} {:g}".format(*WINDOWS)}
    with running.flow(bootstrap, prefix, bench, module=FLOW) as flow:
        found = _measured(bootstrap, prefix, flow.topic, rate, seconds)
    load.delete(bootstrap, prefix)
    return {f"meander_{name}": value for name, value in found.items()}


def flink(flink: Flink, bootstrap: str, query: str, rate: int, seconds: float) -> dict[str, float]:
    """Return the latencies of a query in Flink's two slots. Raises Lost without results."""
    prefix = f"live-{time.time_ns():x}-"
    topics.create(bootstrap, prefix)
    with load.topic(bootstrap, "flink", PARTITIONS, message_timestamp_type="LogAppendTime") as sink:
        job = flink.run(query, bootstrap, prefix, sink, WINDOWS, bounded=False)
        found = _measured(bootstrap, prefix, sink, rate, seconds)
        job.cancel()
    load.delete(bootstrap, prefix)
    return {f"flink_{name}": value for name, value in found.items()}


def _measured(
    bootstrap: str, prefix: str, sink: str, rate: int, seconds: float
) -> dict[str, float]:
    began = feed.feed(bootstrap, prefix, rate, WARM_UP + seconds)
    time.sleep(SETTLES)
    found = topics.results(bootstrap, sink)
    known = np.array([json.loads(value)["dateTime"] for value in found.values], np.int64)
    late = np.array(found.times, np.int64) - known
    # What has closed behind the last event waits for a further one.
    first, last = began + 1000 * WARM_UP, began + 1000 * (WARM_UP + seconds - 1)
    counted = late[(first <= known) & (known < last)]
    if not len(counted):
        raise Lost("the topic has no result")
    p50, p99 = np.percentile(counted, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99)}
