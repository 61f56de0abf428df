"""What Nexmark has found, beside the other parts of results/windows.json."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import report
from benchmarks.nexmark.parts import TITLES
from benchmarks.nexmark.wanted import figures
from benchmarks.outcome import Outcome
from benchmarks.report import Spread

PATH = report.RESULTS / "windows.json"


def load() -> Outcome:
    """Return the parts of Nexmark."""
    found = Outcome.load(PATH)
    return Outcome(parts={name: part for name, part in found.parts.items() if name in TITLES})


def save(outcome: Outcome, path: Path = PATH) -> None:
    """Write the parts of Nexmark and the figures; others of the file stay."""
    others = Outcome.load(path)
    earlier: dict[str, Spread] = {}
    if path.exists():
        told = json.loads(path.read_bytes()).get("figures", {})
        earlier = {name: Spread(**spread) for name, spread in told.items()}
    Outcome(parts={**others.parts, **outcome.parts}).save({**earlier, **figures(outcome)}, path)
