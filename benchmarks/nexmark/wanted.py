"""The figures by which Nexmark is judged, from what has been measured, run by run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks import report
from benchmarks.asked import part_of, ratios
from benchmarks.nexmark.flink_queries import SQL
from benchmarks.nexmark.parts import DRAINS, PYTHON
from benchmarks.outcome import Outcome

OVER_FLINK = "nexmark_over_flink"
OVER_PYTHON = "tumbling_count_over_python"
AT_LEAST = {OVER_FLINK: 1.0, **{f"nexmark_{query}_over_flink": 1.0 for query in SQL},
            OVER_PYTHON: 1.0}  # fmt: skip
AT_MOST: dict[str, float] = {}


def figures(found: Outcome) -> dict[str, report.Spread]:
    """Those that can be told so far, by id."""
    drains, told = part_of(found, DRAINS), dict[str, Sequence[float]]()
    for query in SQL:
        case = drains.case(query)
        told[f"nexmark_{query}_over_flink"] = ratios((case, case), ("meander_per_s", "flink_per_s"))
    by_run = [*told.values()]
    if all(by_run):
        told[OVER_FLINK] = [
            math.exp(math.fsum(map(math.log, run)) / len(run)) for run in zip(*by_run, strict=False)
        ]
    python = part_of(found, PYTHON)
    others = [
        ratios((python.case("meander"), python.case(one)), ("per_s", "per_s"))
        for one in python.cases if one != "meander"
    ]  # fmt: skip
    told[OVER_PYTHON] = [min(run) for run in zip(*filter(None, others), strict=False)]
    return report.summary(told)
