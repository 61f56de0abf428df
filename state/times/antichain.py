"""Antichains: sets of mutually incomparable times, which describe lower bounds.

`Antichain` is a value. `MutableAntichain` counts pointstamps and maintains the antichain of the
times with a positive count. Updates of different members arrive in any order, so a count may pass
through negative values. Only positive counts bound a frontier (timely dataflow,
`MutableAntichain`). Cost: an update takes O(log n) for n times. An update that touches the frontier
compares the least time of each combination of iterations; the outer scope has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meander.state.times.time import Time, less_equal, less_than

_OUTER = {int}
"""The types of times in total order."""
STALE_TIMES = 64
"""The least number of times without a count that a heap tolerates."""


@dataclass(frozen=True, slots=True)
class Antichain:
    """An antichain that bounds times from below. The empty one admits no time.

    >>> frontier = Antichain.of((1, 5), (2, 3), (2, 6))
    >>> frontier.times, frontier.less_equal((2, 4)), frontier.less_equal((0, 9))
    (((1, 5), (2, 3)), True, False)
    """

    times: tuple[Time, ...] = ()

    @staticmethod
    def of(*times: Time) -> Antichain:
        """Return the antichain of the minimal elements of some times."""
        return Antichain(minimal(times))

    def less_equal(self, time: Time) -> bool:
        """Return whether `time` may still come.

        >>> Antichain.of(5).less_equal(5), Antichain.of(5).less_equal(4), Antichain().less_equal(9)
        (True, False, False)
        """
        # Each message and each frontier calls this function and the next, so a generator would cost
        # too much.
        for element in self.times:  # noqa: SIM110
            if less_equal(element, time):
                return True
        return False

    def less_than(self, time: Time) -> bool:
        """Return whether a time strictly before `time` may still come.

        >>> Antichain.of(5).less_than(5), Antichain.of(4).less_than(5)
        (False, True)
        """
        for element in self.times:  # noqa: SIM110
            if less_than(element, time):
                return True
        return False

    def dominates(self, other: Antichain) -> bool:
        """Return whether every time of `other` is at or after a time of this antichain.

        >>> Antichain.of(3).dominates(Antichain.of(4)), Antichain.of(3).dominates(Antichain())
        (True, True)
        """
        for time in other.times:  # noqa: SIM110
            if not self.less_equal(time):
                return False
        return True

    def meet(self, other: Antichain) -> Antichain:
        """Return the greatest lower bound of both.

        >>> Antichain.of(3).meet(Antichain.of(4)).times
        (3,)
        """
        # Usually one antichain dominates the other, and is the result.
        if self.dominates(other):
            return self
        if other.dominates(self):
            return other
        return Antichain.of(*self.times, *other.times)

    def __bool__(self) -> bool:
        return bool(self.times)

    def __iter__(self) -> Iterator[Time]:
        return iter(self.times)


EMPTY_ANTICHAIN = Antichain()
"""The antichain that admits no time."""


def minimal(times: Iterable[Time]) -> tuple[Time, ...]:
    """Return the minimal elements, each once, in ascending order.

    >>> minimal([4, 2, 3]), minimal([(2, 1), (1, 2), (2, 2)])
    ((2,), ((1, 2), (2, 1)))
    """
    unsorted = tuple(times)
    if len(unsorted) < 2:
        return unsorted
    if set(map(type, unsorted)) == _OUTER:
        return (min(unsorted),)
    found: list[Time] = []
    # No time precedes an earlier one in this order.
    for time in sorted(set(unsorted)):
        for other in reversed(found):
            if less_equal(other, time):
                break
        else:
            found.append(time)
    return tuple(found)


class MutableAntichain:
    """A mutable antichain that counts times and maintains the minimal times with a positive count.

    >>> held = MutableAntichain()
    >>> held.update(5, 1), held.update(7, 1), held.update(5, -1), held.frontier.times
    (True, False, True, (7,))
    """

    __slots__ = ("_counts", "_heaps", "_queued", "frontier")

    def __init__(self) -> None:
        self._counts: dict[Time, int] = {}
        self._heaps: dict[tuple[int, ...], list[Time]] = {}
        """By iterations, all times with a positive count, and some without one. Only the least time
        of each iteration can be minimal."""
        self._queued = 0
        """The number of times in the heaps."""
        self.frontier = Antichain()

    def update(self, time: Time, delta: int) -> bool:
        """Add to the count of a time; return whether the frontier changed."""
        counts, bound = self._counts, self.frontier.times
        before = counts.get(time, 0)
        after = before + delta
        if after:
            counts[time] = after
        else:
            counts.pop(time, None)
        if before > 0:
            if after > 0 or time not in bound:
                return False
            self.frontier = Antichain(minimal(self._minima())) if counts else EMPTY_ANTICHAIN
            return True
        if after <= 0:
            return False
        self._queue(time)
        if self.frontier.less_equal(time):
            return False
        self.frontier = Antichain(minimal((*bound, time)))
        return True

    def discard_before(self, bound: Antichain) -> bool:
        """Drop the counts of all times before a bound; return whether the frontier changed.

        >>> held = MutableAntichain()
        >>> held.update(5, 1), held.update(7, 1)
        (True, False)
        >>> held.discard_before(Antichain.of(6)), held.frontier.times
        (True, (7,))
        """
        self._counts = {t: count for t, count in self._counts.items() if bound.less_equal(t)}
        before, self.frontier = self.frontier, Antichain(minimal(self._minima()))
        return set(before) != set(self.frontier)

    def positive(self) -> Iterator[Time]:
        """Yield the times with a positive count."""
        return (time for time, count in self._counts.items() if count > 0)

    def is_empty(self) -> bool:
        """Return whether every count is zero, so no update is missing.

        >>> owed = MutableAntichain()
        >>> owed.update(3, -1), owed.is_empty()
        (False, False)
        """
        return not self._counts

    def _queue(self, time: Time) -> None:
        heapq.heappush(self._heaps.setdefault(() if isinstance(time, int) else time[1:], []), time)
        self._queued += 1
        # Without this step, times that lost their count above the least one would remain in the
        # heap.
        if self._queued > 2 * len(self._counts) + STALE_TIMES:
            times, self._heaps, self._queued = [*self.positive()], {}, 0
            for one in times:
                self._queue(one)

    def _minima(self) -> Iterator[Time]:
        """Yield the least time with a positive count of each iteration."""
        for iterations, heap in list(self._heaps.items()):
            while heap and self._counts.get(heap[0], 0) <= 0:
                heapq.heappop(heap)
                self._queued -= 1
            if heap:
                yield heap[0]
            else:
                del self._heaps[iterations]
