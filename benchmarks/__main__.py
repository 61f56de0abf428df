"""Measure what Meander costs, beside a loop without any engine and a bare echo, in one run.

`python -m benchmarks` writes results/baseline.json and docs/benchmarks.png. Each figure is the
median of several runs; what is compared takes turns, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import drain, latency, load, report, times
from benchmarks.running import PARTITIONS, ROOT
from meander.connectors.local_broker.broker import LocalBroker

AT_LEAST = {"fold_over_yardstick": 0.5, "vector_over_yardstick": 0.7}
AT_MOST = {
    "processing_p50_ms": 3, "processing_p99_ms": 8, "event_p50_ms": 6, "event_p99_ms": 15,
    "processing_p99_20k_ms": 20, "migratable_p99_ratio": 1.5, "rss_growth_10min": 1.05,
    "idle_cpu": 0.05,
} | times.AT_MOST  # fmt: skip
METHOD = (
    "keyed count over 100,000 keys, one result to Kafka per record, 2 partitions, 2 workers, all on"
    " one machine. Drains: {records:,} records that lie on the topic; from all processes ready to"
    " the last result. Latency: open loop, {seconds:g} s after {warm:g} s of warm-up, from when a"
    " record was due to when a consumer has its result. Medians of {runs} runs."
)
BACKLOG = "backlog"
Part = Callable[[str], dict[str, float]]


def drains(source: str, records: int) -> Part:
    """The yardstick and the flow, on one topic."""

    def once(bootstrap: str) -> dict[str, float]:
        found = {"yardstick_1": drain.yardstick(bootstrap, source, 1)}
        found["yardstick_2"] = drain.yardstick(bootstrap, source, 2)
        found["fold"] = drain.flow(bootstrap, source, records)
        found["vector"] = drain.flow(bootstrap, source, records, FOLD="columns")
        found["processing"] = drain.flow(bootstrap, source, records, ORDER="processing")
        return found

    return once


def latencies(rate: int, seconds: float) -> list[Part]:
    """A bare echo and the flow at one rate."""
    return [
        lambda b: latency.echo(b, rate, seconds).named("echo_"),
        lambda b: latency.flow(b, rate, seconds, ORDER="processing").named("processing_"),
        lambda b: latency.flow(b, rate, seconds).named("event_"),
        lambda b: latency.flow(b, rate, seconds, F="off").named("unmovable_"),
        lambda b: latency.flow(b, 4 * rate, seconds, ORDER="processing").named("processing_20k_"),
        lambda b: {"idle_cpu": latency.idle(b, seconds)},
    ]


def figures(middle: dict[str, float]) -> dict[str, float]:
    """What is asked for, by id, of the medians."""
    asked = {
        "fold_over_yardstick": ("fold", "yardstick_2"),
        "vector_over_yardstick": ("vector", "yardstick_2"),
        "migratable_p99_ratio": ("event_p99_ms", "unmovable_p99_ms"),
    }
    found = {
        name: middle[over] / middle[under]
        for name, (over, under) in asked.items()
        if over in middle and under in middle
    }
    found |= {name: middle[name] for name in AT_MOST if name in middle}
    if "processing_20k_p99_ms" in middle:
        found["processing_p99_20k_ms"] = middle["processing_20k_p99_ms"]
    return found


def main(
    records: Annotated[
        int, typer.Option(help="On the topic that is drained; 0 for no drains.")
    ] = 4_000_000,
    runs: Annotated[int, typer.Option(min=1, help="Of each part.")] = 3,
    rate: Annotated[int, typer.Option(help="Records per second where latency counts.")] = 5_000,
    seconds: Annotated[float, typer.Option(help="Of each measurement of latency.")] = 20.0,
    minutes: Annotated[float, typer.Option(help="Of the one run for memory; 0 for none.")] = 10.0,
) -> None:
    """Measure everything; takes about three quarters of an hour as it is."""
    console = Console(stderr=True)
    measured: dict[str, list[float]] = defaultdict(list)
    first = [drains(BACKLOG, records)] if records else []
    timed: Part = partial(times.once, records=times.RECORDS)
    parts = [*first, timed, *latencies(rate, seconds)] * runs
    if minutes:
        parts.append(lambda b: {"rss_growth_10min": latency.growth(b, rate, 60 * minutes)})
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with LocalBroker() as broker, Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("benchmarks", total=len(parts))
        latency.warm_up(broker.bootstrap)
        load.create(broker.bootstrap, BACKLOG, partitions=PARTITIONS)
        load.fill(broker.bootstrap, BACKLOG, records)
        times.prepare(broker.bootstrap, times.RECORDS)
        for part in parts:
            for name, value in part(broker.bootstrap).items():
                measured[name].append(value)
                bar.console.print(f"{name}: {value:,.4g}")
            bar.advance(task)
    found = figures({name: statistics.median(values) for name, values in measured.items()})
    method = METHOD.format(records=records, seconds=seconds, warm=latency.WARM_UP, runs=runs)
    path = report.write("baseline", method, measured, found)
    picture = report.bars(found, AT_LEAST | AT_MOST, "A keyed count: measured over wanted")
    picture.savefig(ROOT / "docs" / "benchmarks.png")
    for name, value in found.items():
        wanted = f">= {AT_LEAST[name]}" if name in AT_LEAST else f"<= {AT_MOST[name]}"
        console.print(f"{name}: {value:.3g} (wanted {wanted})")
    console.print(f"written to {path} and docs/benchmarks.png")


if __name__ == "__main__":
    typer.run(main)
