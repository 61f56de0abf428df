"""Changes of the execution plan, there and back, under load: how long each takes, and what results
take before, meanwhile and after.

The flow has two operators whose bins move alone. Every change leaves the bins and the logic of one
of them as they are, and the readers of all partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np

from benchmarks import moving
from benchmarks.control.identity import BINS, Timelines, records
from benchmarks.latency import WARM_UP
from benchmarks.open_loop import Loop, loading
from benchmarks.outcome import Found
from benchmarks.running import PARTITIONS, Running
from benchmarks.states import Loaded, States
from meander.app.measurement.latencies import LatencySummary, Timeline
from meander.app.measurement.open_loop import Wave
from meander.dataflow.execution_plan.bin_ranges import numbers
from meander.schemas.status import Joined, PlanCompared, PlanInForce, Reconfigured

Sections = Mapping[str, Any]
"""A plan, or the sections of one that change, as a document has them."""
QUARTER = "64-127"
"""A quarter of the bins, which worker 0 has at first."""
HALVES = {"0": "0-127", "1": "128-255"}
READERS = {"records": {str(n): str(n) for n in range(PARTITIONS)}}
TAIL = 10.0
"""Seconds after the last change."""
BETWEEN = 4.0
"""Seconds from the end of one change to the next."""
Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the plan, and the one that undoes it."""

    names: Names
    """Of both; what has one name is measured together."""
    there: Sections
    back: Sections
    moved: frozenset[int] = frozenset()
    """The bins that have another owner meanwhile."""
    room: int = 0
    """For how many workers more."""


def _scaled(bins: Mapping[str, str], **more: object) -> dict[str, object]:
    """All workers that have bins; without names of its own, the other operator would get a share of
    new workers too."""
    return {
        "workers": {worker: {} for worker in bins}, "partitions": READERS,
        "bins_of": {"affected": dict(bins), "unaffected": HALVES}, **more,
    }  # fmt: skip


def bins_of(text: str) -> frozenset[int]:
    return frozenset(numbers(text, BINS.count))


def logic(name: str, **parameters: object) -> dict[str, object]:
    """The section of a plan with another logic of the affected operator."""
    return {"operators": {"affected": {"logic": name, "parameters": parameters}}}


CHANGES = (
    Change(
        ("load balancing",) * 2, {"bins_of": {"affected": {"0": "0-63", "1": "64-255"}}},
        {"bins_of": {"affected": HALVES}}, bins_of(QUARTER),
    ),
    Change(
        ("scaling out", "scaling in"),
        _scaled({"0": "0-84", "1": "128-212", "2": "85-127, 213-255"}), _scaled(HALVES),
        bins_of("85-127, 213-255"), room=1,
    ),
    Change(("change of logic",) * 2, logic("Weighted", weight=3), logic("Count")),
    Change(
        ("mixed, a worker joins", "mixed, a worker leaves"),
        _scaled({"0": "0-63", "1": "128-255", "2": QUARTER}, **logic("Weighted", weight=3)),
        _scaled(HALVES, **logic("Count")), bins_of(QUARTER), room=1,
    ),
)  # fmt: skip
"""Those on one Spark master; they are repeated to and fro."""


@dataclass(frozen=True, slots=True)
class Load:
    """States, and the load on them."""

    keys: int
    rate: int
    """Records per second, half of them of each operator."""
    steady: float = 20.0
    """Seconds before the first change that count as steady."""
    repeats: int = 3
    """Of a change, there and back."""

    def __str__(self) -> str:
        return f"{self.keys:,} keys in {BINS.count} bins, {self.rate:,} records/s"


@dataclass(frozen=True, slots=True)
class Applied:
    """A plan that was applied: when, in seconds since 1970, and what its events say."""

    name: str
    given: float
    ended: float
    joined: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


