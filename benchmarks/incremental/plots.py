"""Pictures of what was found: complementary distributions, and changes per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.incremental.engine_runs import ROUNDS
from benchmarks.incremental.found import Distribution
from benchmarks.incremental.outcome import Outcome
from benchmarks.incremental.trace_runs import FACTORS
from benchmarks.report import DOCS
from meander.app.measurement.plot import BLUE, GREY, INK, ORANGE, RED, canvas

AFTER = "after_"
PLAIN = "uncompacted"


@dataclass(frozen=True, slots=True)
class Line:
    """A distribution in a picture."""

    label: str
    curve: Distribution
    colour: str | tuple[float, ...]
    style: str = "-"


TITLES = {
    "traces": "Steps of a trace, by the factor of merging",
    "degrees": "Degrees: single changes after more and more changes",
    "bfs-1k": "Search, 1,000 nodes and 2,000 edges: single changes after more and more changes",
    "bfs-1m": "Search, 1,000,000 nodes and 10,000,000 edges: single changes",
    "rates": "Changes per second, by the changes of a round",
}


def picture(name: str) -> str:
    """Return the file of a picture, beside the document.

    >>> picture("traces")
    'incremental-traces.png'
    """
    return f"incremental-{name}.png"


def draw(outcome: Outcome) -> list[str]:
    """Draw all pictures that have something to show; return their names."""
    made = {
        "traces": _distributions(TITLES["traces"], _trace_lines(outcome)),
        **{
            name.replace(" ", "-"):
            _distributions(TITLES[name.replace(" ", "-")], [*_point_lines(outcome, name)])
            for name in ("degrees", "bfs 1k", "bfs 1m")
        },
        "rates": _rates(outcome),
    }  # fmt: skip
    for name, figure in made.items():
        if figure is not None:
            figure.savefig(DOCS / picture(name))
    return [name for name, figure in made.items() if figure is not None]


def _trace_lines(outcome: Outcome) -> list[Line]:
    colours = dict(zip(FACTORS, (INK, RED, ORANGE, BLUE), strict=True))
    return [
        Line(f"factor {name}" if name != "immediate" else name, case.curves["step"],
             colours[name], ":" if name == "immediate" else "-")
        for name in FACTORS
        if (case := outcome.cases.get(f"trace factor {name}")) is not None
    ]  # fmt: skip


def _point_lines(outcome: Outcome, name: str) -> Iterator[Line]:
    for case, style in ((name, "-"), (f"{name} {PLAIN}", "--")):
        found = outcome.cases.get(case)
        curves = {} if found is None else _points(found.curves)
        for place, (point, curve) in enumerate(curves.items()):
            colour = colormaps["viridis"](place / 5)
            label = f"after {point:,} changes" + (", no compaction" if style == "--" else "")
            yield Line(label, curve, colour, style)


def _points(curves: Mapping[str, Distribution]) -> dict[int, Distribution]:
    return {
        int(name.removeprefix(AFTER)): curve
        for name, curve in curves.items()
        if name.startswith(AFTER)
    }


def _distributions(title: str, lines: Sequence[Line]) -> Figure | None:
    if not lines:
        return None
    figure, axes = canvas(title, 9, 6)
    for line in lines:
        axes.plot(
            line.curve.ms, line.curve.share, color=line.colour, linestyle=line.style,
            linewidth=1.6, label=line.label,
        )  # fmt: skip
    logarithmic(axes, "ms", "share of all that takes as long or longer")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _rates(outcome: Outcome) -> Figure | None:
    cases = {
        "degrees, 1 worker": ("degrees rates", BLUE, "-"),
        "degrees, 2 workers": ("degrees rates 2 workers", BLUE, "--"),
        "search, 1 worker": ("bfs rates", ORANGE, "-"),
    }
    figure, axes = canvas(TITLES["rates"], 9, 6)
    shown = False
    for label, (case, colour, style) in cases.items():
        rates = [outcome.get(case, f"{size}_per_s") for size in ROUNDS]
        known = [(size, rate) for size, rate in zip(ROUNDS, rates, strict=True) if rate]
        if known:
            shown = True
            sizes, per_s = zip(*known, strict=True)
            axes.plot(sizes, per_s, style, color=colour, marker="o", label=label)
    for label, colour, figure_name in (
        ("degrees by numpy", GREY, "numpy_degrees_s"), ("search by scipy", INK, "scipy_bfs_s"),
        ("search by igraph", RED, "igraph_bfs_s"),
    ):  # fmt: skip
        if seconds := outcome.get("recompute 1m", figure_name):
            recomputed = [size / seconds for size in ROUNDS]
            label = f"{label} computes all edges in each round"
            axes.plot([*ROUNDS], recomputed, ":", color=colour, label=label)
    logarithmic(axes, "changes of a round", "changes per second")
    axes.legend(frameon=False, fontsize=8)
    return figure if shown else None


def logarithmic(axes: Axes, horizontal: str, vertical: str) -> None:
    """Make both axes logarithmic, and label them."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
