"""The demo's picture: how long answers took, and when bins moved.

Each quarter of a second shows the median, the 99th percentile and the greatest latency of the
records due in it, on a logarithmic axis, so that both a millisecond and a stall can be read off.
Bands are those of the phases: what was under way while bins moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from meander.app.demo.latency import PHASES, Backlog, Band, LatencySummary
from meander.dataflow.records.batch import Int64s

SLICE = 0.25
"""Seconds of one point."""
INK, MEDIAN, TAIL, GREATEST = "#22303c", "#1f6f8b", "#d97706", "#c2c9d1"
SHADES = ("#f3d9b1", "#cfe3d4", "#d9d3ec", "#f0cfd0")
MARGIN = 2
"""Points between a label and its band, or the edge."""


def picture(
    due: Int64s,
    arrived: Int64s,
    bands: Sequence[Band],
    phases: dict[str, LatencySummary],
    backlog: Backlog,
    title: str,
) -> Figure:
    """Draw it; times in nanoseconds since 1970, 0 where no result arrived, shape (n,)."""
    figure = Figure(figsize=(11, 5.4), dpi=130, layout="constrained")
    axes = figure.subplots()
    start = int(due[0])
    labels = _bands(axes, bands, start)
    _curves(axes, due, arrived, start)
    _log_axis(axes)
    last = max(int(due[-1]), *(band.end for band in bands)) if bands else int(due[-1])
    axes.set_xlim(0, (last - start) / 1e9)
    axes.set_xlabel(
        "seconds since the first record was due; bands: what was under way while bins moved",
        color=INK,
    )
    axes.set_ylabel("latency in ms, from due to result", color=INK)
    axes.grid(visible=True, which="major", axis="y", color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK)
    title += "" if backlog.kept_up else " (backlog)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    axes.set_title(_caption(phases), loc="left", fontsize=9, color=INK)
    figure.legend(loc="upper right", frameon=False, ncols=3)
    _keep_inside(figure, axes, labels)
    return figure


def _bands(axes: Axes, bands: Sequence[Band], start: int) -> list[Annotation]:
    labels = []
    for number, band in enumerate(bands):
        left, right = (band.start - start) / 1e9, (band.end - start) / 1e9
        shade = SHADES[number % len(SHADES)]
        axes.axvspan(left, max(right, left + 0.05), color=shade, alpha=0.7, linewidth=0)
        label = axes.annotate(
            band.label,
            (left, 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(MARGIN, 6 + 13 * (number % 3)),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )
        labels.append(label)
    return labels


def _keep_inside(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Labels that would run over the right edge end there."""
    figure.draw_without_rendering()
    for label in labels:
        over = label.get_window_extent().x1 - axes.get_window_extent().x1
        if over > 0:
            x, y = label.get_position()
            label.set_position((x - over * 72 / figure.dpi - MARGIN, y))


def _curves(axes: Axes, due: Int64s, arrived: Int64s, start: int) -> None:
    answered = arrived > 0
    seconds = (due[answered] - start) / 1e9
    latency = np.maximum((arrived[answered] - due[answered]) / 1e6, 0.01)
    edges = np.searchsorted(seconds, np.arange(0, seconds[-1] + SLICE, SLICE))
    parts = [part for part in np.split(latency, edges[1:-1]) if len(part)]
    at = [float(np.mean(part)) for part in np.split(seconds, edges[1:-1]) if len(part)]
    p50, p99, greatest = np.array([np.percentile(part, [50, 99, 100]) for part in parts]).T
    axes.fill_between(at, p50, greatest, color=GREATEST, alpha=0.45, linewidth=0, label="up to max")
    axes.plot(at, p99, color=TAIL, linewidth=1.4, label="p99")
    axes.plot(at, p50, color=MEDIAN, linewidth=1.8, label="p50")


def _log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Room for the bands' labels, below the curves.
    axes.set_ylim(low / 3, high)
    # Over few decades, their multiples are needed to read anything off.
    subs = (1, 2, 5) if math.log10(high / low * 3) > 1.5 else range(1, 10)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=50))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _caption(phases: dict[str, LatencySummary]) -> str:
    parts = [
        f"{phase}: p50 {found.p50_ms:,.1f}, p99 {found.p99_ms:,.1f}, max {found.max_ms:,.0f} ms"
        if found.records
        else f"{phase}: no record was due"
        for phase, found in ((phase, phases[phase]) for phase in PHASES)
    ]
    return "     ".join(parts)
