"""What the runs have found, case by case, as it lies in results/incremental.json.

A case that is measured anew takes the place of what the file said of it. The others stay, each with
the machine and the time it was measured at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, Field

from benchmarks import report
from benchmarks.incremental.found import Found
from benchmarks.outcome import on_few_lines

PATH = report.RESULTS / "incremental.json"


class Case(Found):
    """One run, and what it was measured on."""

    at: str = Field(default_factory=report.now)
    machine: dict[str, object] = Field(default_factory=report.machine)
    versions: dict[str, str] = Field(default_factory=report.versions)


class Outcome(BaseModel):
    """All of them, by name."""

    cases: dict[str, Case] = {}

    @classmethod
    def load(cls) -> Self:
        """Return what was found before."""
        return cls.model_validate_json(PATH.read_bytes()) if PATH.exists() else cls()

    def add(self, name: str, found: Found) -> None:
        """Put a run in place of an earlier one."""
        self.cases[name] = Case(figures=found.figures, curves=found.curves)

    def get(self, case: str, figure: str) -> float | None:
        """Return one figure, or None where it was not measured."""
        found = self.cases.get(case)
        return None if found is None else found.figures.get(figure)

    def save(self, figures: Mapping[str, Mapping[str, object]]) -> None:
        """Write all, and the figures by id, in place of what was found before."""
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(on_few_lines(self.model_dump() | {"figures": figures}) + "\n")
