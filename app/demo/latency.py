"""Latencies by phase: before, during and after the migrations, and how far the flow fell behind.

All is by when a record was due. A migration's band begins with the earliest record that was under
way when it began, so what waits for a migration counts as delayed by it, and ends with it. What
is due in a band is `during`; of the rest, what was due before the first band is `before`, all else
`after`. Records without a result have no latency; the check counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meander.dataflow.records.batch import Int64s

PHASES = ("before", "during", "after")


@dataclass(frozen=True, slots=True)
class Band:
    """A migration in wall-clock time, nanoseconds since 1970."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Of some records, in milliseconds; NaN where there are none."""

    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Records that waited for their answers when another became due."""

    bound: int
    """As many as are due in one second: with more, a latency tells how long the queue was."""
    most: int
    records: int
    """How many became due while more than `bound` waited."""

    @property
    def kept_up(self) -> bool:
        """Whether the flow kept up with its load."""
        return self.records == 0


def widened(due: Int64s, arrived: Int64s, moves: Sequence[Band]) -> list[Band]:
    """Each with what was under way when it began; times in nanoseconds since 1970, shape (n,).

    >>> due, arrived = np.array([10, 20, 30, 40]), np.array([15, 35, 34, 44])
    >>> widened(due, arrived, [Band("m1", 33, 36)])
    [Band(label='m1', start=20, end=36)]
    """
    return [
        replace(
            move,
            start=int(due[(arrived >= move.start) & (due <= move.start)].min(initial=move.start)),
        )
        for move in moves
    ]


def by_phase(due: Int64s, arrived: Int64s, bands: Sequence[Band]) -> dict[str, LatencySummary]:
    """Latencies of records with these times (nanoseconds since 1970, 0 for none; shape (n,)).

    >>> found = by_phase(
    ...     np.array([1, 20, 50]) * 10**6, np.array([3, 31, 54]) * 10**6,
    ...     [Band("m1", 20 * 10**6, 40 * 10**6)],
    ... )
    >>> [found[phase].p50_ms for phase in PHASES]
    [2.0, 11.0, 4.0]
    """
    latency = (arrived - due) / 1e6
    answered = arrived > 0
    during = np.zeros(len(due), bool)
    for band in bands:
        during |= (due >= band.start) & (due <= band.end)
    first = min((band.start for band in bands), default=np.iinfo(np.int64).max)
    before = ~during & (due < first)
    masks = {"before": before, "during": during, "after": ~during & ~before}
    return {phase: _summary(latency[mask & answered]) for phase, mask in masks.items()}


def _summary(latency: np.ndarray[tuple[int], np.dtype[np.float64]]) -> LatencySummary:
    if not len(latency):
        return LatencySummary(0, np.nan, np.nan, np.nan)
    p50, p99, greatest = np.percentile(latency, [50, 99, 100]).tolist()
    return LatencySummary(len(latency), p50, p99, greatest)


def backlog(due: Int64s, arrived: Int64s, rate: int) -> Backlog:
    """How far the flow was behind `rate` records per second; arguments as above, `due` ascending.

    >>> due = np.arange(10)
    >>> backlog(due, due + 2, rate=2)
    Backlog(bound=2, most=2, records=0)
    >>> backlog(due, due + 4, rate=2)
    Backlog(bound=2, most=4, records=8)
    """
    answered = np.searchsorted(np.sort(arrived[arrived > 0]), due, side="right")
    waiting = np.arange(1, len(due) + 1) - answered
    most = int(waiting.max(initial=0))
    return Backlog(rate, most, int(np.count_nonzero(waiting > rate)))
