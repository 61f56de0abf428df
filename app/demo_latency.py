"""Latencies by phase: before, during and after the migrations.

A record belongs to `during` when the time between its being due and its last result overlaps a
window in which something moved, so what waits for a migration counts as delayed by it. Of the
rest, what was due before the first window is `before`, all else `after`. Records without a
result have no latency; the check counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.batch import Int64s

PHASES = ("before", "during", "after")


@dataclass(frozen=True, slots=True)
class Window:
    """A migration in wall-clock time, nanoseconds since 1970."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Of some records, in milliseconds; NaN where there are none."""

    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def by_phase(due: Int64s, arrived: Int64s, windows: Sequence[Window]) -> dict[str, Latency]:
    """Latencies of records with these times (nanoseconds since 1970, 0 for none; shape (n,)).

    >>> found = by_phase(
    ...     np.array([1, 20, 50]) * 10**6, np.array([3, 31, 54]) * 10**6,
    ...     [Window("m1", 30 * 10**6, 40 * 10**6)],
    ... )
    >>> [found[phase].p50_ms for phase in PHASES]
    [2.0, 11.0, 4.0]
    """
    latency = (arrived - due) / 1e6
    answered = arrived > 0
    during = np.zeros(len(due), bool)
    for window in windows:
        during |= (due <= window.end) & (arrived >= window.start)
    first = min((window.start for window in windows), default=np.iinfo(np.int64).max)
    before = ~during & (due < first)
    masks = {"before": before, "during": during, "after": ~during & ~before}
    return {phase: _summary(latency[mask & answered]) for phase, mask in masks.items()}


def _summary(latency: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Latency:
    if not len(latency):
        return Latency(0, np.nan, np.nan, np.nan)
    p50, p99, greatest = np.percentile(latency, [50, 99, 100]).tolist()
    return Latency(len(latency), p50, p99, greatest)
