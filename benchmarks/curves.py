"""Timelines of migrations, as the paper draws them: seconds, and latencies on a logarithmic axis.

One line per strategy: the greatest latency of each tenth of a second. A dashed line is the command,
a triangle under the curves the moment when all bins had moved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.outcome import Case, Curve, Part
from meander.app.measurement.plot import BLUE, INK, ORANGE, RED, canvas, latency_axis

COLOURS = {"all-at-once": RED, "fluid": ORANGE, "batched": BLUE}
MOST_SECONDS = 60.0
"""After the command; what takes longer runs out of the picture."""


Look = tuple[str, float, float]
"""Colour, width and opacity of a line."""


def look(name: str) -> Look:
    """The look of a strategy: what is prepared stands out."""
    colour = COLOURS.get(name.rpartition(" ")[2], INK)
    return (colour, 1.0, 0.55) if name in COLOURS else (colour, 1.8, 1.0)


def timelines(part: Part, title: str, look: Callable[[str], Look] = look) -> Figure:
    """All cases of a part that have a curve."""
    figure, axes = canvas(title)
    curved = [(name, case, case.curve) for name, case in part.cases.items() if case.curve]
    for number, (name, case, curve) in enumerate(curved):
        _line(axes, name, case, curve, look(name))
        _end(axes, curve, number, look(name))
    begins = min(curve.begins for _, _, curve in curved)
    last = max(curve.begins + curve.step * len(curve.most) for _, _, curve in curved)
    axes.set_xlim(0, min(last, MOST_SECONDS) - begins)
    axes.axvline(-begins, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        "command", (-begins, 1), xycoords=("data", "axes fraction"), xytext=(4, -12),
        textcoords="offset points", fontsize=9, color=INK,
    )  # fmt: skip
    latency_axis(axes, "latency in ms, greatest of each 0.1 s")
    axes.set_xlabel("seconds; triangles: all bins have moved")
    axes.set_title(f"{part.what}; {part.machine['cores']} cores for all", loc="left", fontsize=9)
    figure.legend(loc="outside lower left", frameon=False, ncols=2, fontsize=9)
    return figure


def _line(axes: Axes, name: str, case: Case, curve: Curve, look: Look) -> None:
    colour, width, alpha = look
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


def _end(axes: Axes, curve: Curve, number: int, look: Look) -> None:
    colour, _, alpha = look
    filled = "white" if alpha < 1 else colour
    axes.plot(
        curve.ended - curve.begins, 0.025 + 0.03 * number, transform=axes.get_xaxis_transform(),
        marker="^", color=colour, markerfacecolor=filled, markersize=7, clip_on=True,
    )  # fmt: skip


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
