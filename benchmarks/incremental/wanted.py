"""The figures by which collections are judged, by id, each with its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.incremental.outcome import Outcome
from benchmarks.incremental.trace_runs import FACTORS
from meander.state.collections.trace import FACTOR


@dataclass(frozen=True, slots=True)
class Wanted:
    """A figure of a case, and its target."""

    case: str
    figure: str
    most: float | None = None
    least: float | None = None


PROGRESSIVE = [name for name in FACTORS if name != "immediate"]
WANTED = {
    "load_over_lexsort": Wanted("trace load", "load_over_lexsort", most=3),
    "bytes_per_static_edge": Wanted("trace load", "bytes_per_static_edge", most=8),
    "longest_step_ms": Wanted(f"trace factor {FACTOR}", "step_max_ms", most=10),
    "trace_over_live": Wanted(f"trace factor {FACTOR}", "trace_over_live", most=2),
    **{
        f"max_cut_by_progressive_{name}": Wanted(f"trace factor {name}", "max_cut", least=5.5)
        for name in PROGRESSIVE
    },
    **{
        f"throughput_cost_of_progressive_{name}":
        Wanted(f"trace factor {name}", "throughput_cost", most=0.19)
        for name in PROGRESSIVE
    },
    "degrees_p50_drift": Wanted("degrees", "p50_drift", most=1.2),
    "degrees_p99_drift": Wanted("degrees", "p99_drift", most=1.2),
    "bfs_1k_p50_drift": Wanted("bfs 1k", "p50_drift", most=1.2),
    "bfs_1k_p99_drift": Wanted("bfs 1k", "p99_drift", most=1.2),
    "bfs_1m_p50_drift": Wanted("bfs 1m", "p50_drift", most=1.2),
    "bfs_1m_p99_drift": Wanted("bfs 1m", "p99_drift", most=1.2),
    "degrees_1000_per_s": Wanted("degrees rates 2 workers", "1000_per_s", least=300_000),
    "degrees_10000_per_s": Wanted("degrees rates 2 workers", "10000_per_s", least=600_000),
    "bfs_initial_s": Wanted("bfs 1m", "initial_s", most=5),
    "bfs_single_p50_ms": Wanted("bfs 1m", "single_p50_ms", most=3),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure beside its target."""

    value: float
    wanted: str
    met: bool


def figures(outcome: Outcome) -> dict[str, Figure]:
    """Return those that can be told so far, by id."""
    return {
        id: Figure(value, _sign(wanted), _met(wanted, value))
        for id, wanted in WANTED.items()
        if (value := _value(outcome, wanted)) is not None
    }


def _sign(wanted: Wanted) -> str:
    return f"<= {wanted.most:g}" if wanted.least is None else f">= {wanted.least:g}"


def _met(wanted: Wanted, value: float) -> bool:
    if wanted.most is not None:
        return value <= wanted.most
    return wanted.least is not None and value >= wanted.least


def _value(outcome: Outcome, wanted: Wanted) -> float | None:
    """Return a figure of one case, or one that compares a factor of merging with none."""
    get: Callable[[str, str], float | None] = outcome.get
    match wanted.figure:
        case "max_cut":
            return _ratio(get("trace factor immediate", "step_max_ms"),
                          get(wanted.case, "step_max_ms"))  # fmt: skip
        case "throughput_cost":
            kept = _ratio(get(wanted.case, "updates_per_s"),
                          get("trace factor immediate", "updates_per_s"))  # fmt: skip
            return None if kept is None else 1 - kept
        case name:
            return get(wanted.case, name)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None
