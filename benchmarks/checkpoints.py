"""Measure what checkpoints, recovery and exactly once cost: `python -m benchmarks.checkpoints`.

Writes results/checkpoints.json and two pictures, docs/checkpoints*.png, after each run. What is
compared takes turns, so that a noisy machine is noisy for all. A recovery is the longest time that
a record waits for its result which is due after one worker is killed, whose states are loaded from
the state topic then, or both.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import drain, held, kills, latency, load, openloop, report
from benchmarks.running import PARTITIONS, ROOT, WORKERS
from benchmarks.states import States
from benchmarks.wave import Wave
from meander.connectors.local_broker.broker import LocalBroker

AT_MOST = {
    "unaligned_ms_300kb": 50, "unaligned_excess_ms": 100, "p99_ratio_checkpointing": 1.5,
    "eos_p50_ms": 20, "eos_p99_ms": 45, "recovery_1m_ms": 2000,
    "recovery_1m_cold_ms": 5000,
}  # fmt: skip
AT_LEAST = {
    "aligned_over_unaligned": 200, "throughput_unaligned_over_none": 0.95,
    "progress_under_kills": 0.9,
}  # fmt: skip
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
    " every 10 s for {killing:g} s. Medians of {runs} runs, ratios run by run."
)
ONCE = {"DELIVERY": "exactly_once"}
EVERY_SECOND, EVERY_TENTH = {"CHECKPOINTS": "1"}, {"CHECKPOINTS": "10"}
TWICE_A_SECOND = {"CHECKPOINTS": "0.5"}
ALIGNED = {"POLICY": "aligned"}
SLEEP, WORK = 0.002, 0.0002
"""Seconds for each record: asleep where workers are killed, at work where throughput counts."""
BETWEEN = 5
"""Seconds between two checkpoints of a flow that is to recover."""
RATE, WATCHED, LOOK = 1000, 8.0, 0.01
"""Records per second while workers are killed; for how many seconds what is due then counts; and
seconds between two looks whether it is time to kill."""
SHAPES = "chain", "fan"
Part = Callable[[str], dict[str, float]]


def latencies(rate: int, seconds: float) -> list[Part]:
    """At least once and exactly once, with and without checkpoints."""
    return [
        lambda b: latency.flow(b, rate, seconds).named("none_"),
        lambda b: latency.flow(b, rate, seconds, **EVERY_SECOND).named("checkpointing_"),
        lambda b: latency.flow(b, rate, seconds, **ONCE).named("eos_"),
        lambda b: latency.flow(b, rate, seconds, **ONCE, **EVERY_SECOND).named("eos_every_second_"),
    ]


def drains(source: str, records: int) -> Part:
    """A backlog as fast as it goes, with and without checkpoints, and exactly once."""

    def once(bootstrap: str) -> dict[str, float]:
        return {
            "drain_none": drain.flow(bootstrap, source, records),
            "drain_every_second": drain.flow(bootstrap, source, records, **EVERY_SECOND),
            "drain_every_tenth": drain.flow(bootstrap, source, records, **EVERY_TENTH),
            "drain_aligned": drain.flow(bootstrap, source, records, **EVERY_SECOND, **ALIGNED),
            "drain_once": drain.flow(bootstrap, source, records, **ONCE),
        }

    return once


def durations() -> list[Part]:
    """By what is in flight, of a chain and a fan-in."""
    shapes = [(load_, fan) for load_ in held.LOADS for fan in (False, True)]
    return [partial(held.durations, load_=load_, fan=fan) for load_, fan in shapes]


def killings(seconds: float) -> Part:
    """What is finished while workers are killed."""

    def once(bootstrap: str) -> dict[str, float]:
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

    return once


def pressed(seconds: float) -> Part:
    """What a flow finishes that is back-pressured by an operator that computes."""

    def once(bootstrap: str) -> dict[str, float]:
        def finished(**how: str) -> float:
            how = {"WORK": "on"} | how
            return kills.finished(bootstrap, seconds, WORK, how, killing=False).per_minute

        return {
            "pressed_none_per_minute": finished(),
            "pressed_unaligned_per_minute": finished(**EVERY_SECOND),
            "pressed_aligned_per_minute": finished(**EVERY_SECOND, **ALIGNED),
        }

    return once


def recovery(keys: int, name: str, killed: int) -> Part:
    """From the kill of so many workers until all is as before."""
    moment = random.Random(name)

    def once(bootstrap: str) -> dict[str, float]:
        # Each run has states of its own: it leaves checkpoints of its source behind.
        with States(bootstrap).flow(keys, {"CHECKPOINTS": str(BETWEEN)}) as loaded:
            flow, wave = loaded.flow, Wave.fixed(RATE)
            with openloop.running(bootstrap, loaded.source, flow.topic, wave, keys) as loop:
                time.sleep(latency.WARM_UP)
                taken = len(flow.events("checkpointed"))
                while len(flow.events("checkpointed")) == taken:
                    time.sleep(LOOK)
                # Some time before the next, so that there is something to be done again.
                time.sleep(moment.uniform(0, BETWEEN))
                for process in flow.current()[:killed]:
                    os.kill(process, signal.SIGKILL)
                at = time.time()
                time.sleep(2 * WATCHED)
        found = {f"{name}_{what}_ms": 1000 * (flow.events(event)[-1].at - at)
                 for what, event in (("lost", "recovering"), ("started", "started"))}  # fmt: skip
        timeline = loop.found().between(at, at + WATCHED).first()
        assert len(timeline.due) >= RATE * WATCHED - 1, "each record has its result"
        # What was due before it waits for less.
        return found | {
            f"{name}_ms": timeline.latency().most,
            f"{name}_silence_ms": 1000 * timeline.silence(at),
        }

    return once


def figures(measured: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """What is asked for, by id, in each run: what is compared is of the same one."""

    def ratios(over: str, under: str) -> list[float]:
        return [a / b for a, b in zip(measured[over], measured[under], strict=True)]

    found: dict[str, Sequence[float]] = {
        name: measured[name] for name in ("eos_p50_ms", "eos_p99_ms") if name in measured
    }
    if "checkpointing_p99_ms" in measured:
        found["p99_ratio_checkpointing"] = ratios("checkpointing_p99_ms", "none_p99_ms")
    if "pressed_none_per_minute" in measured:
        name = "throughput_unaligned_over_none"
        found[name] = ratios("pressed_unaligned_per_minute", "pressed_none_per_minute")
    if "fan_100mb_excess_ms" in measured:
        found["unaligned_ms_300kb"] = measured["chain_300kb_unaligned_ms"]
        shapes = [ratios(f"{s}_300kb_aligned_ms", f"{s}_300kb_unaligned_ms") for s in SHAPES]
        found["aligned_over_unaligned"] = list(map(min, zip(*shapes, strict=True)))
        excesses = [measured[f"{s}_{one.name}_excess_ms"] for s in SHAPES for one in held.LOADS]
        found["unaligned_excess_ms"] = list(map(max, zip(*excesses, strict=True)))
    if "unaligned_killed_per_minute" in measured:
        name = "progress_under_kills"
        found[name] = ratios("unaligned_killed_per_minute", "undisturbed_per_minute")
    others = "repeats", "lost", "recovery_1m_ms", "recovery_1m_cold_ms"
    return found | {name: measured[name] for name in others if name in measured}


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
    console = Console(stderr=True)
    measured: dict[str, list[float]] = defaultdict(list)
    source = "backlog"
    parts = [
        *latencies(rate, seconds),
        *(durations() if sizes else []),
        *([killings(killing)] if killing else []),
        *([pressed(pressing)] if pressing else []),
        *([drains(source, records)] if records else []),
        *(
            [recovery(keys, "recovery_1m", 1), recovery(keys, "recovery_1m_cold", WORKERS)]
            if keys
            else []
        ),
    ]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with LocalBroker() as broker, Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("benchmarks", total=runs * len(parts))
        # What has just started compiles itself, and what commits goes other ways than an echo.
        latency.flow(broker.bootstrap, rate, 2 * seconds, **ONCE)
        load.create(broker.bootstrap, source, partitions=PARTITIONS)
        load.fill(broker.bootstrap, source, records)
        for run in range(1, runs + 1):
            for part in parts:
                for name, value in part(broker.bootstrap).items():
                    measured[name].append(value)
                    bar.console.print(f"{name}: {value:,.4g}")
                bar.advance(task)
            method = METHOD.format(
                rate=rate, seconds=seconds, warm=latency.WARM_UP, records=records, keys=keys,
                runs=run, killing=killing, pressing=pressing,
            )  # fmt: skip
            tell(bar.console, method, measured, sizes)


def tell(console: Console, method: str, measured: dict[str, list[float]], sizes: bool) -> None:
    """Write and draw what has been measured so far."""
    medians = {name: statistics.median(values) for name, values in measured.items()}
    by_run = figures(measured)
    # Of what must not happen not even one may be hidden.
    counts = "repeats", "lost"
    found = {n: sum(v) if n in counts else statistics.median(v) for n, v in by_run.items()}
    path = report.write("checkpoints", method, {**measured, **by_run}, found)
    picture = report.bars(found, AT_LEAST | AT_MOST, "Checkpoints: measured over wanted")
    picture.savefig(ROOT / "docs" / "checkpoints.png")
    if sizes:
        held.curves(medians).savefig(ROOT / "docs" / "checkpoints-durations.png")
    for name, value in found.items():
        wanted = f">= {AT_LEAST[name]}" if name in AT_LEAST else f"<= {AT_MOST.get(name, 0)}"
        spread = ", ".join(f"{one:.3g}" for one in by_run[name])
        console.print(f"{name}: {value:.3g} (wanted {wanted}; by run {spread})")
    console.print(f"written to {path} and docs/checkpoints.png")


if __name__ == "__main__":
    typer.run(main)
