"""A logic timeline: the versions of an operator's logic, each from a logical time on.

Guarantees that records of one slice have one version. A change at a time that the control frontier
has passed is known, so a worker never applies a record before it knows the version of its time.
Cost: one comparison per slice while there is one version, else one search per slice.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, TypeVar

import numpy as np

from meander.dataflow.records.batch import Int64s
from meander.state.times.time import MIN_TIME

T = TypeVar("T")


class LogicTimeline(Generic[T]):
    """The versions of one logic.

    >>> timeline = LogicTimeline("old")
    >>> timeline.add(5, "new")
    >>> timeline.at(4), timeline.at(5), timeline.next_change(4), timeline.next_change(5)
    ('old', 'new', 5, None)
    >>> timeline.count_equal(np.array([3, 4, 5]))
    2
    """

    def __init__(self, first: T) -> None:
        self._versions, self._times = [first], [MIN_TIME]

    def add(self, time: int, version: T) -> None:
        """Add the version that applies from a time on. A later decision for the same time
        replaces the earlier one."""
        at = bisect_right(self._times, time)
        self._times.insert(at, time)
        self._versions.insert(at, version)

    def at(self, time: int) -> T:
        """Return the version at a time."""
        return self._versions[bisect_right(self._times, time) - 1]

    def next_change(self, time: int) -> int | None:
        """Return the time of the first change after a time, or None."""
        at = bisect_right(self._times, time)
        return self._times[at] if at < len(self._times) else None

    def count_equal(self, times: Int64s) -> int:
        """Return how many of the first records have the version of the first one, given their
        times, shape (n,)."""
        if len(self._times) == 1 or len(times) == 0:
            return len(times)
        versions = np.searchsorted(np.array(self._times, np.int64), times, side="right")
        others = np.flatnonzero(versions != versions[0])
        return int(others[0]) if len(others) else len(times)

    def forget_before(self, time: int) -> None:
        """Forget the versions that no record at or after a time needs."""
        first = bisect_right(self._times, time) - 1
        del self._times[:first], self._versions[:first]
