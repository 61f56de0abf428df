"""Latencies of records by when each was due.

Guarantees that a record counts from when it was due, not from when it was sent. A record without
a result has no latency: it enters no percentile, but it enters the backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
FIGURES = ("p50_ms", "p99_ms", "max_ms")
PHASES = ("before", "during", "after")
BACK = 1.2
"""Times the steady p99: a second within that counts as steady again."""
UNREST = 3.0
"""Times the p99 of the second in the middle: a second beyond that has been disturbed."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """A summary of the latencies of some records, in milliseconds; NaN where there are none."""

    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    def named(self, prefix: str = "") -> dict[str, float]:
        """Return the figures by name. Raises AssertionError where no record has a latency.

        >>> LatencySummary(9, 1.0, 2.0, 3.0).named("steady_")
        {'steady_p50_ms': 1.0, 'steady_p99_ms': 2.0, 'steady_max_ms': 3.0}
        """
        assert self.records, "there is no result in this time"
        return {f"{prefix}{name}": getattr(self, name) for name in (FIGURES)}


@dataclass(frozen=True, slots=True)
class Band:
    """A band of a picture shows when a migration ran, in seconds since 1970."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog counts records that waited for their results when another became due."""

    bound: int
    """As many as are due in one second: with more, a latency tells how long the queue was."""
    most: int
    records: int
    """How many became due while more than `bound` waited."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A timeline holds the latencies of all records in the order in which they were due."""

    due: Float64s
    """Seconds since 1970, ascending, shape (n,)."""
    took: Float64s
    """Milliseconds from then to the result, NaN where there is none, shape (n,)."""

    @classmethod
    def of(cls, due: Float64s, took: Float64s) -> Self:
        """Sort records by when they were due."""
        order = np.argsort(due, kind="stable")
        return cls(due[order], took[order])

    @property
    def arrived(self) -> Float64s:
        """When each result arrived, seconds since 1970, shape (n,)."""
        return self.due + self.took / 1000

    def between(self, start: float, end: float) -> Timeline:
        """Return the records that were due from `start` on and before `end`."""
        first, last = np.searchsorted(self.due, (start, end))
        return Timeline(self.due[first:last], self.took[first:last])

    def first(self) -> Timeline:
        """Return the first result of each record, where records have several."""
        order = np.lexsort((self.arrived, self.due))
        due, places = np.unique(self.due[order], return_index=True)
        return Timeline(due, self.took[order][places])

    def silence(self, since: float) -> float:
        """Return the longest time without a result from then on, seconds."""
        arrived = np.sort(self.arrived)
        return float(np.diff([since, *arrived[arrived > since]]).max())

    def summary(self) -> LatencySummary:
        """Summarize all latencies."""
        return _summary(self.took)

    def steadily(self, prefix: str = "") -> dict[str, float]:
        """Return the figures of a time in which nothing moves, and whether it was disturbed."""
        return self.summary().named(prefix) | {"disturbed": self.disturbed}

    @property
    def disturbed(self) -> bool:
        """Whether one second has a p99 beyond `UNREST` times that of the second in the middle."""
        seconds = round(self.due[-1] - self.due[0])
        p99 = self.slices(self.due[0], self.due[0] + seconds, 1.0)[:, 1]
        return bool(np.nanmax(p99) > UNREST * np.nanmedian(p99))

    def slices(self, start: float, end: float, step: float) -> Float64s:
        """Return p50, p99 and maximum of each `step` seconds, NaN without a record; shape (n, 3).

        >>> one = Timeline.of(np.array([2.0, 0.5, 0.25]), np.array([7.0, 3.0, 1.0]))
        >>> one.slices(0, 3, 1.0)[:, 2].tolist()
        [3.0, nan, 7.0]
        """
        edges = start + step * np.arange(round((end - start) / step) + 1)
        parts = np.split(self.took, np.searchsorted(self.due, edges))[1:-1]
        found = [(one.p50_ms, one.p99_ms, one.max_ms) for one in map(_summary, parts)]
        return np.array(found, np.float64).reshape(-1, 3)

    def back(self, start: float, busy: float, limit: float) -> float | None:
        """Return the seconds from `start` to the first second back within `limit`, by its p99.

        That second follows the last one beyond the limit that begins within `busy` seconds and all
        that join it: quiet between two bins does not count. 0 where no second is beyond the limit,
        None where no later one is back. A second in which nothing was due counts as neither.
        """
        seconds = int(self.due[-1] - start) if len(self.due) else 0
        p99 = self.slices(start, start + seconds, 1.0)[:, 1]
        return back(p99.tolist(), busy, limit)

    def widened(self, bands: Sequence[Band]) -> list[Band]:
        """Start each band with the earliest record that waited when the migration began.

        >>> one = Timeline(np.array([10.0, 20, 30, 40]), np.array([5e3, 15e3, 4e3, 4e3]))
        >>> one.widened([Band("m1", 33, 36)])
        [Band(label='m1', start=20.0, end=36)]
        """
        return [
            replace(
                band,
                start=float(
                    self.due[(self.arrived >= band.start) & (self.due <= band.start)].min(
                        initial=band.start
                    )
                ),
            )
            for band in bands
        ]

    def phases(self, bands: Sequence[Band]) -> dict[str, LatencySummary]:
        """Summarize what was due before, during and after the bands.

        Between two bands counts as after.

        >>> one = Timeline(np.array([1.0, 20, 50]), np.array([2.0, 11, 4]))
        >>> [found.p50_ms for found in one.phases([Band("m1", 20, 40)]).values()]
        [2.0, 11.0, 4.0]
        """
        during = np.zeros(len(self.due), bool)
        for band in bands:
            during |= (self.due >= band.start) & (self.due <= band.end)
        before = ~during & (self.due < min((band.start for band in bands), default=np.inf))
        masks = (before, during, ~during & ~before)
        return {phase: _summary(self.took[mask]) for phase, mask in zip(PHASES, masks, strict=True)}

    def backlog(self, rate: int) -> Backlog:
        """Return how far the flow was behind `rate` records per second.

        >>> due = np.arange(10.0)
        >>> Timeline(due, np.full(10, 2e3)).backlog(2)
        Backlog(bound=2, most=2, records=0)
        >>> Timeline(due, np.full(10, 4e3)).backlog(2)
        Backlog(bound=2, most=4, records=8)
        """
        arrived = np.sort(self.arrived[~np.isnan(self.took)])
        answered = np.searchsorted(arrived, self.due, side="right")
        waiting = np.arange(1, len(self.due) + 1) - answered
        return Backlog(rate, int(waiting.max(initial=0)), int(np.count_nonzero(waiting > rate)))


def _summary(took: Float64s) -> LatencySummary:
    known = took[~np.isnan(took)]
    if not len(known):
        return LatencySummary(0, np.nan, np.nan, np.nan)
    return LatencySummary(len(known), *np.percentile(known, [50, 99, 100]).tolist())


def back(p99: Sequence[float], busy: float, limit: float) -> float | None:
    """As `Timeline.back`, of each second's p99.

    >>> back([5, 90, 5, 80, 70, 5, 5], busy=3.5, limit=6), back([5, 5, 90], busy=1.5, limit=6)
    (5.0, 0.0)
    """
    beyond = [second for second, one in enumerate(p99) if one > limit]
    last = max((second for second in beyond if second < busy), default=None)
    if last is None:
        return 0.0
    later = range(last + 1, len(p99))
    return next((float(second) for second in later if p99[second] <= limit), None)
