"""Measure what Meander costs, beside a loop without any engine and a bare echo, in one run.

`python -m benchmarks` writes results/baseline.json and docs/benchmarks.png. Each figure is the
median of several runs; what is compared takes turns, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from benchmarks import latency, load, report, times, yardstick
from benchmarks.report import Benchmark, Part
from benchmarks.running import PARTITIONS, drain

BASELINE = Benchmark(
    "baseline", "A keyed count",
    at_least={"fold_over_yardstick": 0.5, "vector_over_yardstick": 0.7},
    at_most={
        "processing_p50_ms": 3, "processing_p99_ms": 8, "event_p50_ms": 6, "event_p99_ms": 15,
        "processing_p99_20k_ms": 20, "migratable_p99_ratio": 1.5, "rss_growth_10min": 1.05,
        "idle_cpu": 0.05, **times.TIMES.at_most,
    },
    ratios={
        "fold_over_yardstick": ("fold", "yardstick_2"),
        "vector_over_yardstick": ("vector", "yardstick_2"),
        "migratable_p99_ratio": ("event_p99_ms", "unmovable_p99_ms"),
    },
    picture="benchmarks.png",
)  # fmt: skip
METHOD = (
    "keyed count over 100,000 keys, one result to Kafka per record, 2 partitions, 2 workers, all on"
    " one machine. Drains: {records:,} records that lie on the topic; from all processes ready to"
    " the last result. Latency: open loop, {seconds:g} s after {warm:g} s of warm-up, from when a"
    " record was due to when a consumer has its result. Medians of {{runs}} runs, ratios run by"
    " run."
)
BACKLOG = "backlog"


def drains(bootstrap: str, records: int) -> Mapping[str, float]:
    """The yardstick and the flow, on one topic."""
    return {
        "yardstick_1": yardstick.drain(bootstrap, BACKLOG, records, 1),
        "yardstick_2": yardstick.drain(bootstrap, BACKLOG, records, 2),
        "fold": drain(bootstrap, BACKLOG, records),
        "vector": drain(bootstrap, BACKLOG, records, FOLD="columns"),
        "processing": drain(bootstrap, BACKLOG, records, ORDER="processing"),
    }


def latencies(rate: int, seconds: float) -> list[Part]:
    """A bare echo and the flow at one rate."""

    def at_four_times(bootstrap: str) -> Mapping[str, float]:
        found = latency.flow(bootstrap, 4 * rate, seconds, ORDER="processing")
        return found.named("processing_20k_") | {"processing_p99_20k_ms": found.p99_ms}

    return [
        lambda b: latency.echo(b, rate, seconds).named("echo_"),
        lambda b: latency.flow(b, rate, seconds, ORDER="processing").named("processing_"),
        lambda b: latency.flow(b, rate, seconds).named("event_"),
        lambda b: latency.flow(b, rate, seconds, F="off").named("unmovable_"),
        at_four_times,
        lambda b: {"idle_cpu": latency.idle(b, seconds)},
    ]


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

    def prepare(bootstrap: str) -> None:
        latency.echo(bootstrap, rate, latency.WARMTH)
        load.create(bootstrap, BACKLOG, partitions=PARTITIONS)
        load.fill(bootstrap, BACKLOG, records)
        times.prepare(bootstrap, times.RECORDS)

    first: list[Part] = [partial(drains, records=records)] if records else []
    parts: list[Part] = [
        *first,
        partial(times.once, records=times.RECORDS),
        *latencies(rate, seconds),
    ]
    once: list[Part] = (
        [lambda b: {"rss_growth_10min": latency.growth(b, rate, 60 * minutes)}] if minutes else []
    )
    method = METHOD.format(records=records, seconds=seconds, warm=latency.WARM_UP)
    report.measure(BASELINE, method, prepare, parts, runs, once)


if __name__ == "__main__":
    typer.run(main)
