"""What is measured beside migrations: what it costs to be able to move, what load could be borne,
how soon a command takes effect, and how a worker joins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from benchmarks import latency, load, moving
from benchmarks.latency import WARM_UP
from benchmarks.moving import ALL_AT_ONCE, STEADY, TAIL, Case
from benchmarks.open_loop import loading
from benchmarks.outcome import Found
from benchmarks.running import WORKERS, Running
from benchmarks.states import States
from meander.app.measurement.open_loop import Wave
from meander.schemas.status import Accepted, Completed, Joined, Rescaled

COMMANDS = 10
"""That one bin moves by, to and fro."""
APART = 2.0
"""Seconds between two of them."""
BACKLOG = 500_000
"""Records that are drained."""


def cost(states: States, keys: int, wave: Wave, bench: Mapping[str, str]) -> Found:
    """Latencies of a flow that does not move. Raises Lost."""
    with states.flow(keys, bench) as loaded:
        steady = latency.measure(
            states.bootstrap, loaded.source, loaded.flow.topic, wave, STEADY, keys
        )
    return Found(figures=steady.steadily())


def capacity(states: States, case: Case) -> Found:
    """What the workers that have the bins at first make of a backlog, from their first results on,
    and which part of that the case's load is."""
    with states.flow(case.keys, case.bench(), case.old, backlog=BACKLOG) as loaded:
        began, done = time.monotonic(), loaded.flow.results()
        loaded.flow.until_results(BACKLOG, 0.02)
        speed = (BACKLOG - done) / (time.monotonic() - began)
    figures = {"capacity_per_s": speed, "load_over_capacity": case.wave.mean / speed}
    return Found(figures=figures)


def lead(states: States, wave: Wave, seconds: float) -> Found:
    """Latencies with one `control_lead`, and how long commands take that name no time. Raises
    Lost."""
    bench = {"LEAD": str(seconds)}
    with states.flow(load.KEYS, bench) as loaded:
        flow = loaded.flow
        with loading(states.bootstrap, loaded.source, flow.topic, wave) as loop:
            time.sleep(WARM_UP + STEADY)
            quiet = time.time()
            moves = [_move(flow, number) for number in range(COMMANDS)]
    effects, ends = zip(*moves, strict=True)
    figures = loop.found().between(quiet - STEADY, quiet).steadily() | {
        "effect_ms": 1e3 * statistics.median(effects), "moved_ms": 1e3 * statistics.median(ends),
    }  # fmt: skip
    return Found(figures=figures)


def _move(flow: Running, number: int) -> tuple[float, float]:
    """Seconds from a command to the logical time from which it holds, and to its end."""
    # Bin 0 is worker 0's at the start.
    name, target = f"lead-{number}", (number + 1) % WORKERS
    given = flow.give(type="migrate", id=name, worker=target, bins=[0], **ALL_AT_ONCE.fields())
    ended, _ = flow.end(name, Completed)
    time.sleep(APART)
    ((_, accepted),) = flow.events(Accepted, name)
    assert accepted.time is not None
    return accepted.time / 1000 - given, ended - given


def rescale(states: States, keys: int, wave: Wave) -> Found:
    """One worker becomes two, its start included. Raises Lost."""
    with (
        states.flow(keys, {}, workers=1, room=1) as loaded,
        loading(states.bootstrap, loaded.source, loaded.flow.topic, wave, keys) as loop,
    ):
        flow = loaded.flow
        time.sleep(WARM_UP + STEADY)
        given = flow.give(type="rescale", id="two", workers=2)
        ended, rescaled = flow.end("two", Rescaled)
        assert rescaled.workers == 2, rescaled
        time.sleep(TAIL)
    timeline = loop.found()
    during = timeline.between(given, ended).summary()
    figures = timeline.between(given - STEADY, given).steadily("steady_") | {
        "moving_p99_ms": during.p99_ms, "moving_max_ms": during.max_ms, "seconds": ended - given,
        **loaded.figures,
    }  # fmt: skip
    for at, _ in flow.events(Joined, "two"):
        figures["joined_s"] = at - given
    return Found(figures=figures, curve=moving.curve(timeline, given, ended))
