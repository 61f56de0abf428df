"""The demo's picture shows every band whole, every label inside, and figures to read off."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from meander.app.demo.report import picture
from meander.app.measurement.latencies import Band, Timeline

START = 1_700_000_000.0
RATE = 100
DUE = START + np.arange(20 * RATE) / RATE


def draw(bands: list[Band], latency: float, spread: float = 1.0) -> Figure:
    """Answers take `latency` seconds at least, `spread` times as long at most."""
    timeline = Timeline(DUE, 1000 * np.linspace(latency, latency * spread, len(DUE)))
    figure = picture(timeline, bands, timeline.backlog(RATE), "title")
    figure.draw_without_rendering()
    return figure


def band(start: float, end: float) -> Band:
    return Band("a-long-name: 64 bins, all-at-once", START + start, START + end)


def test_a_band_that_ends_after_the_last_record_is_shown_whole() -> None:
    (axes,) = draw([band(5, 6), band(19, 23)], 0.01).axes
    assert axes.get_xlim() == (0.0, 23.0)


@pytest.mark.parametrize("start", [0.0, 10.0, 16.0, 19.9])
def test_labels_stay_inside(start: float) -> None:
    (axes,) = draw([band(start, 20)], 0.01).axes
    inside = axes.get_window_extent()
    (label,) = axes.texts
    extent = label.get_window_extent()
    assert inside.x0 <= extent.x0 < extent.x1 <= inside.x1


@pytest.mark.parametrize(("latency", "spread"), [(0.005, 1.2), (0.005, 400.0), (4.0, 2.0)])
def test_there_are_figures_enough_to_read_latencies_off(latency: float, spread: float) -> None:
    (axes,) = draw([], latency, spread).axes
    low, high = axes.get_ylim()
    shown = [
        tick.label1.get_text()
        for tick in axes.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert 4 <= len([text for text in shown if text]) <= 20


def test_a_backlog_is_in_the_title_and_a_phase_without_records_in_the_caption() -> None:
    behind = draw([band(15, 30)], 2.0)
    assert behind.get_suptitle() == "title (backlog)"
    (axes,) = behind.axes
    assert axes.get_title("left").endswith("after: no record was due")
    assert draw([], 0.01).get_suptitle() == "title"
