"""The demo's picture: how long answers took, and when bins moved.

Each quarter of a second shows the median, the 99th percentile and the greatest latency of the
records due in it, on a logarithmic axis, so that both a millisecond and a stall can be read off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from app.demo_latency import PHASES, Latency, Window
from dataflow.batch import Int64s

SLICE = 0.25
"""Seconds of one point."""
INK, MEDIAN, TAIL, GREATEST = "#22303c", "#1f6f8b", "#d97706", "#c2c9d1"
SHADES = ("#f3d9b1", "#cfe3d4", "#d9d3ec", "#f0cfd0")


def plot(
    path: Path,
    due: Int64s,
    arrived: Int64s,
    windows: Sequence[Window],
    phases: dict[str, Latency],
    title: str,
) -> None:
    """Write a PNG; times in nanoseconds since 1970, 0 where no result arrived, shape (n,)."""
    figure = Figure(figsize=(11, 5.4), dpi=130, layout="constrained")
    axes = figure.subplots()
    start = int(due[0])
    _windows(axes, windows, start)
    _curves(axes, due, arrived, start)
    axes.set_yscale("log")
    # Room for the labels of the windows, below the curves.
    axes.set_ylim(bottom=axes.get_ylim()[0] / 3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(0, (int(due[-1]) - start) / 1e9)
    axes.set_xlabel("seconds since the first record was due", color=INK)
    axes.set_ylabel("latency in ms, from due to result", color=INK)
    axes.grid(visible=True, which="major", axis="y", color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    axes.set_title(_caption(phases), loc="left", fontsize=9.5, color=INK)
    figure.legend(loc="upper right", frameon=False, ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _windows(axes: Axes, windows: Sequence[Window], start: int) -> None:
    for number, window in enumerate(windows):
        left, right = (window.start - start) / 1e9, (window.end - start) / 1e9
        shade = SHADES[number % len(SHADES)]
        axes.axvspan(left, max(right, left + 0.05), color=shade, alpha=0.85, linewidth=0)
        axes.annotate(
            f" {window.label}",
            (left, 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 6 + 13 * (number % 3)),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )


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


def _caption(phases: dict[str, Latency]) -> str:
    return "      ".join(
        f"{phase}: p50 {found.p50_ms:.1f}, p99 {found.p99_ms:.1f}, max {found.max_ms:.0f} ms"
        for phase, found in ((phase, phases[phase]) for phase in PHASES)
        if found.records
    )
