"""Timelines of migrations, as the paper draws them: seconds, and latencies on a logarithmic axis.

One line per strategy: the greatest latency of each tenth of a second. A dashed line is the command,
a triangle under the curves the moment when all bins had moved.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.outcome import Case, Curve, Part

INK, GRID = "#22303c", "#e3e7eb"
COLOURS = {"all-at-once": "#b23a48", "fluid": "#d97706", "batched": "#1f6f8b"}
MOST_SECONDS = 60.0
"""After the command; what takes longer runs out of the picture."""


def timelines(part: Part, title: str) -> Figure:
    """All cases of a part that have a curve."""
    figure = Figure(figsize=(11, 5.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    curved = [(name, case, case.curve) for name, case in part.cases.items() if case.curve]
    for number, (name, case, curve) in enumerate(curved):
        _line(axes, name, case, curve)
        _end(axes, name, curve, number)
    begins = min(curve.begins for _, _, curve in curved)
    last = max(curve.begins + curve.step * len(curve.most) for _, _, curve in curved)
    axes.set_xlim(0, min(last, MOST_SECONDS) - begins)
    axes.axvline(-begins, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        "command", (-begins, 1), xycoords=("data", "axes fraction"), xytext=(4, -12),
        textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip
    _axes(axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    axes.set_title(
        f"{part.what}; {part.machine['cores']} cores for all", loc="left", fontsize=9, color=INK
    )
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize=9)
    return figure


def _look(name: str) -> tuple[str, float, float]:
    """Colour, width and opacity: what is prepared stands out."""
    colour = COLOURS.get(name.rpartition(" ")[2], INK)
    return (colour, 1.0, 0.55) if name in COLOURS else (colour, 1.8, 1.0)


def _line(axes: Axes, name: str, case: Case, curve: Curve) -> None:
    colour, width, alpha = _look(name)
    most = np.array(curve.most, np.float64)
    seconds = curve.step * (np.arange(len(most)) + 0.5)
    label = (
        f"{name}: max {_rounded(case.get('moving_max_ms'))} ms"
        f" (before {_rounded(case.get('steady_max_ms'))}), done after {curve.ended:.1f} s"
    )
    # The wider ones lie above the others.
    axes.plot(
        seconds, most, color=colour, linewidth=width, alpha=alpha, label=label, zorder=2 + width
    )


def _end(axes: Axes, name: str, curve: Curve, number: int) -> None:
    colour, _, _ = _look(name)
    filled = "white" if name in COLOURS else colour
    axes.plot(
        curve.ended - curve.begins, 0.025 + 0.03 * number, transform=axes.get_xaxis_transform(),
        marker="^", color=colour, markerfacecolor=filled, markersize=7, clip_on=True,
    )  # fmt: skip


def _axes(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Room for the triangles, below the curves.
    axes.set_ylim(low / 3, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1,), numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds; triangles: all bins have moved", color=INK)
    axes.set_ylabel("latency in ms, greatest of each 0.1 s", color=INK)
    axes.grid(visible=True, which="major", axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK)


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
