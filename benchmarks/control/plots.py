"""Pictures of changes of the plan: latencies around them, workers over a day, and misses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import curves
from benchmarks.control.parts import TITLES, Scale
from benchmarks.control.placing import NAME as PLACEMENT
from benchmarks.control.scaling import AUTOSCALERS, FIXED, LATE_MS, POINTS
from benchmarks.control.ways import PARTIAL_PAUSE, RESTART
from benchmarks.curves import Look
from benchmarks.outcome import Outcome, Part
from meander.app.measurement.plot import BLUE, GREY, INK, ORANGE, RED, canvas

LOOKS: dict[str, Look] = {
    "load balancing": (BLUE, 1.8, 1.0), "scaling out": (ORANGE, 1.8, 1.0),
    "scaling in": (ORANGE, 1.0, 0.55), "change of logic": (INK, 1.8, 1.0),
    "mixed, a worker joins": (RED, 1.8, 1.0), "mixed, a worker leaves": (RED, 1.0, 0.55),
    PLACEMENT: (BLUE, 1.8, 1.0), PARTIAL_PAUSE: (BLUE, 1.8, 1.0), RESTART: (INK, 1.8, 1.0),
}  # fmt: skip
COLOURS = dict(zip([one.name for one in AUTOSCALERS], (BLUE, ORANGE), strict=True))
File = tuple[str, str]


def draw(outcome: Outcome, scale: Scale, folder: Path) -> Iterator[File]:
    """Draw all pictures into a folder; yield the file and the title of each."""
    for name, part in outcome.parts.items():
        if name != "day" and any(case.curve for case in part.cases.values()):
            file = f"control-{name}.png"
            curves.timelines(part, TITLES[name], _look).savefig(folder / file)
            yield file, TITLES[name]
    if (day := outcome.parts.get("day")) and any(case.curve for case in day.cases.values()):
        yield _workers(day, scale, folder)
        yield _misses(day, folder)


def _look(name: str) -> Look:
    return LOOKS.get(name) or curves.look(name)


def _workers(day: Part, scale: Scale, folder: Path) -> File:
    title, file = "Workers over a day", "control-day-workers.png"
    figure, axes = canvas(title)
    times = scale.day.seconds * (np.arange(POINTS) + 0.5) / POINTS
    needed = [scale.day.rate(float(at)) / scale.day.service for at in times]
    axes.fill_between(times, needed, color=GREY, alpha=0.6, label="load, as fully active workers")
    for name, colour in COLOURS.items():
        if (curve := day.case(name).curve) and curve.workers:
            axes.step(times, curve.workers, where="mid", color=colour, label=name)
    axes.set(xlabel="seconds", ylabel="workers")
    axes.set_title(day.what, loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(folder / file)
    return file, title


def _misses(day: Part, folder: Path) -> File:
    title, file = "Late records, and what workers they took", "control-day-misses.png"
    figure, axes = canvas(title, 9, 5)
    spots = {
        name: (seconds, missed) for name, case in day.cases.items()
        if (seconds := case.get("worker_seconds")) and (missed := case.get("misses")) is not None
    }  # fmt: skip
    fixed = [spots[one.name] for one in FIXED if one.name in spots]
    axes.plot([seconds for seconds, _ in fixed], [missed for _, missed in fixed], "o-", color=GREY)
    for name, spot in spots.items():
        colour = COLOURS.get(name, INK)
        axes.plot(*spot, "o", color=colour if name in COLOURS else GREY)
        axes.annotate(name, spot, xytext=(6, 4), textcoords="offset points", color=colour)
    axes.set(xlabel="worker-seconds", ylabel=f"share of records later than {LATE_MS} ms")
    axes.set_title(day.what, loc="left", fontsize=9)
    figure.savefig(folder / file)
    return file, title
