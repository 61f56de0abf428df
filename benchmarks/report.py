"""What a benchmark leaves behind: its figures with what they were measured on, and a picture."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("pyspark", "confluent-kafka", "rocksdict", "numpy", "pyarrow")

Runs = Mapping[str, Sequence[float | None]]
"""What each run has measured, by name; None where that one has not."""


def machine() -> dict[str, object]:
    """What it was measured on."""
    cpu = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0]
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "cpu": cpu.strip(" \t:"),
        "memory_gib": round(pages * page / (1 << 30), 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of what does the work."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several runs."""

    median: float
    least: float
    most: float
    runs: Sequence[float | None]


def summary(runs: Runs) -> dict[str, Spread]:
    """Medians with their spread.

    >>> summary({"a": [3.0, None, 1.0, 2.0], "b": [None]})
    {'a': Spread(median=2.0, least=1.0, most=3.0, runs=[3.0, None, 1.0, 2.0])}
    """
    found = {}
    for name, values in runs.items():
        if known := [value for value in values if value is not None]:
            found[name] = Spread(statistics.median(known), min(known), max(known), values)
    return found


def write(name: str, method: str, runs: Runs, figures: Mapping[str, float]) -> Path:
    """Write results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    found = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "method": method,
        "measured": {name: asdict(spread) for name, spread in summary(runs).items()},
        "figures": dict(figures),
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def bars(figures: Mapping[str, float], wanted: Mapping[str, float], title: str) -> Figure:
    """Figures over what is wanted of them, on a logarithmic axis: left of 1 is less."""
    figure = Figure(figsize=(9, 0.6 + 0.45 * len(figures)), dpi=130, layout="constrained")
    axes = figure.subplots()
    names = list(reversed([name for name in figures if name in wanted]))
    ratios = [figures[name] / wanted[name] for name in names]
    axes.barh(names, [ratio - 1 for ratio in ratios], left=1, color="#1f6f8b", height=0.55)
    axes.axvline(1, color="#22303c", linewidth=1)
    axes.set_xscale("log")
    for place, name in enumerate(names):
        text = f" {figures[name]:.3g} (wanted {wanted[name]:g}) "
        side = "left" if ratios[place] >= 1 else "right"
        axes.text(ratios[place], place, text, va="center", ha=side, fontsize=8, color="#22303c")
    axes.set_xlabel("measured over wanted")
    axes.margins(x=0.35)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure
