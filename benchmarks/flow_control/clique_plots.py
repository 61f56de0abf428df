"""Pictures of cliques under flow control: after the paper's figures 4 and 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.flow_control.clique_outcome import CliqueFigures, Cliques
from benchmarks.incremental.plots import logarithmic
from benchmarks.report import DOCS
from meander.app.measurement.plot import BLUE, GREY, INK, ORANGE, RED, canvas

WAYS = {"none": "without flow control", "control": "flow control"}
STYLES = {1: "-", 2: "--", 4: ":"}


def draw(cliques: Cliques) -> Iterator[tuple[str, str]]:
    """Draw the pictures of what was measured; yield the file and the title of each."""
    if cliques.sweep:
        yield _sweep(cliques, "seconds", lambda found: found.seconds)
        yield _sweep(cliques, "megabytes", lambda found: found.peak_bytes / 1e6)
    if cliques.growth:
        yield _growth(cliques)


def _sweep(cliques: Cliques, label: str, of: Callable[[CliqueFigures], float]) -> tuple[str, str]:
    title, file = f"Triangles under flow control: {label}", f"flow-control-cliques-{label}.png"
    figure, axes = canvas(title, 9, 6)
    for workers, by_number in cliques.sweep.items():
        for (in_flight, found), colour in zip(
            sorted(by_number.items()), (INK, RED, ORANGE, BLUE), strict=True
        ):
            batches = sorted(found)
            axes.plot(batches, [of(found[batch]) for batch in batches], STYLES[workers],
                      color=colour, marker="o",
                      label=f"{in_flight} in flight, workers: {workers}")  # fmt: skip
        axes.axhline(of(cliques.bare[workers]), color=GREY, linestyle=STYLES[workers],
                     label=f"without flow control, workers: {workers}")  # fmt: skip
    axes.legend(frameon=False, fontsize=7)
    logarithmic(axes, "proposals of a batch", label)
    figure.savefig(DOCS / file)
    return file, title


def _growth(cliques: Cliques) -> tuple[str, str]:
    title, file = "Triangles: peak memory above a warm worker", "flow-control-cliques-growth.png"
    figure, axes = canvas(title, 9, 6)
    for (way, label), colour in zip(WAYS.items(), (GREY, BLUE), strict=True):
        edges = sorted(cliques.growth[way])
        memory = [cliques.growth[way][one].peak_bytes / 1e6 for one in edges]
        axes.plot(edges, memory, color=colour, marker="o", label=label)
    axes.legend(frameon=False, fontsize=8)
    logarithmic(axes, "edges", "megabytes")
    figure.savefig(DOCS / file)
    return file, title
