"""Drains: how many records a second an engine takes where all lie on the topics.

A drain lasts from when all workers or tasks run to the last result, by the broker's clock. Starts
of processes and of JVMs do not count. Windows close at the end of the topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import load, running
from benchmarks.nexmark import topics
from benchmarks.nexmark.flink import Flink
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.topics import Filled
from benchmarks.open_loop import Lost
from benchmarks.running import PARTITIONS, SETTINGS

FLOW = Path(__file__).with_name("flow.py")
TO_THE_END = "--until-end", "--fire-timers"
WINDOWS = 10.0, 2.0
"""Seconds of a window, and between hopping ones, as published."""
Check = Callable[[str, str], str]
"""Says what is wrong with the results of a query on a topic; '' if nothing is."""


class WrongResultsError(Exception):
    """The results are not those of the oracle, so their rate says nothing."""


def unchecked(query: str, topic: str) -> str:
    """Find no fault."""
    return ""


def meander(bootstrap: str, filled: Filled, query: str, check: Check = unchecked) -> float:
    """Return the records per second of a query on two workers. Raises WrongResultsError."""
    bench = {"QUERY": query, "WINDOWS": "{:g} {:g}".format(*WINDOWS)}
    with running.flow(
        bootstrap, filled.prefix, bench, kafka=SETTINGS, module=FLOW, options=TO_THE_END
    ) as flow:
        began = time.time()
        flow.ended()
        return _rate(bootstrap, flow.topic, filled, query, began, check)


def flink(
    flink: Flink, bootstrap: str, filled: Filled, query: str, check: Check = unchecked
) -> float:
    """Return the records per second of a query in Flink's two slots. Raises WrongResultsError."""
    with load.topic(bootstrap, "flink", PARTITIONS, message_timestamp_type="LogAppendTime") as sink:
        job = flink.run(query, bootstrap, filled.prefix, sink, WINDOWS, bounded=True)
        job.ended()
        return _rate(bootstrap, sink, filled, query, job.began, check)


def warm(flink: Flink, bootstrap: str, filled: Filled, query: str) -> None:
    """Have Flink's JVM compile what a query runs often."""
    with load.topic(bootstrap, "flink", PARTITIONS) as sink:
        flink.run(query, bootstrap, filled.prefix, sink, WINDOWS, bounded=True).ended()


def _rate(
    bootstrap: str, topic: str, filled: Filled, query: str, began: float, check: Check
) -> float:
    seconds = topics.results(bootstrap, topic).last / 1000 - began
    if fault := check(query, topic):
        raise WrongResultsError(f"{query}: {fault}")
    if seconds <= 0:
        raise Lost(f"{query}: all results came before all tasks ran: drain more events")
    return filled.read_by(QUERIES[query].reads) / seconds
