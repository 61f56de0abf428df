"""The figures that migrations are judged by, from what has been measured.

Each is taken run by run, as what is compared takes turns: a ratio of medians may be one that no run
has seen. A ratio to a steady phase is of those runs that nothing has disturbed, if there are any.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import report
from benchmarks.moving import ALL_AT_ONCE, DEFAULT
from benchmarks.outcome import EXCESS, Case, Outcome, Part
from benchmarks.parts import FIXED, JOINED, UNMOVABLE

AT_LEAST = {"all_at_once_bytes_over_raw": 0.5, "all_at_once_over_precopy_max": 50}
AT_MOST = {
    "precopy_max_over_steady_max": 2, "precopy_growth_4x": 1.3,
    "batched_over_all_at_once_duration": 1.1, "peak_memory_ratio": 1.1, "steady_p99_ratio": 1.3,
    "rescale_1m_max_ms": 40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two figures of one part."""

    part: str
    over: tuple[str, str]
    """Its case and its name."""
    under: tuple[str, str]
    calm: bool = False
    """Whether a disturbed run says nothing."""


MOST, BYTES = "moving_max_ms", "bytes_per_s"
RATIOS = {
    "precopy_max_over_steady_max": Ratio(
        "2a", (str(DEFAULT), MOST), (str(DEFAULT), "steady_max_ms"), calm=True),
    "all_at_once_bytes_over_raw": Ratio(
        "2a", (str(ALL_AT_ONCE), BYTES), (str(ALL_AT_ONCE), f"raw_{BYTES}")),
    "all_at_once_over_precopy_max": Ratio(
        "2a", (str(ALL_AT_ONCE), EXCESS), (str(DEFAULT), EXCESS), calm=True),
    "batched_over_all_at_once_duration": Ratio(
        "2a", (str(DEFAULT), "seconds"), (str(ALL_AT_ONCE), "seconds")),
    "peak_memory_ratio": Ratio(
        "memory", (str(DEFAULT), "memory_peak"), (str(DEFAULT), "memory_before")),
    "steady_p99_ratio": Ratio("cost", (FIXED, "p99_ms"), (UNMOVABLE, "p99_ms"), calm=True),
}  # fmt: skip


def figures(found: Outcome) -> dict[str, report.Spread]:
    """Those that can be told so far, by id."""
    told: dict[str, Sequence[float]] = {}
    for name, ratio in RATIOS.items():
        (over, what), (under, other) = ratio.over, ratio.under
        cases = part_of(found, ratio.part).case(over), part_of(found, ratio.part).case(under)
        told[name] = ratios(cases, (what, other), calm=ratio.calm)
    sizes = [case for name, case in part_of(found, "growth").cases.items() if name.endswith(FIXED)]
    # Over that with a quarter of the state, in as many bins: where it is the most of all sizes.
    growths = [ratios((larger, smaller), (MOST, MOST)) for smaller, larger in pairwise(sizes)]
    told["precopy_growth_4x"] = max(
        growths, key=lambda ratios: statistics.median(ratios or [0.0]), default=[]
    )
    most = part_of(found, "rescale").case(JOINED).by_run(MOST)
    told["rescale_1m_max_ms"] = [one for one in most if one is not None]
    return report.summary(told)


def part_of(found: Outcome, name: str) -> Part:
    """A part; without any case where it was not measured."""
    return found.parts.get(name) or Part(what="")


def ratios(cases: tuple[Case, Case], names: tuple[str, str], *, calm: bool = False) -> list[float]:
    """The ratios of one figure to another, of those runs that have both; of those that are
    disturbed in no case, if there are any."""
    over, under = (case.by_run(name) for case, name in zip(cases, names, strict=True))
    both = enumerate(zip(over, under, strict=False))
    found = {run: a / b for run, (a, b) in both if a is not None and b}
    disturbed = cases[0].disturbed | cases[1].disturbed if calm else set()
    return [one for run, one in found.items() if run not in disturbed] or [*found.values()]
