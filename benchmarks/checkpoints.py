"""Measure what checkpoints, recovery and exactly once cost: `python -m benchmarks.checkpoints`.

Writes results/checkpoints.json and two pictures, docs/checkpoints*.png, after each run. What is
compared takes turns, so that a noisy machine is noisy for all. A recovery is the longest time that
a record waits for its result which is due after one worker is killed, whose states are loaded from
the state topic then, or both.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from benchmarks import held, kills, latency, load, report
from benchmarks.open_loop import loading
from benchmarks.report import Benchmark, Part
from benchmarks.running import PARTITIONS, WORKERS, drain
from benchmarks.states import States
from meander.app.measurement.open_loop import Wave
from meander.schemas.status import Checkpointed, Recovering, Started

CHECKPOINTS = Benchmark(
    "checkpoints", "Checkpoints",
    at_least={
        "aligned_over_unaligned": 200, "throughput_unaligned_over_none": 0.95,
        "progress_under_kills": 0.9,
    },
    at_most={
        "unaligned_ms_300kb": 50, "unaligned_excess_ms": 100, "p99_ratio_checkpointing": 1.5,
        "eos_p50_ms": 20, "eos_p99_ms": 45, "recovery_1m_ms": 2000, "recovery_1m_cold_ms": 5000,
    },
    ratios={
        "p99_ratio_checkpointing": ("checkpointing_p99_ms", "none_p99_ms"),
        "throughput_unaligned_over_none": (
            "pressed_unaligned_per_minute", "pressed_none_per_minute",
        ),
        "progress_under_kills": ("unaligned_killed_per_minute", "undisturbed_per_minute"),
    },
    never=("repeats", "lost"),
    picture="checkpoints.png",
    draw=held.draw,
)  # fmt: skip
METHOD = (
    "keyed count over 100,000 keys, one result to Kafka per record, 2 partitions, 2 workers, all on"
    " one machine. Latency: open loop, {rate:,} records/s, {seconds:g} s after {warm:g} s of"
    " warm-up, to a consumer that reads what is committed. Checkpoints every second. Throughput: a"
    " keyed operator computes for 0.2 ms for each record of 190 bytes, with 1 MiB in flight, for"
    " {pressing:g} s; and drains of {records:,} records that lie on the topic, with a checkpoint"
    " every second and every ten. Recovery: {keys:,} keys, 1,000 records/s, a checkpoint every 5 s,"
    " kill -9 of a worker some time between two. Durations: a keyed operator sleeps 8 ms for each"
    " record, of 54 bytes (300kb), 190 (1mb) or 1,024 (10mb, 100mb); a chain, and a fan-in of two"
    " sources; medians of 5 unaligned checkpoints, one of each other policy; the topic's rate is"
    " of the same moment. Kills: 2 ms for each record, a checkpoint every 0.5 s, a worker killed"
    " every 10 s for {killing:g} s. Medians of {{runs}} runs, ratios run by run."
)
ONCE = {"DELIVERY": "exactly_once"}
EVERY_SECOND, EVERY_TENTH = {"CHECKPOINTS": "1"}, {"CHECKPOINTS": "10"}
TWICE_A_SECOND = {"CHECKPOINTS": "0.5"}
ALIGNED = {"POLICY": "aligned"}
SLEEP, WORK = 0.002, 0.0002
"""Seconds for each record: asleep where workers are killed, at work where throughput counts."""
BETWEEN = 5
"""Seconds between two checkpoints of a flow that is to recover."""
RATE, WATCHED = 1000, 8.0
"""Records per second while workers are killed, and for how many seconds what is due then counts."""
BACKLOG = "backlog"


def latencies(rate: int, seconds: float) -> list[Part]:
    """At least once and exactly once, with and without checkpoints."""
    return [
        lambda b: latency.flow(b, rate, seconds).named("none_"),
        lambda b: latency.flow(b, rate, seconds, **EVERY_SECOND).named("checkpointing_"),
        lambda b: latency.flow(b, rate, seconds, **ONCE).named("eos_"),
        lambda b: latency.flow(b, rate, seconds, **ONCE, **EVERY_SECOND).named("eos_every_second_"),
    ]


def drains(bootstrap: str, records: int) -> Mapping[str, float]:
    """A backlog as fast as it goes, with and without checkpoints, and exactly once."""
    cases = {
        "none": {}, "every_second": EVERY_SECOND, "every_tenth": EVERY_TENTH,
        "aligned": EVERY_SECOND | ALIGNED, "once": ONCE,
    }  # fmt: skip
    return {
        f"drain_{name}": drain(bootstrap, BACKLOG, records, **how) for name, how in cases.items()
    }


def killings(bootstrap: str, seconds: float) -> Mapping[str, float]:
    """What is finished while workers are killed."""

    def finished(killing: bool, **how: str) -> kills.Finished:
        how = ONCE | TWICE_A_SECOND | how
        return kills.finished(bootstrap, seconds, SLEEP, how, killing=killing)

    found = {
        "undisturbed": finished(killing=False),
        "unaligned_killed": finished(killing=True),
        "aligned_killed": finished(killing=True, **ALIGNED),
    }
    return {f"{name}_per_minute": one.per_minute for name, one in found.items()} | {
        "repeats": sum(one.repeats for one in found.values()),
        "lost": sum(one.lost for one in found.values()),
    }


def pressed(bootstrap: str, seconds: float) -> Mapping[str, float]:
    """What a flow finishes that is back-pressured by an operator that computes."""
    cases = {"none": {}, "unaligned": EVERY_SECOND, "aligned": EVERY_SECOND | ALIGNED}
    return {
        f"pressed_{name}_per_minute": kills.finished(
            bootstrap, seconds, WORK, {"WORK": "on", **how}, killing=False
        ).per_minute
        for name, how in cases.items()
    }


def recovery(
    keys: int, name: str, killed: int, moments: random.Random, bootstrap: str
) -> Mapping[str, float]:
    """From the kill of so many workers until all is as before."""
    # Each run has states of its own: it leaves checkpoints of its source behind.
    with (
        States(bootstrap).flow(keys, {"CHECKPOINTS": str(BETWEEN)}) as loaded,
        loading(bootstrap, loaded.source, loaded.flow.topic, Wave.fixed(RATE), keys) as loop,
    ):
        flow = loaded.flow
        time.sleep(latency.WARM_UP)
        taken = len(flow.events(Checkpointed))
        flow.until_more(Checkpointed, taken)
        # Some time before the next, so that there is something to be done again.
        time.sleep(moments.uniform(0, BETWEEN))
        for process in flow.current()[:killed]:
            kills.kill(process)
        at = time.time()
        time.sleep(2 * WATCHED)
        lost, started = flow.events(Recovering)[-1][0], flow.events(Started)[-1][0]
    timeline = loop.found().between(at, at + WATCHED).first()
    assert len(timeline.due) >= RATE * WATCHED - 1, "each record has its result"
    # What was due before it waits for less.
    return {
        f"{name}_lost_ms": 1000 * (lost - at), f"{name}_started_ms": 1000 * (started - at),
        f"{name}_ms": timeline.summary().max_ms, f"{name}_silence_ms": 1000 * timeline.silence(at),
    }  # fmt: skip


def main(
    runs: Annotated[int, typer.Option(min=1, help="Of each part.")] = 3,
    rate: Annotated[int, typer.Option(help="Records per second where latency counts.")] = 5_000,
    seconds: Annotated[float, typer.Option(help="Of each measurement of latency.")] = 20.0,
    records: Annotated[int, typer.Option(help="To be drained; 0 for no drains.")] = 5_000_000,
    keys: Annotated[int, typer.Option(help="Of a recovery; 0 for none.")] = 1_000_000,
    killing: Annotated[float, typer.Option(help="Seconds of kills; 0 for none.")] = 60.0,
    pressing: Annotated[float, typer.Option(help="Seconds of back-pressure; 0 for none.")] = 30.0,
    sizes: Annotated[bool, typer.Option(help="Measure durations by what is in flight.")] = True,
) -> None:
    """Measure everything; takes about an hour as it is. Nothing else should run."""

    def prepare(bootstrap: str) -> None:
        # What has just started compiles itself, and what commits goes other ways than an echo.
        latency.flow(bootstrap, rate, 2 * seconds, **ONCE)
        load.create(bootstrap, BACKLOG, partitions=PARTITIONS)
        load.fill(bootstrap, BACKLOG, records)

    parts: list[tuple[object, Part]] = [
        *((True, part) for part in latencies(rate, seconds)),
        (sizes, held.durations),
        (killing, partial(killings, seconds=killing)),
        (pressing, partial(pressed, seconds=pressing)),
        (records, partial(drains, records=records)),
        *(
            (keys, partial(recovery, keys, name, killed, random.Random(name)))
            for name, killed in (("recovery_1m", 1), ("recovery_1m_cold", WORKERS))
        ),
    ]  # fmt: skip
    method = METHOD.format(
        rate=rate, seconds=seconds, warm=latency.WARM_UP, records=records, keys=keys,
        killing=killing, pressing=pressing,
    )  # fmt: skip
    report.measure(CHECKPOINTS, method, prepare, [part for asked, part in parts if asked], runs)


if __name__ == "__main__":
    typer.run(main)
