"""The style of all pictures, and their axis of latencies."""

from __future__ import annotations

import math
from collections.abc import Collection

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

INK, BLUE, ORANGE, RED, GREY = "#22303c", "#1f6f8b", "#d97706", "#b23a48", "#c2c9d1"


def canvas(title: str, width: float = 11, height: float = 5.5) -> tuple[Figure, Axes]:
    """Return a figure with a title and its axes."""
    with rc_context({
        "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y", "axes.labelcolor": INK,
        "axes.spines.right": False, "axes.spines.top": False, "axes.titlecolor": INK,
        "figure.dpi": 130, "grid.color": "#e3e7eb", "text.color": INK, "xtick.color": INK,
        "ytick.color": INK,
    }):  # fmt: skip
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure, axes


def latency_axis(axes: Axes, label: str) -> None:
    """Show latencies on a logarithmic axis, with room for labels below the curves."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 3, high)
    # Over few decades, their multiples are needed to read anything off.
    few = math.log10(high / low * 3) <= 1.5
    subs: Collection[float] = range(1, 10) if few else (1, 2, 5)
    axes.yaxis.set_major_locator(LogLocator(subs=list(subs), numticks=50))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)
