"""The demo's summary says what its figures mean, and prints no figure that there is not."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from meander.app.demo.check import Answered, Compared, Findings, Move
from meander.app.demo.latency import Backlog, LatencySummary
from meander.app.demo.report import DemoMigration, Outcome, show, write_json

RIGHT = Compared(results=10, missing=0, unexpected=0, doubled=0, differing=0)
FINDINGS = Findings(
    records=10, rows_differing=0, planes=RIGHT, carriers=RIGHT, bumped=0, early=0, backwards=0,
    missing_tailnums=0, missing_delays=0, answered=[Answered(Move(1, 0, 1, 5 << 20), 4, 6, 0)],
    strays=0,
)  # fmt: skip
MOVED = DemoMigration(
    id="at-a-date", strategy="all-at-once", worker=1, asked=5, at=5 << 20, bins=1, keys=3, bytes=99,
    told_ms=28_000.0, wall=(10**9, 2 * 10**9),
)  # fmt: skip
SOME, NONE = LatencySummary(5, 1.0, 2.0, 3.0), LatencySummary(0, np.nan, np.nan, np.nan)


def outcome(after: LatencySummary = SOME, backlog: Backlog | None = None) -> Outcome:
    latencies = {"before": SOME, "during": SOME, "after": after}
    kept_up = Backlog(bound=100, most=40, records=0)
    return Outcome(2, 100, FINDINGS, [MOVED], latencies, backlog or kept_up, {"run": 1.0})


def told(outcome: Outcome) -> str:
    console = Console(file=StringIO(), width=120, highlight=False)
    show(console, outcome)
    assert isinstance(console.file, StringIO)
    return " ".join(console.file.getvalue().split())


def written(outcome: Outcome, folder: Path) -> dict[str, Any]:
    write_json(folder / "demo.json", outcome)
    figures = json.loads((folder / "demo.json").read_text())
    assert isinstance(figures, dict)
    return figures


def test_latencies_of_a_backlog_are_called_so(tmp_path: Path) -> None:
    behind = outcome(backlog=Backlog(bound=100, most=7_000, records=1_234))
    assert "did not keep up: 1,234 records became due while more than 100 waited" in told(behind)
    assert "(7,000 at most)" in told(behind)
    assert written(behind, tmp_path)["backlog"] == {
        "kept_up": False, "bound": 100, "most": 7_000, "records": 1_234
    }  # fmt: skip


def test_nothing_is_said_of_a_backlog_where_there_was_none(tmp_path: Path) -> None:
    assert "keep up" not in told(outcome())
    assert written(outcome(), tmp_path)["backlog"] == {
        "kept_up": True, "bound": 100, "most": 40, "records": 0
    }  # fmt: skip


def test_a_phase_without_records_is_named(tmp_path: Path) -> None:
    text = told(outcome(after=NONE))
    assert "No record was due after the migrations" in text
    assert "after migration 0 - - -" in text
    assert "nan" not in text
    assert written(outcome(after=NONE), tmp_path)["p50_ms"] == {
        "before": 1.0, "during": 1.0, "after": None
    }  # fmt: skip


def test_what_is_seen_and_what_is_told_of_a_command_are_told_apart(tmp_path: Path) -> None:
    text = told(outcome())
    assert "seen told" in text
    assert "1,000 ms 28,000 ms" in text
    (migration,) = written(outcome(), tmp_path)["migrations"]
    assert (migration["seen_ms"], migration["told_ms"]) == (1_000.0, 28_000.0)


@pytest.mark.parametrize(("differing", "says"), [(0, "Every answer is right"), (1, "wrong: 1")])
def test_what_is_wrong_is_said(differing: int, says: str) -> None:
    wrong = Compared(results=10, missing=0, unexpected=0, doubled=0, differing=differing)
    found = Findings(10, 0, wrong, RIGHT, 0, 0, 0, 0, 0, [], 0)
    base = outcome()
    text = told(Outcome(2, 100, found, [MOVED], base.latencies, base.backlog, {}))
    assert says in text
