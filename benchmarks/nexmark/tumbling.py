"""A tumbling count in Python's engines: bids per auction in windows of ten seconds.

Each engine has two processes, and reads JSON from and writes JSON to the same broker. The rate is
taken from results alone, so starts do not count: the bids from the end of the first window to that
of the last one, over the time between the first results of both. Quix Streams has to send the bids
through a topic of its own to group them, and bytewax sends them from process to process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import load, running
from benchmarks.nexmark import engines, topics
from benchmarks.nexmark.drains import FLOW, TO_THE_END
from benchmarks.nexmark.events import BIDS, ROUND, Generator
from benchmarks.nexmark.queries import COUNT
from benchmarks.nexmark.topics import Filled
from benchmarks.open_loop import Lost
from benchmarks.running import PARTITIONS, SETTINGS, WORKERS

SIZE = 10.0
ENGINES = "meander", "bytewax", "quixstreams"
QUIET, LOOK = 10.0, 0.5
"""Seconds without a result after which none is to come, and between two looks."""
WITHIN = 300.0


def measure(bootstrap: str, filled: Filled, rate: int, engine: str) -> float:
    """Return the bids per second that an engine counts. Raises Lost where its results end
    early."""
    if engine == "meander":
        bench = {"QUERY": COUNT, "WINDOWS": f"{SIZE:g} {SIZE:g}"}
        with running.flow(
            bootstrap, filled.prefix, bench, kafka=SETTINGS, module=FLOW, options=TO_THE_END
        ) as flow:
            flow.ended()
            return _rate(bootstrap, flow.topic, filled, rate)
    with (
        load.topic(bootstrap, engine, PARTITIONS, message_timestamp_type="LogAppendTime") as sink,
        _processes(bootstrap, filled.prefix + "bids", sink, engine) as processes,
    ):
        last, since, deadline = 0, time.monotonic(), time.monotonic() + WITHIN
        while time.monotonic() - since < QUIET or not last:
            if time.monotonic() > deadline:
                raise Lost(f"{engine} gives no results within {WITHIN:g} s")
            time.sleep(LOOK)
            count = load.count(bootstrap, sink)
            if count != last:
                last, since = count, time.monotonic()
            elif all(one.poll() is not None for one in processes):
                break
        return _rate(bootstrap, sink, filled, rate)


@contextmanager
def _processes(
    bootstrap: str, source: str, sink: str, engine: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of an engine for the block."""
    script = Path(__file__).with_name(f"{engine}_flow.py")
    words = [str(engines.python(engine)), str(script)]
    variables = os.environ | {
        "BOOTSTRAP": bootstrap, "SOURCE": source, "SINK": sink, "WORKERS": str(WORKERS),
        "SECONDS": f"{SIZE:g}",
    }  # fmt: skip
    count = 1 if engine == "bytewax" else WORKERS
    output = sys.stderr if "NEXMARK_LOGS" in os.environ else subprocess.DEVNULL
    started = [
        subprocess.Popen(words, env=variables, stdout=output, stderr=output, process_group=0)
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


def _rate(bootstrap: str, sink: str, filled: Filled, rate: int) -> float:
    found = topics.results(bootstrap, sink)
    if not found.values:
        raise Lost("no window has closed")
    ends = np.array([json.loads(value)["dateTime"] for value in found.values], np.int64)
    came = np.array(found.times, np.int64)
    first, last = ends.min(), ends.max()
    start, size = Generator().start_ms, 1000 * SIZE
    windows = filled.records["bids"] / (BIDS / ROUND * rate) / SIZE
    if (last - start) / size < windows - 2:
        raise Lost(f"the last of {windows:.0f} windows that has closed is that of {last}")
    seconds = (came[ends == last].min() - came[ends == first].min()) / 1000
    return float((last - first) / 1000 * rate * BIDS / ROUND / seconds)
