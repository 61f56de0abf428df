"""What the benchmarks of migrations have found, part by part, as it lies in results/migration.json.

A part that is measured anew takes the place of what the file said of it; the others stay, each with
the machine and the time it was measured at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, Field

from benchmarks import report

_NUMBERS = re.compile(r"\[[\s\d.,nulEe+-]*\]")
PATH = report.RESULTS / "migration.json"

PICTURES = ("2a", "2b", "2c", "rescale")
"""Parts whose timelines are drawn."""


EXCESS = "excess_ms"
"""By how much the greatest latency of a run exceeds its steady median."""


class Curve(BaseModel):
    """A timeline around a command; times are seconds since it, latencies milliseconds."""

    begins: float
    step: float
    ended: float
    """When all bins had moved."""
    p50: list[float | None]
    p99: list[float | None]
    most: list[float | None]
    workers: list[int] | None = None
    """How many there were, where that changes."""


class Found(BaseModel):
    """What one run has measured."""

    figures: dict[str, float]
    curve: Curve | None = None


class Case(BaseModel):
    """All runs of one case; the curve is that of the run in the middle, by its greatest latency."""

    runs: list[Found] = Field(default=[], exclude=True)
    measured: dict[str, report.Spread] = {}
    curve: Curve | None = None
    not_available: str | None = None
    failed: list[str] = []
    """Why runs have no figures."""

    def add(self, found: Found) -> None:
        """One run more."""
        self.runs.append(found)
        names = dict.fromkeys(name for run in self.runs for name in run.figures)
        self.measured = report.summary(
            {name: [run.figures.get(name) for run in self.runs] for name in names}
        )
        curved = [run for run in self.runs if run.curve is not None]
        curved.sort(key=lambda run: run.figures["moving_max_ms"])
        self.curve = curved[len(curved) // 2].curve if curved else None

    def fail(self, why: str) -> None:
        """One run more, that says nothing of what was to be measured."""
        self.failed.append(f"run {len(self.runs) + 1}: {why}")
        self.add(Found(figures={}))

    def by_run(self, name: str) -> Sequence[float | None]:
        """One figure of each run."""
        if name == EXCESS:
            both = zip(self.by_run("moving_max_ms"), self.by_run("steady_p50_ms"), strict=False)
            return [None if a is None or b is None else a - b for a, b in both]
        spread = self.measured.get(name)
        return () if spread is None else spread.runs

    @property
    def disturbed(self) -> set[int]:
        """The runs whose steady phase was not steady."""
        return {run for run, told in enumerate(self.by_run("disturbed")) if told}

    @property
    def count(self) -> int:
        """How many runs have figures."""
        known = ([one for one in s.runs if one is not None] for s in self.measured.values())
        return max(map(len, known), default=0)

    def get(self, name: str) -> float | None:
        """The median of one figure."""
        spread = self.measured.get(name)
        return None if spread is None else spread.median


class Part(BaseModel):
    """One thing measured, in several cases."""

    what: str
    at: str = Field(default_factory=report.now)
    machine: dict[str, object] = Field(default_factory=report.machine)
    versions: dict[str, str] = Field(default_factory=report.versions)
    cases: dict[str, Case] = {}

    def case(self, name: str) -> Case:
        """One of them; without any run where it was not measured."""
        return self.cases.get(name, Case())


class Outcome(BaseModel):
    """All of it."""

    parts: dict[str, Part] = {}

    @property
    def failures(self) -> list[str]:
        """All runs that have failed, and why."""
        return [
            f"{part}: {case}: {why}"
            for part, one in self.parts.items()
            for case, runs in one.cases.items()
            for why in runs.failed
        ]

    @property
    def drawn(self) -> list[str]:
        """The parts that there are pictures of."""
        return [
            name
            for name, part in self.parts.items()
            if name in PICTURES and any(case.curve for case in part.cases.values())
        ]

    @staticmethod
    def load(path: Path | None = None) -> Outcome:
        """What was found before."""
        path = path or PATH
        return Outcome.model_validate_json(path.read_bytes()) if path.exists() else Outcome()

    def save(self, figures: Mapping[str, report.Spread], path: Path | None = None) -> None:
        """Write it, and the figures that follow from it, in place of what was found before."""
        path = path or PATH
        path.parent.mkdir(exist_ok=True)
        told = {name: asdict(spread) for name, spread in figures.items()}
        written = self.model_dump(exclude_none=True) | {"figures": told}
        path.write_text(on_few_lines(written) + "\n")


def on_few_lines(value: Mapping[str, object]) -> str:
    """JSON with one line for a list of numbers.

    >>> print(on_few_lines({"a": [1.5, None], "b": {"c": 1}}))
    {
     "a": [1.5, null],
     "b": {
      "c": 1
     }
    }
    """
    text = json.dumps(value, indent=1)
    return _NUMBERS.sub(lambda found: json.dumps(json.loads(found[0])), text)
