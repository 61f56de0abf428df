"""What it costs that each record has a time of its own: timers, and the replay of a sparse history.

`python -m benchmarks.times` takes some five minutes and writes results/times.json. The records lie
on a topic with one partition, and one worker reads them. What counts is from the first result to
the last, so no start does. Each figure is the median of the runs' ratios; what is compared takes
turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from benchmarks import latency, load, report, running
from benchmarks.processing import LATER
from benchmarks.report import Benchmark
from benchmarks.running import PROCESSING

RECORDS = 300_000
TIMES = Benchmark(
    "times", "Timers and a sparse history", at_least={},
    at_most={"timers_unused_ratio": 1.1, "timers_each_ratio": 2.5, "replay_sparse_ratio": 1.3},
    ratios={},
)  # fmt: skip
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


def once(bootstrap: str, records: int) -> Mapping[str, float]:
    """The seconds of each case, and their ratios to those of the first."""
    took = {case: _seconds(bootstrap, *how, records) for case, how in CASES.items()}
    ratios = {f"{case}_ratio": one / took["plain"] for case, one in took.items() if case != "plain"}
    return {f"{case}_s": seconds for case, seconds in took.items()} | ratios


def _seconds(bootstrap: str, history: str, calls: str, records: int) -> float:
    """From the first result to the last that all cases have, by the broker's clock."""
    # Timers of the last records wait for a time that no record has.
    wanted = records - LATER
    with running.flow(
        bootstrap, history, {"CALLS": calls}, kafka=running.SETTINGS, workers=1, partitions=1,
        module=PROCESSING,
    ) as flow:  # fmt: skip
        flow.until_results(wanted)
        with load.reading(bootstrap, flow.topic) as messages:
            came = [message.timestamp()[1] for message in messages]
    return (came[wanted - 1] - came[0]) / 1000


def main(
    records: Annotated[int, typer.Option(help="On each topic that is read.")] = RECORDS,
    runs: Annotated[int, typer.Option(min=1, help="Of each case.")] = 3,
) -> None:
    """Measure timers and a sparse history against the same flow without."""

    def fill(bootstrap: str) -> None:
        latency.echo(bootstrap, rate=5_000, seconds=latency.WARMTH)
        prepare(bootstrap, records)

    method = METHOD.format(records=records, runs="{runs}")
    report.measure(TIMES, method, fill, [lambda b: once(b, records)], runs)


if __name__ == "__main__":
    typer.run(main)
