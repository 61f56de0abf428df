"""The cases that are measured, each with the changes that it takes at a scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.incremental import debian_runs, engine_runs, kafka_runs, recompute, trace_runs
from benchmarks.incremental.engine_runs import POINTS
from benchmarks.incremental.found import Found, Tick
from benchmarks.incremental.scale import Scale
from benchmarks.incremental.trace_runs import EDGES, FACTORS, UPDATES


@dataclass(frozen=True, slots=True)
class Case:
    """A run in a process of its own."""

    measure: Callable[[Scale, Tick], Found]
    ticks: Callable[[Scale], float | None]
    """Returns how many changes it takes; None where time decides."""


def _trace(scale: Scale, runs: int) -> float:
    return runs * (scale(EDGES) + scale(UPDATES))


def _series(name: str, size: str) -> Callable[[Scale], float]:
    def ticks(scale: Scale) -> float:
        last = scale(POINTS[name][-1])
        return engine_runs.sized(size, scale).edges + last + len(POINTS[name]) * scale.singles

    return ticks


def _latencies(name: str, size: str, compacts: bool = True) -> Case:
    measure = partial(engine_runs.latencies, name=name, size=size, compacts=compacts)
    return Case(measure, _series(name, size))


def _timely(_: Scale) -> None:
    """Return None, as time decides."""


CASES: dict[str, Case] = {
    "trace load": Case(trace_runs.load, lambda scale: 3 * scale(EDGES)),
    **{
        f"trace factor {name}": Case(
            partial(trace_runs.updates, factor=factor),
            partial(_trace, runs=trace_runs.runs_of(factor)),
        )
        for name, factor in FACTORS.items()
    },
    "trace seek": Case(trace_runs.seek, lambda scale: 2 * scale(EDGES)),
    "degrees": _latencies("degrees", "1m"),
    "degrees uncompacted": _latencies("degrees", "1m", compacts=False),
    "degrees rates": Case(partial(engine_runs.rates, name="degrees", size="1m"), _timely),
    "degrees rates 2 workers": Case(
        partial(engine_runs.rates, name="degrees", size="1m", workers=2), _timely
    ),
    "bfs 1k": _latencies("bfs", "1k"),
    "bfs 1k uncompacted": _latencies("bfs", "1k", compacts=False),
    "bfs 1m": _latencies("bfs", "1m"),
    "bfs 1m uncompacted": _latencies("bfs", "1m", compacts=False),
    "bfs rates": Case(partial(engine_runs.rates, name="bfs", size="1m"), _timely),
    "bfs seek": Case(partial(engine_runs.seek, size="1m"), _timely),
    "recompute 1m": Case(partial(recompute.recompute, size="1m"), lambda _: 4 * recompute.RUNS),
    "packages": Case(debian_runs.packages, _timely),
    "kafka rates": Case(kafka_runs.rates, lambda _: None),
    "kafka latency": Case(kafka_runs.latencies, lambda _: None),
}
