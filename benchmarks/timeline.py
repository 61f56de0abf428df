"""Latencies over time: each record by when it was due, whatever came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
BACK = 1.2
"""Times the steady p99: a second within that counts as steady again."""
UNREST = 3.0
"""Times the p99 of the second in the middle: a second beyond that has been disturbed."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p99: float
    most: float

    def named(self, prefix: str = "") -> dict[str, float]:
        """As figures.

        >>> Latency(1.0, 2.0, 3.0).named("steady_")
        {'steady_p50_ms': 1.0, 'steady_p99_ms': 2.0, 'steady_max_ms': 3.0}
        """
        return {
            f"{prefix}p50_ms": self.p50, f"{prefix}p99_ms": self.p99, f"{prefix}max_ms": self.most
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """All records, by when they were due."""

    due: Float64s
    """Seconds since 1970, ascending, shape (n,)."""
    took: Float64s
    """Milliseconds from then to the result, shape (n,)."""

    @classmethod
    def of(cls, due: Float64s, took: Float64s) -> Self:
        """Of records in any order."""
        order = np.argsort(due, kind="stable")
        return cls(due[order], took[order])

    def between(self, start: float, end: float) -> Timeline:
        """Those due from `start` on and before `end`."""
        first, last = np.searchsorted(self.due, (start, end))
        return Timeline(self.due[first:last], self.took[first:last])

    def first(self) -> Timeline:
        """Of each record the first result only."""
        came = self.due + self.took / 1000
        order = np.lexsort((came, self.due))
        due, places = np.unique(self.due[order], return_index=True)
        return Timeline(due, self.took[order][places])

    def silence(self, since: float) -> float:
        """The longest time without a result from then on, seconds."""
        came = np.sort(self.due + self.took / 1000)
        return float(np.diff([since, *came[came > since]]).max())

    def latency(self) -> Latency:
        """Of all of them. Raises AssertionError where there are none."""
        assert len(self.took), "there is no result in this time"
        p50, p99, most = np.percentile(self.took, [50, 99, 100]).tolist()
        return Latency(p50, p99, most)

    def steadily(self, prefix: str = "") -> dict[str, float]:
        """Figures of a time in which nothing moves, and whether it was disturbed."""
        return self.latency().named(prefix) | {"disturbed": self.disturbed}

    @property
    def disturbed(self) -> bool:
        """Whether one of its seconds has a p99 beyond `UNREST` times that of the one in the middle,
        whatever the reason: it is no measure for others then."""
        seconds = round(self.due[-1] - self.due[0])
        p99 = self.slices(self.due[0], self.due[0] + seconds, 1.0)[:, 1]
        return bool(np.nanmax(p99) > UNREST * np.nanmedian(p99))

    def slices(self, start: float, end: float, step: float) -> Float64s:
        """p50, p99 and maximum of each `step` seconds, NaN where no record was due; shape (n, 3).

        >>> one = Timeline.of(np.array([2.0, 0.5, 0.25]), np.array([7.0, 3.0, 1.0]))
        >>> one.slices(0, 3, 1.0)[:, 2].tolist()
        [3.0, nan, 7.0]
        """
        edges = start + step * np.arange(round((end - start) / step) + 1)
        parts = np.split(self.took, np.searchsorted(self.due, edges))[1:-1]
        none = [np.nan] * 3
        found = [np.percentile(part, [50, 99, 100]) if len(part) else none for part in parts]
        return np.array(found, np.float64).reshape(-1, 3)

    def back(self, start: float, busy: float, limit: float) -> float | None:
        """Seconds from `start` to the first second back within `limit`, by its p99.

        That is the one behind the last second beyond it that begins before `busy` has passed since
        `start`, and those that follow on it: what is quiet between two bins does not count. 0 where
        none is beyond it, None where no later one is back. A second in which nothing was due is
        neither.
        """
        seconds = int(self.due[-1] - start) if len(self.due) else 0
        p99 = self.slices(start, start + seconds, 1.0)[:, 1]
        return back(p99.tolist(), busy, limit)


def back(p99: Sequence[float], busy: float, limit: float) -> float | None:
    """As `Timeline.back`, of each second's p99.

    >>> back([5, 90, 5, 80, 70, 5, 5], busy=3.5, limit=6), back([5, 5, 90], busy=1.5, limit=6)
    (5.0, 0.0)
    """
    beyond = [second for second, one in enumerate(p99) if one > limit]
    last = max((second for second in beyond if second < busy), default=None)
    if last is None:
        return 0.0
    for second in range(last + 1, len(p99)):
        if p99[second] <= limit:
            return float(second)
    return None
