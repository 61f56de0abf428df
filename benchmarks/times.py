"""What it costs that each record has a time of its own: timers, and the replay of a sparse history.

`python -m benchmarks.times` takes some five minutes and writes results/times.json. The records lie
on a topic with one partition, and one worker reads them. What counts is from the first result to
the last, so no start does. Each figure is the median of the runs' ratios; what is compared takes
turns.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Annotated

import typer
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

from benchmarks import latency, load, report, running
from benchmarks.calling import LATER
from benchmarks.running import ROOT
from meander.connectors.local_broker.broker import LocalBroker

MODULE = ROOT / "benchmarks" / "calling.py"
RECORDS = 300_000
AT_MOST = {"timers_unused_ratio": 1.1, "timers_each_ratio": 2.5, "replay_sparse_ratio": 1.3}
HISTORIES = {"dense": 1, "sparse": 500}
"""Milliseconds from record to record."""
CASES = {
    "plain": ("dense", "none"), "timers_unused": ("dense", "unused"),
    "timers_each": ("dense", "each"), "replay_sparse": ("sparse", "none"),
}  # fmt: skip
"""Which history is read, and which calls are asked for; the first is what the others are over."""
METHOD = (
    "{records:,} records of 100,000 keys, each of a time of its own, 1 partition, 1 worker: seconds"
    " from the first result on its topic to the last, by the broker's clock. plain: process"
    " without timers, a millisecond from record to record; timers_unused: with a function for"
    " timers; timers_each: with a timer per record; replay_sparse: plain, half a second from record"
    " to record. Medians of {runs} runs."
)


def prepare(bootstrap: str, records: int) -> None:
    """Put both histories on topics."""
    load.create(bootstrap, *HISTORIES, partitions=1)
    for name, apart in HISTORIES.items():
        load.fill(bootstrap, name, records, apart=apart)


def once(bootstrap: str, records: int) -> dict[str, float]:
    """The seconds of each case, and their ratios to those of the first."""
    took = {case: _seconds(bootstrap, *how, records) for case, how in CASES.items()}
    plain = took.pop("plain")
    ratios = {f"{case}_ratio": seconds / plain for case, seconds in took.items()}
    return {f"{case}_s": seconds for case, seconds in {"plain": plain, **took}.items()} | ratios


def _seconds(bootstrap: str, history: str, calls: str, records: int) -> float:
    """From the first result to the last that all cases have."""
    with running.flow(
        bootstrap, history, {"CALLS": calls}, kafka=running.SETTINGS, workers=1, partitions=1,
        module=MODULE, stamped=True,
    ) as flow:  # fmt: skip
        # Timers of the last records wait for a time that no record has.
        wanted = records - LATER
        flow.until_results(wanted)
        return (_came(flow, wanted - 1) - _came(flow, 0)) / 1000


def _came(flow: running.Running, offset: int) -> int:
    """When a result came to its topic, milliseconds of the broker's clock."""
    reader = Consumer({"bootstrap.servers": flow.bootstrap, "group.id": "times", "log_level": 2})
    reader.assign([TopicPartition(flow.topic, 0, offset)])
    message = reader.poll(running.PATIENCE)
    assert message is not None
    assert message.error() is None
    reader.close()
    return int(message.timestamp()[1])


def main(
    records: Annotated[int, typer.Option(help="On each topic that is read.")] = RECORDS,
    runs: Annotated[int, typer.Option(min=1, help="Of each case.")] = 3,
) -> None:
    """Measure timers and a sparse history against the same flow without."""
    console, measured = Console(stderr=True), defaultdict[str, list[float]](list)
    with LocalBroker() as broker:
        latency.warm_up(broker.bootstrap)
        prepare(broker.bootstrap, records)
        for _ in range(runs):
            for name, value in once(broker.bootstrap, records).items():
                measured[name].append(value)
                console.print(f"{name}: {value:.3g}")
    found = {name: statistics.median(measured[name]) for name in AT_MOST}
    path = report.write("times", METHOD.format(records=records, runs=runs), measured, found)
    for name, value in found.items():
        console.print(f"{name}: {value:.3g} (wanted <= {AT_MOST[name]})")
    console.print(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
