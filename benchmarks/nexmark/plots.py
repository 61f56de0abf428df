"""Pictures of Nexmark: records per second and latencies of both engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.nexmark.parts import DRAINS, LATENCIES, TITLES
from benchmarks.outcome import Outcome, Part
from meander.app.measurement.plot import BLUE, ORANGE, canvas

PICTURES: Mapping[str, tuple[str, str, str]] = {
    DRAINS: ("nexmark-drains.png", "per_s", "records per second"),
    LATENCIES: ("nexmark-latencies.png", "p99_ms", "p99, milliseconds"),
}
"""The file of each part, its figure, and what that says."""


def draw(outcome: Outcome, folder: Path) -> Iterator[tuple[str, str]]:
    """Draw all pictures into a folder; yield the file and the title of each."""
    for name, (file, figure, label) in PICTURES.items():
        if part := outcome.parts.get(name):
            _bars(part, TITLES[name], figure, label, folder / file)
            yield file, TITLES[name]


def _bars(part: Part, title: str, figure: str, label: str, file: Path) -> None:
    canvas_of, axes = canvas(title, 9, 4.5)
    places = np.arange(len(part.cases))
    for shift, engine, colour in ((-0.2, "meander", BLUE), (0.2, "flink", ORANGE)):
        values = [case.get(f"{engine}_{figure}") or np.nan for case in part.cases.values()]
        axes.bar(places + shift, values, 0.38, color=colour, label=engine.capitalize())
    axes.set_xticks(places, [*part.cases])
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.set_title(part.what, loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    canvas_of.savefig(file)
