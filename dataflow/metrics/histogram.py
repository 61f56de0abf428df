"""Histograms of durations, with the same buckets everywhere.

Guarantees that counts never decrease, and add up over operators, workers and time. Cost: a search
among a dozen bounds per observation, in native code for many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The upper bounds of the buckets in seconds. One more bucket counts longer durations."""
_EDGES = np.array(BOUNDS)


@dataclass(slots=True)
class Histogram:
    """A histogram that counts durations by bucket.

    >>> seen = Histogram()
    >>> seen.observe(0.0001); seen.observe(0.002); seen.observe(60)
    >>> seen.counts, seen.seconds
    ([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], 60.0021)
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """The counts by bucket, not cumulative."""
    seconds: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `times` durations of equal length."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.seconds += seconds * times

    def observe_each(self, seconds: npt.NDArray[np.float64]) -> None:
        """Count each duration of an array of shape (n,)."""
        buckets = np.searchsorted(_EDGES, seconds)
        found = np.bincount(buckets, minlength=len(self.counts)).tolist()
        self.counts = [a + b for a, b in zip(self.counts, found, strict=True)]
        self.seconds += float(seconds.sum())


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the seconds that a share of the durations did not exceed, at a bucket's precision.
    Return None beyond all bounds, and without observations.

    >>> quantile([2, 0, 1] + [0] * 10, 0.5), quantile([2, 0, 1] + [0] * 10, 0.99)
    (0.0001, 0.001)
    >>> quantile([0] * 12 + [1], 0.5), quantile([0] * 13, 0.5)
    (None, None)
    """
    wanted = share * sum(counts)
    bounds = zip(BOUNDS, accumulate(counts), strict=False)
    return next((bound for bound, upto in bounds if upto >= wanted > 0), None)
