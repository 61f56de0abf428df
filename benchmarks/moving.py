"""One migration under load: how long results took before, meanwhile and after.

At first all bins are on the `old` first workers of `new`, twice as many; then each gives half of
its bins to one of the others, by a command on the control topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import numpy as np

from benchmarks import running
from benchmarks.latency import WARM_UP
from benchmarks.open_loop import loading
from benchmarks.outcome import Curve, Found
from benchmarks.running import Running
from benchmarks.states import States
from meander.app.measurement.latencies import BACK, Float64s, Timeline
from meander.app.measurement.open_loop import Wave
from meander.schemas.status import Accepted, BinMoved, Completed

STEADY = 20.0
"""Seconds before the command that count as steady."""
TAIL = 20.0
"""Seconds after the end of the move."""
SHOWN = 10.0
"""Seconds before the command, and after the end, that a timeline shows."""
STEP = 0.1
"""Seconds of one point of a timeline."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How bins move."""

    name: str
    precopy: bool
    order: str = "as-listed"

    def __str__(self) -> str:
        first = "" if self.order == "as-listed" else f", {self.order} first"
        return f"precopy {self.name}{first}" if self.precopy else f"{self.name}{first}"

    def fields(self) -> dict[str, object]:
        """Of a command."""
        return {"strategy": self.name, "precopy": self.precopy, "order": self.order}


