"""The demo's summary says what its figures mean, and prints no figure that there is not."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from meander.app.demo.check import Compared, Findings
from meander.app.demo.conduct import DemoMigration
from meander.app.demo.report import figures, show
from meander.app.measurement.latencies import PHASES, Backlog, LatencySummary

RIGHT = Compared(results=10, missing=0, unexpected=0, doubled=0, differing=0)
FINDINGS = Findings(
    records=10, rows_differing=0, planes=RIGHT, carriers=RIGHT, late_adjusted=0, early=0,
    backwards=0, missing_tailnums=0, missing_delays=0, strays=0,
    moved=[{
        "bin": 1, "from": 0, "to": 1, "at": 5 << 20, "before_by_old": 4, "after_by_new": 6,
        "by_others": 0,
    }],
)  # fmt: skip
MOVED = DemoMigration(
    id="at-a-date", strategy="all-at-once", to=1, asked=5, time=5, at=5 << 20, bins=1, keys=3,
    bytes=99, measured_ms=1_000.0, ms=28_000.0,
)  # fmt: skip
SOME, NONE = LatencySummary(5, 1.0, 2.0, 3.0), LatencySummary(0, np.nan, np.nan, np.nan)


KEPT_UP = Backlog(bound=100, most=40, records=0)


def told(
    after: LatencySummary = SOME, backlog: Backlog = KEPT_UP, found: Findings = FINDINGS
) -> str:
    console = Console(file=StringIO(), width=120, highlight=False)
    show(console, found, [MOVED], dict(zip(PHASES, (SOME, SOME, after), strict=True)), backlog)
    assert isinstance(console.file, StringIO)
    return " ".join(console.file.getvalue().split())


def written(after: LatencySummary = SOME, backlog: Backlog = KEPT_UP) -> dict[str, Any]:
    phases = dict(zip(PHASES, (SOME, SOME, after), strict=True))
    return cast(dict[str, Any], json.loads(figures(FINDINGS, [MOVED], phases, backlog, {})))


def test_latencies_of_a_backlog_are_called_so() -> None:
    behind = Backlog(bound=100, most=7_000, records=1_234)
    assert "did not keep up: 1,234 records became due while more than 100 waited" in told(
        backlog=behind
    )
    assert "(7,000 at most)" in told(backlog=behind)
    assert written(backlog=behind)["backlog"] == {
        "kept_up": False, "bound": 100, "most": 7_000, "records": 1_234
    }  # fmt: skip


def test_no_backlog_is_reported_where_there_was_none() -> None:
    assert "keep up" not in told()
    assert written()["backlog"] == {
        "kept_up": True, "bound": 100, "most": 40, "records": 0
    }  # fmt: skip


def test_a_phase_without_records_is_named() -> None:
    text = told(after=NONE)
    assert "No record was due after the migrations" in text
    assert "after migration 0 - - -" in text
    assert "nan" not in text
    assert written(after=NONE)["p50_ms"] == {
        "before": 1.0, "during": 1.0, "after": None
    }  # fmt: skip


def test_the_report_separates_measured_and_reported_times_of_a_command() -> None:
    text = told()
    assert "measured ms ms" in text
    assert "1,000 28,000" in text
    (migration,) = written()["migrations"]
    assert (migration["measured_ms"], migration["ms"]) == (1_000.0, 28_000.0)


@pytest.mark.parametrize(("differing", "says"), [(0, "Every answer is right"), (1, "wrong: 1")])
def test_each_difference_is_reported(differing: int, says: str) -> None:
    wrong = Compared(results=10, missing=0, unexpected=0, doubled=0, differing=differing)
    found = Findings(10, 0, wrong, RIGHT, 0, 0, 0, 0, 0, [], 0)
    assert says in told(found=found)


def test_a_moved_bin_is_written_with_where_it_came_from() -> None:
    assert written()["moved_bins"] == FINDINGS.moved