def apply(flow: Running, name: str, plan: Sections) -> Applied:
    """Apply a plan; return once it is in force, and workers that it does not have are gone.
    Raises Unavailable where the flow rejects it, AssertionError where it fails."""
    id = uuid4().hex[:8]
    given = flow.give(type="apply_plan", id=id, plan=plan, by="benchmark")
    ended, _ = flow.end(id, Reconfigured)
    ((_, in_force),) = flow.events(PlanInForce, id)
    assert in_force.prepare_ms is not None
    assert in_force.synchronise_ms is not None
    joined = max((at for at, _ in flow.events(Joined, id)), default=None)
    figures = {
        "ms": 1000 * (ended - given), "prepare_ms": in_force.prepare_ms,
        "synchronise_ms": in_force.synchronise_ms,
    }  # fmt: skip
    if joined is not None:
        figures |= {"joined_ms": 1000 * (joined - given), "after_ms": 1000 * (ended - joined)}
    return Applied(name, given, ended, joined, figures)


def current(flow: Running) -> Sections:
    """The plan in force."""
    id = uuid4().hex[:8]
    flow.give(type="apply_plan", id=id, plan={}, dry_run=True)
    return flow.end(id, PlanCompared)[1].plan


def under(loaded: Loaded, load: Load, moved: frozenset[int]) -> AbstractContextManager[Loop]:
    """The load on a flow. The measurement counts records of the bins in `moved` by themselves."""
    flow = loaded.flow
    return loading(
        flow.bootstrap, loaded.source, flow.topic, Wave.fixed(load.rate), load.keys,
        made=partial(records, moved),
    )  # fmt: skip


def to_and_fro(states: States, load: Load, change: Change) -> dict[str, Found]:
    """Apply a change and undo it, again and again. Raises Unavailable, Lost."""
    with (
        states.flow(load.keys, {}, room=change.room) as loaded,
        under(loaded, load, change.moved) as loop,
    ):
        time.sleep(WARM_UP + load.steady)
        applied = list(_repeated(loaded.flow, change, load.repeats))
        time.sleep(TAIL)
    return found(Timelines.of(loop.measured()), applied, load.steady)


def _repeated(flow: Running, change: Change, repeats: int) -> Iterator[Applied]:
    for name, plan in repeats * [*zip(change.names, (change.there, change.back), strict=True)]:
        yield apply(flow, name, plan)
        time.sleep(BETWEEN)


def found(timelines: Timelines, applied: Sequence[Applied], steady: float) -> dict[str, Found]:
    """What was found of each name."""
    names = dict.fromkeys(one.name for one in applied)
    return {name: _found(timelines, applied, name, steady) for name in names}


def _found(
    timelines: Timelines, applied: Sequence[Applied], name: str, steady: float
) -> Found:  # fmt: skip
    its = [one for one in applied if one.name == name]
    figures = latencies(timelines.affected, applied, its, steady)
    figures |= {
        f"unaffected_{what}": value
        for what, value in latencies(timelines.unaffected, applied, its, steady).items()
    }
    known = dict.fromkeys(what for one in its for what in one.figures)
    figures |= {what: median(one.figures[what] for one in its) for what in known}
    curve = moving.curve(timelines.affected, its[0].given, its[0].ended)
    return Found(figures=figures, curve=curve)


def latencies(
    timeline: Timeline, applied: Sequence[Applied], its: Sequence[Applied], steady: float
) -> dict[str, float]:
    """Latencies before all changes, while some of them are under way, and between all of them."""
    first = applied[0].given
    ends = [one.ended for one in applied]
    starts = [*(one.given for one in applied[1:]), ends[-1] + TAIL]
    before = timeline.between(first - steady, first)
    during = summary(timeline, [(one.given, one.ended) for one in its])
    # A second after each change what it has held up is through.
    after = summary(timeline, [(end + 1, start) for end, start in zip(ends, starts, strict=True)])
    return before.steadily("steady_") | during.named("moving_") | after.named("settled_")


def summary(timeline: Timeline, spans: Sequence[tuple[float, float]]) -> LatencySummary:
    """The latencies of all that was due in some spans."""
    parts = [timeline.between(*span) for span in spans]
    due = np.concatenate([one.due for one in parts])
    took = np.concatenate([one.took for one in parts])
    return Timeline(due, took).summary()


Run = Callable[[States], dict[str, Found]]
"""One run of some cases. Raises Unavailable, Lost."""