DEFAULT, ALL_AT_ONCE = Strategy("batched", precopy=True), Strategy("all-at-once", precopy=False)
STRATEGIES = {
    str(strategy): strategy
    for strategy in (
        DEFAULT, Strategy("fluid", precopy=True), Strategy("all-at-once", precopy=True),
        Strategy("batched", precopy=False), Strategy("fluid", precopy=False), ALL_AT_ONCE,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """What is moved under what load."""

    keys: int
    wave: Wave
    old: int = 1
    new: int = 2
    bits: int = 8
    service: int = 0
    """Records per second that each worker serves, by timer; 0 for as many as it can."""
    interval: float = 10.0
    """Seconds between two snapshots."""
    pace: tuple[tuple[str, str], ...] = ()
    """Variables of the flow that say how fast bins are moved ahead."""
    skewed: bool = False
    """Whether the n-th key comes as often as 1/n."""

    def __str__(self) -> str:
        each = f", each worker serves {self.service:,}/s by timer" if self.service else ""
        return (
            f"{self.keys:,} keys in {1 << self.bits} bins, {self.old} to {self.new} workers,"
            f" {self.wave} records/s{', skewed' * self.skewed}{each}"
        )

    def bench(self) -> dict[str, str]:
        """The flow's MEANDER_BENCH_ variables."""
        served = {"SERVICE": str(self.service)} if self.service else {}
        own = {"BINS": str(self.bits), "SNAPSHOTS": str(self.interval)}
        return {"HOME": str(self.old), **own, **served, **dict(self.pace)}

    def moves(self) -> list[tuple[int, list[int]]]:
        """Who gets which bins.

        >>> Case(0, Wave.fixed(1), old=2, new=4, bits=3).moves()
        [(2, [2, 3]), (3, [6, 7])]
        """
        moves = []
        for worker in range(self.old):
            owned = [bin for bin in range(1 << self.bits) if bin * self.old >> self.bits == worker]
            moves.append((self.old + worker, owned[len(owned) // 2 :]))
        return moves


@dataclass(frozen=True, slots=True)
class Moved:
    """When a move took place, seconds since 1970."""

    given: float
    began: float
    """From this logical time on records are the new owners' (of the first round)."""
    installed: float
    ended: float
    bytes: int


def once(
    states: States,
    case: Case,
    strategy: Strategy,
    *,
    watched: bool = False,
    besides: Callable[[Running], Mapping[str, float]] = lambda _: {},
) -> Found:
    """One migration; with its workers' memory if `watched`, which costs them time. `besides`
    measures something else of the flow at the end. Raises Unavailable, Lost."""
    with states.flow(case.keys, case.bench(), case.new) as loaded:
        flow = loaded.flow
        with (
            loading(
                states.bootstrap, loaded.source, flow.topic, case.wave, case.keys,
                skewed=case.skewed,
            ) as loop,
            _watching(flow.workers if watched else ()) as held,
        ):  # fmt: skip
            time.sleep(WARM_UP + STEADY)
            moved = _move(flow, case, strategy)
            time.sleep(TAIL)
        more = besides(flow)
    timeline = loop.found()
    figures = _figures(timeline, moved) | _memory(held, moved) | {**loaded.figures, **more}
    return Found(figures=figures, curve=curve(timeline, moved.given, moved.ended))


def _move(flow: Running, case: Case, strategy: Strategy) -> Moved:
    """One command for each worker that gets bins: side by side, but fluid ones in turn, as bin
    moves after bin."""
    given, ids = [], []
    for worker, bins in case.moves():
        ids.append(f"to-{worker}")
        given.append(
            flow.give(type="migrate", id=ids[-1], worker=worker, bins=bins, **strategy.fields())
        )
        if strategy.name == "fluid":
            flow.end(ids[-1], Completed)
    ends = [flow.end(id, Completed) for id in ids]
    assert not any(end.unmoved for _, end in ends), ends
    times = [event.time / 1000 for _, event in flow.events(Accepted) if event.time is not None]
    installed = [at for at, _ in flow.events(BinMoved)]
    return Moved(
        given[0], min(times, default=given[0]), max(installed, default=given[0]),
        max(at for at, _ in ends), sum(end.bytes for _, end in ends),
    )  # fmt: skip


def _figures(timeline: Timeline, moved: Moved) -> dict[str, float]:
    steady = timeline.between(moved.given - STEADY, moved.given).steadily("steady_")
    moving = timeline.between(moved.given, moved.ended).summary()
    settled = timeline.between(moved.ended + TAIL / 2, moved.ended + TAIL).summary()
    seconds = moved.ended - moved.given
    found = steady | moving.named("moving_") | {
        "settled_p99_ms": settled.p99_ms, "seconds": seconds, "bytes": moved.bytes,
        "bytes_per_s": moved.bytes / (moved.installed - moved.began),
    }  # fmt: skip
    limits = {"back_s": steady["steady_p99_ms"], "back_to_settled_s": settled.p99_ms}
    for name, p99 in limits.items():
        back = timeline.back(moved.given, seconds, BACK * p99)
        if back is not None:
            found[name] = back
    return found


def curve(timeline: Timeline, given: float, ended: float) -> Curve:
    """What a picture shows of a timeline."""
    p50, p99, most = map(points, timeline.slices(given - SHOWN, ended + SHOWN, STEP).T)
    return Curve(
        begins=-SHOWN, step=STEP, ended=round(ended - given, 3), p50=p50, p99=p99, most=most
    )


def points(values: Float64s) -> list[float | None]:
    """Those of a curve; None where there is no record."""
    return [None if np.isnan(value) else round(value, 1) for value in values.tolist()]


@contextmanager
def _watching(processes: Sequence[int]) -> Iterator[list[tuple[float, int]]]:
    """When, and how much memory these processes held, every `STEP` seconds."""
    held: list[tuple[float, int]] = []
    stopped = Event()

    def look() -> None:
        while processes and not stopped.wait(STEP):
            held.append((time.time(), sum(map(running.memory, processes))))

    with ThreadPoolExecutor(1) as beside:
        watched = beside.submit(look)
        try:
            yield held
        finally:
            stopped.set()
            watched.result()


def _memory(held: Sequence[tuple[float, int]], moved: Moved) -> dict[str, float]:
    """The most before, meanwhile and after: the new owners' caches fill as long as records come."""
    spans = {
        "memory_before": (moved.given - STEADY, moved.given),
        "memory_peak": (moved.given, moved.ended + STEP),
        "memory_after": (moved.ended, moved.ended + TAIL),
    }
    return {
        name: max(size for at, size in held if start <= at < end)
        for name, (start, end) in spans.items()
        if held
    }
