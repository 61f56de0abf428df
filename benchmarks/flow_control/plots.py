"""Pictures of flow control: after the paper's figures 4 and 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.flow_control.flows import WAYS
from benchmarks.flow_control.outcome import Outcome, Run
from benchmarks.incremental.plots import logarithmic
from benchmarks.report import DOCS
from meander.app.measurement.plot import BLUE, GREY, INK, ORANGE, RED, canvas

COLOURS = dict(zip(WAYS, (GREY, ORANGE, RED, BLUE), strict=True))
STYLES = {"surge": "-", "loop": "--"}


def draw(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Draw all pictures; yield the file and the title of each."""
    yield _ways(outcome)
    if outcome.sweep:
        yield _sweep(outcome, "seconds", lambda run: run.seconds)
        yield _sweep(outcome, "records inside at most", lambda run: run.inside)


def _ways(outcome: Outcome) -> tuple[str, str]:
    title, file = "Records inside a part at most", "flow-control-ways.png"
    figure, axes = canvas(title, 9, 6)
    for part, ways in outcome.ways.items():
        for way, runs in ways.items():
            sizes = sorted(runs)
            inside = [runs[size].inside for size in sizes]
            axes.plot(sizes, inside, STYLES[part], color=COLOURS[way], marker="o",
                      label=f"{part}, {WAYS[way]}")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)
    logarithmic(axes, "records that pass the part", "records inside at most")
    figure.savefig(DOCS / file)
    return file, title


def _sweep(outcome: Outcome, label: str, of: Callable[[Run], float]) -> tuple[str, str]:
    title = f"A surge under flow control: {label}"
    file = f"flow-control-{label.partition(' ')[0]}.png"
    figure, axes = canvas(title, 9, 6)
    for (in_flight, runs), colour in zip(
        outcome.sweep.items(), (INK, RED, ORANGE, BLUE), strict=True
    ):
        batches = sorted(runs)
        axes.plot(batches, [of(runs[batch]) for batch in batches], color=colour, marker="o",
                  label=f"{in_flight} batches in flight")  # fmt: skip
    if outcome.bare is not None:
        axes.axhline(of(outcome.bare), color=GREY, linestyle=":", label="without flow control")
    axes.legend(frameon=False, fontsize=8)
    logarithmic(axes, "rows of a batch", label)
    figure.savefig(DOCS / file)
    return file, title
