"""Autoscalers against fixed plans under the load of a day: records that are late, and the seconds
of all workers.

Each worker serves a fixed rate by a timer, as if it had a core of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks import load, moving, running
from benchmarks.control.day import Day
from benchmarks.open_loop import loading
from benchmarks.outcome import Curve, Found
from benchmarks.running import Running
from benchmarks.states import States
from meander.app.measurement.latencies import Timeline
from meander.schemas.status import JoinFailed, Left, Reconfigured, Reconfiguring, RolledBack

MOST = 3
"""Workers."""
LATE_MS = 500
"""Of a record's latency, from which on it counts as a miss."""
INTERVAL = 2.0
"""Seconds from one decision of a policy to the next."""
KEYS = 20_000
POINTS = 120
"""Of a picture, over the day."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers at the start, and the policy that changes their number, if any."""

    name: str
    workers: int
    policy: str = ""

    def options(self) -> list[str]:
        """Of `meander run`."""
        return ["--policy", self.policy, "--policy-interval", f"{INTERVAL:g}"] * bool(self.policy)


FIXED = tuple(
    Plan(f"{workers} worker{'s' * (workers > 1)}", workers) for workers in range(1, MOST + 1)
)
AUTOSCALERS = (
    Plan(
        "threshold", 1, f"threshold:max_workers={MOST},high=0.75,low=0.4,lag_seconds=1,"
        "catch_up=5,readiness=1,patience=2,cool_down=2",
    ),
    Plan(
        "ds2", 1, f"ds2:max_workers={MOST},utilization=0.75,high=0.85,catch_up=5,allowed_lag=1,"
        "scale_down_after=6,cool_down=2",
    ),
)  # fmt: skip
"""Their times are as short as the day is fast."""


def run(states: States, day: Day, plan: Plan) -> dict[str, Found]:
    """One day under a plan, or an autoscaler. Raises Lost."""
    bench = {"SERVICE": f"{day.service:g}"}
    with (
        load.topic(states.bootstrap, "day", MOST) as source,
        running.flow(
            states.bootstrap, source, bench, workers=plan.workers, room=MOST - plan.workers,
            partitions=MOST, options=plan.options(),
        ) as flow,
    ):  # fmt: skip
        with loading(states.bootstrap, source, flow.topic, day, KEYS) as loop:
            time.sleep(day.seconds)
        changes = [*worker_changes(flow)]
        failed = flow.events(RolledBack)
    assert not failed, f"a change of plan has failed: {failed[0]}"
    timeline, start = loop.found(), loop.began
    counts = Counts(plan.workers, changes)
    figures = misses(timeline) | {
        "worker_seconds": counts.seconds(start, start + day.seconds),
        "changes": len(flow.events(Reconfigured)),
    }
    return {plan.name: Found(figures=figures, curve=_curve(timeline, counts, start, day))}


def misses(timeline: Timeline) -> dict[str, float]:
    """The share of records that were late, and the latencies of all."""
    return timeline.summary().named("moving_") | {"misses": float(np.mean(timeline.took > LATE_MS))}


def worker_changes(flow: Running) -> Iterator[tuple[float, int]]:
    """When workers came, and went: a worker counts from the start of its process on."""
    for at, started in flow.events(Reconfiguring):
        yield at, sum(": starts" in operation for operation in started.operations)
    for at, _ in (*flow.events(Left), *flow.events(JoinFailed)):
        yield at, -1


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of workers over time.

    >>> counts = Counts(1, [(12.0, 1), (15.0, -1)])
    >>> counts.at(11.0), counts.at(13.0), counts.seconds(10.0, 20.0)
    (1, 2, 13.0)
    """

    first: int
    changes: Sequence[tuple[float, int]]
    """Seconds since 1970, and by how many workers more there are from then on."""

    def at(self, time: float) -> int:
        """Return the number at a time."""
        return self.first + sum(change for at, change in self.changes if at <= time)

    def seconds(self, start: float, end: float) -> float:
        """Return the seconds of all workers between two times."""
        edges = sorted({start, end, *(at for at, _ in self.changes if start < at < end)})
        spans = pairwise(edges)
        return sum((until - since) * self.at(since) for since, until in spans)


def _curve(timeline: Timeline, counts: Counts, start: float, day: Day) -> Curve:
    """What a picture shows of a day."""
    step = day.seconds / POINTS
    p50, p99, most = map(moving.points, timeline.slices(start, start + day.seconds, step).T)
    workers = [counts.at(start + (n + 0.5) * step) for n in range(POINTS)]
    return Curve(
        begins=0.0, step=step, ended=day.seconds, p50=p50, p99=p99, most=most, workers=workers
    )


def same_workers(fixed: Sequence[tuple[float, float]], worker_seconds: float) -> float:
    """The misses of a fixed plan of as many worker-seconds, between those of the two next to it.

    >>> same_workers([(100.0, 0.5), (200.0, 0.1)], 150.0)
    0.3
    """
    seconds, missed = zip(*sorted(fixed), strict=True)
    return round(float(np.interp(worker_seconds, seconds, missed)), 9)
