"""The same change in different ways: a quarter of the bins gets another owner by an execution plan,
by other strategies of migration, and by a savepoint, a stop and a restart."""

from __future__ import annotations

import time
from contextlib import ExitStack
from uuid import uuid4

from benchmarks import moving, running
from benchmarks.control.changes import (
    CHANGES,
    QUARTER,
    TAIL,
    Applied,
    Load,
    apply,
    latencies,
    under,
)
from benchmarks.control.identity import BINS, Timelines
from benchmarks.latency import WARM_UP
from benchmarks.moving import Strategy
from benchmarks.outcome import Found
from benchmarks.running import PARTITIONS, Running
from benchmarks.states import Loaded, States
from meander.app.measurement.latencies import Timeline
from meander.dataflow.execution_plan.bin_ranges import numbers
from meander.schemas.status import Completed

BALANCING = CHANGES[0]
PARTIAL_PAUSE, RESTART = "partial pause", "savepoint, stop, restart"
STRATEGIES = {
    "all-at-once": Strategy("all-at-once", precopy=False),
    "fluid": Strategy("fluid", precopy=True),
}
WAYS = (PARTIAL_PAUSE, *STRATEGIES, RESTART)
SAVEPOINT = "moved"


def once(states: States, load: Load, way: str) -> dict[str, Found]:
    """Change the flow once. Raises Unavailable, Lost."""
    with (
        states.flow(load.keys, {}) as loaded,
        ExitStack() as restarted,
        under(loaded, load, BALANCING.moved) as loop,
    ):
        time.sleep(WARM_UP + load.steady)
        if way == PARTIAL_PAUSE:
            applied = apply(loaded.flow, way, BALANCING.there)
        elif way == RESTART:
            applied = _restart(loaded, restarted)
        else:
            applied = _migrate(loaded.flow, way)
        time.sleep(TAIL)
    return {way: _found(Timelines.of(loop.measured()), applied, load.steady)}


def _found(timelines: Timelines, applied: Applied, steady: float) -> Found:
    given, ended = applied.given, applied.ended
    figures = latencies(timelines.affected, [applied], [applied], steady) | {
        "ms": 1000 * (ended - given),
        "steady_pause_ms": pause(timelines.moved, given - steady, given - 1),
        "pause_ms": pause(timelines.moved, given, ended),
        "unaffected_pause_ms": pause(timelines.unaffected, given, ended),
    }  # fmt: skip
    return Found(figures=figures, curve=moving.curve(timelines.affected, given, ended))


def pause(timeline: Timeline, start: float, end: float) -> float:
    """The longest time without a result of what is due from a second before one time to a second
    after another, milliseconds."""
    return 1000 * timeline.between(start - 1, end + 1).silence(start)


def _migrate(flow: Running, way: str) -> Applied:
    id, bins = uuid4().hex[:8], [*numbers(QUARTER, BINS.count)]
    given = flow.give(
        type="migrate", id=id, worker=1, bins=bins, operator="affected",
        **STRATEGIES[way].fields(),
    )  # fmt: skip
    ended, completed = flow.end(id, Completed)
    assert not completed.unmoved, completed
    return Applied(way, given, ended)


def _restart(loaded: Loaded, restarted: ExitStack) -> Applied:
    """Stop the flow with a savepoint; start it again from there, with the other owners."""
    flow = loaded.flow
    given = flow.give(type="stop", id=uuid4().hex[:8], savepoint=SAVEPOINT)
    flow.ended()
    restarted.enter_context(
        running.flow(
            flow.bootstrap, loaded.source, {"RESTORED": f"1:{QUARTER}"}, partitions=PARTITIONS,
            prefix=flow.prefix, module=running.ROOT / "benchmarks" / "control" / "flow.py",
            options=["--from", SAVEPOINT], after=flow,
        )
    )  # fmt: skip
    return Applied(RESTART, given, time.time())
