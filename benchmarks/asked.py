"""The figures that migrations are judged by, from what has been measured.

Each is taken run by run, as what is compared takes turns: a ratio of medians may be one that no run
has seen. A ratio to a steady phase is of those runs that nothing has disturbed, if there are any.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks import report
from benchmarks.moving import ALL_AT_ONCE, DEFAULT
from benchmarks.outcome import Case, Outcome, Part
from benchmarks.parts import FIXED, JOINED, UNMOVABLE

AT_LEAST = {"all_at_once_bytes_over_raw": 0.5, "all_at_once_over_precopy_max": 50}
AT_MOST = {
    "precopy_max_over_steady_max": 2, "precopy_growth_4x": 1.3,
    "batched_over_all_at_once_duration": 1.1, "peak_memory_ratio": 1.1, "steady_p99_ratio": 1.3,
    "rescale_1m_max_ms": 40,
}  # fmt: skip
ByRun = Sequence[float | None]
Ratios = Mapping[int, float]
"""By the number of the run."""


def figures(found: Outcome) -> dict[str, report.Spread]:
    """Those that can be told so far, by id."""
    told: dict[str, list[float]] = {}
    for name, part in found.parts.items():
        match name:
            case "2a":
                told |= {figure: [*ratios.values()] for figure, ratios in _strategies(part)}
            case "growth":
                told["precopy_growth_4x"] = [*_growth(part).values()]
            case "memory":
                one = part.case(str(DEFAULT))
                ratios = _ratios(one.by_run("memory_peak"), one.by_run("memory_before"))
                told["peak_memory_ratio"] = [*ratios.values()]
            case "cost":
                movable, fixed = part.case(FIXED), part.case(UNMOVABLE)
                ratios = _ratios(movable.by_run("p99_ms"), fixed.by_run("p99_ms"))
                told["steady_p99_ratio"] = [*_calm(ratios, movable, fixed).values()]
            case "rescale":
                most = part.case(JOINED).by_run("moving_max_ms")
                told["rescale_1m_max_ms"] = [one for one in most if one is not None]
    return report.summary(told)


def _strategies(part: Part) -> Iterator[tuple[str, Ratios]]:
    default, all_at_once = part.case(str(DEFAULT)), part.case(str(ALL_AT_ONCE))
    steady = _ratios(default.by_run("moving_max_ms"), default.by_run("steady_max_ms"))
    yield "precopy_max_over_steady_max", _calm(steady, default)
    raw = _ratios(all_at_once.by_run("bytes_per_s"), all_at_once.by_run("raw_bytes_per_s"))
    yield "all_at_once_bytes_over_raw", raw
    excess = _ratios(_excess(all_at_once), _excess(default))
    yield "all_at_once_over_precopy_max", _calm(excess, default, all_at_once)
    duration = _ratios(default.by_run("seconds"), all_at_once.by_run("seconds"))
    yield "batched_over_all_at_once_duration", duration


def _excess(case: Case) -> ByRun:
    """By how much the greatest latency exceeds the steady median."""
    both = zip(case.by_run("moving_max_ms"), case.by_run("steady_p50_ms"), strict=False)
    return [None if most is None or p50 is None else most - p50 for most, p50 in both]


def _growth(part: Part) -> Ratios:
    """The greatest latency over that with a quarter of the state, in as many bins: where it is the
    most of all sizes."""
    sizes = [case for name, case in part.cases.items() if name.endswith(FIXED)]
    growths = [
        _ratios(larger.by_run("moving_max_ms"), smaller.by_run("moving_max_ms"))
        for smaller, larger in pairwise(sizes)
    ]
    return max(growths, key=_median, default={})


def _median(ratios: Ratios) -> float:
    return statistics.median(ratios.values()) if ratios else 0.0


def _ratios(over: ByRun, under: ByRun) -> Ratios:
    """Of those runs that have both."""
    both = zip(over, under, strict=False)
    return {run: a / b for run, (a, b) in enumerate(both) if a is not None and b}


def _calm(ratios: Ratios, *cases: Case) -> Ratios:
    """Of the runs that are disturbed in none of these cases; of all where there is no such run."""
    disturbed = set[int]().union(*(case.disturbed for case in cases))
    return {run: one for run, one in ratios.items() if run not in disturbed} or ratios
