"""The figures that migrations are judged by, from what has been measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from benchmarks.moving import DEFAULT, SUDDEN, Strategy
from benchmarks.outcome import Outcome, Part
from benchmarks.parts import FIXED, JOINED, UNMOVABLE

AT_LEAST = {"sudden_bytes_over_raw": 0.5, "sudden_over_prepared_max": 50}
AT_MOST = {
    "prepared_max_over_steady_max": 2, "prepared_growth_4x": 1.3,
    "batched_over_sudden_duration": 1.1, "peak_memory_ratio": 1.1, "steady_p99_ratio": 1.3,
    "rescale_1m_max_ms": 40,
}  # fmt: skip


def figures(found: Outcome) -> dict[str, float]:
    """Those that can be told so far, by id."""
    told: dict[str, float | None] = {}
    for name, part in found.parts.items():
        match name:
            case "2a":
                told |= _strategies(part)
            case "growth":
                told["prepared_growth_4x"] = max(_growths(part), default=None)
            case "memory":
                peak = part.get(str(DEFAULT), "memory_peak")
                told["peak_memory_ratio"] = _ratio(peak, part.get(str(DEFAULT), "memory_before"))
            case "cost":
                movable = part.get(FIXED, "p99_ms")
                told["steady_p99_ratio"] = _ratio(movable, part.get(UNMOVABLE, "p99_ms"))
            case "rescale":
                told["rescale_1m_max_ms"] = part.get(JOINED, "moving_max_ms")
    return {name: value for name, value in told.items() if value is not None}


def _strategies(part: Part) -> dict[str, float | None]:
    def of(strategy: Strategy, name: str) -> float | None:
        return part.get(str(strategy), name)

    return {
        "prepared_max_over_steady_max": _ratio(
            of(DEFAULT, "moving_max_ms"), of(DEFAULT, "steady_max_ms")
        ),
        "sudden_bytes_over_raw": _ratio(of(SUDDEN, "bytes_per_s"), of(SUDDEN, "raw_bytes_per_s")),
        "sudden_over_prepared_max": _ratio(_excess(part, SUDDEN), _excess(part, DEFAULT)),
        "batched_over_sudden_duration": _ratio(of(DEFAULT, "seconds"), of(SUDDEN, "seconds")),
    }


def _excess(part: Part, strategy: Strategy) -> float | None:
    """By how much the greatest latency exceeds the steady median."""
    most, steady = (part.get(str(strategy), f) for f in ("moving_max_ms", "steady_p50_ms"))
    return None if most is None or steady is None else most - steady


def _growths(part: Part) -> Iterator[float]:
    """The greatest latency over that with a quarter of the state, in as many bins."""
    most = [case.get("moving_max_ms") for name, case in part.cases.items() if name.endswith(FIXED)]
    for smaller, larger in pairwise(most):
        if (ratio := _ratio(larger, smaller)) is not None:
            yield ratio


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
