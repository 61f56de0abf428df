"""The figures by which changes of the plan are judged, from what has been measured.

Each is taken run by run. Where a figure covers several cases, that with the worst median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks import report
from benchmarks.asked import part_of, ratios
from benchmarks.control.placing import NAME as PLACEMENT
from benchmarks.control.scaling import AUTOSCALERS, FIXED, same_workers
from benchmarks.control.ways import PARTIAL_PAUSE, RESTART
from benchmarks.outcome import Case, Outcome, Part

AT_LEAST = {"restart_over_partial_pause": 20}
AT_MOST = {
    "logic_ms": 200, "balance_quarter_ms": 1000, "scale_out_ms": 3000, "scale_out_joined_ms": 1000,
    "placement_ms": 3000, "p99_during_over_steady": 2, "unaffected_p99_ratio": 1.2,
    "autoscaler_misses": 1,
}  # fmt: skip
DURATIONS = {
    "logic_ms": ("changes", "change of logic", "ms"),
    "balance_quarter_ms": ("changes", "load balancing", "ms"),
    "scale_out_ms": ("changes", "scaling out", "ms"),
    "scale_out_joined_ms": ("changes", "scaling out", "after_ms"),
    "placement_ms": ("placement", PLACEMENT, "ms"),
}
"""The part, the case and the name of figures that are measured as they are."""
LATENCIES = {
    "p99_during_over_steady": ("moving_p99_ms", "steady_p99_ms"),
    "unaffected_p99_ratio": ("unaffected_moving_p99_ms", "unaffected_steady_p99_ms"),
}
CHANGED = "changes", "placement"
"""The parts whose cases all count for latencies."""


def figures(found: Outcome) -> dict[str, report.Spread]:
    """Those that can be told so far, by id."""
    told: dict[str, Sequence[float]] = {}
    for id, (part, case, name) in DURATIONS.items():
        told[id] = known(part_of(found, part).case(case).by_run(name))
    for id, names in LATENCIES.items():
        told[id] = worst(
            ratios((case, case), names, calm=True)
            for part in CHANGED
            for case in part_of(found, part).cases.values()
        )
    ways = part_of(found, "ways")
    pauses = ways.case(RESTART), ways.case(PARTIAL_PAUSE)
    told["restart_over_partial_pause"] = ratios(pauses, ("pause_ms", "pause_ms"))
    day = part_of(found, "day")
    told["autoscaler_misses"] = worst(_over_fixed(day, day.case(one.name)) for one in AUTOSCALERS)
    return report.summary(told)


def _over_fixed(day: Part, autoscaler: Case) -> list[float]:
    """The misses of an autoscaler over those of a fixed plan of the same worker-seconds."""
    fixed = [_both(day.case(one.name)) for one in FIXED]
    found = []
    for run, (seconds, missed) in enumerate(_both(autoscaler)):
        beside = [one[run] for one in fixed if run < len(one)]
        if len(beside) == len(FIXED) and (expected := same_workers(beside, seconds)):
            found.append(missed / expected)
    return found


def _both(case: Case) -> list[tuple[float, float]]:
    """Worker-seconds and misses of each run that has them."""
    both = zip(case.by_run("worker_seconds"), case.by_run("misses"), strict=True)
    return [(seconds, missed) for seconds, missed in both if seconds and missed is not None]


def known(values: Sequence[float | None]) -> list[float]:
    """Those of the runs that have one."""
    return [one for one in values if one is not None]


def worst(found: Iterator[Sequence[float]]) -> Sequence[float]:
    """The values of the case whose median is the greatest."""
    return max(found, key=lambda values: statistics.median(values or [0.0]), default=[])
