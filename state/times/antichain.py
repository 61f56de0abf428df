"""Antichains: sets of mutually incomparable times, which describe lower bounds.

`Antichain` is a value. `MutableAntichain` counts pointstamps and maintains the antichain of the
times with a positive count. Updates of different members arrive in any order, so a count may pass
through negative values. Only positive counts bound a frontier (timely dataflow,
`MutableAntichain`). Cost: an update takes O(log n) in the times held. An update that touches the
frontier compares the least time of each combination of iterations; the outer scope has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meander.state.times.time import Time, less_equal, less_than

_OUTER = {int}
"""The types of times whose order is total."""
SPARE = 64
"""Times that may lie in a heap without a count, however few have one."""


@dataclass(frozen=True, slots=True)
class Antichain:
    """A lower bound of times; the empty one bounds nothing, as nothing will come.

    >>> frontier = Antichain.of((1, 5), (2, 3), (2, 6))
    >>> frontier.times, frontier.less_equal((2, 4)), frontier.less_equal((0, 9))
    (((1, 5), (2, 3)), True, False)
    """

    times: tuple[Time, ...] = ()

    @staticmethod
    def of(*times: Time) -> Antichain:
        """The minimal elements of some times."""
        return Antichain(minimal(times))

    def less_equal(self, time: Time) -> bool:
        """Whether `time` may still come.

        >>> Antichain.of(5).less_equal(5), Antichain.of(5).less_equal(4), Antichain().less_equal(9)
        (True, False, False)
        """
        # This and the next are asked for every message and frontier: a generator would cost more
        # than the answer.
        for element in self.times:  # noqa: SIM110
            if less_equal(element, time):
                return True
        return False

    def less_than(self, time: Time) -> bool:
        """Whether something strictly before `time` may still come.

        >>> Antichain.of(5).less_than(5), Antichain.of(4).less_than(5)
        (False, True)
        """
        for element in self.times:  # noqa: SIM110
            if less_than(element, time):
                return True
        return False

    def dominates(self, other: Antichain) -> bool:
        """Whether every time of `other` is at or after one of this.

        >>> Antichain.of(3).dominates(Antichain.of(4)), Antichain.of(3).dominates(Antichain())
        (True, True)
        """
        for time in other.times:  # noqa: SIM110
            if not self.less_equal(time):
                return False
        return True

    def meet(self, other: Antichain) -> Antichain:
        """The greatest lower bound of both.

        >>> Antichain.of(3).meet(Antichain.of(4)).times
        (3,)
        """
        # Mostly one lies before the other, and stands for both.
        if self.dominates(other):
            return self
        if other.dominates(self):
            return other
        return Antichain.of(*self.times, *other.times)

    def __bool__(self) -> bool:
        return bool(self.times)

    def __iter__(self) -> Iterator[Time]:
        return iter(self.times)


NOTHING = Antichain()
"""Bounds nothing, as nothing will come."""


def minimal(times: Iterable[Time]) -> tuple[Time, ...]:
    """The minimal elements, each once, in ascending order.

    >>> minimal([4, 2, 3]), minimal([(2, 1), (1, 2), (2, 2)])
    ((2,), ((1, 2), (2, 1)))
    """
    given = tuple(times)
    if len(given) < 2:
        return given
    if set(map(type, given)) == _OUTER:
        return (min(given),)
    kept: list[Time] = []
    # No time is before one that is ahead of it in this order.
    for time in sorted(set(given)):
        for other in reversed(kept):
            if less_equal(other, time):
                break
        else:
            kept.append(time)
    return tuple(kept)


class MutableAntichain:
    """Counts per time, and the antichain of the times with a positive count.

    >>> held = MutableAntichain()
    >>> held.update(5, 1), held.update(7, 1), held.update(5, -1), held.frontier.times
    (True, False, True, (7,))
    """

    __slots__ = ("_counts", "_heaps", "_queued", "frontier")

    def __init__(self) -> None:
        self._counts: dict[Time, int] = {}
        self._heaps: dict[tuple[int, ...], list[Time]] = {}
        """By rounds, all times with a positive count, and some that had one: of equal rounds only
        the least can be minimal."""
        self._queued = 0
        """How many times lie in the heaps."""
        self.frontier = Antichain()

    def update(self, time: Time, delta: int) -> bool:
        """Add to the count of a time; whether the frontier changed."""
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
            self.frontier = Antichain(minimal(self._leasts())) if counts else NOTHING
            return True
        if after <= 0:
            return False
        self._queue(time)
        if self.frontier.less_equal(time):
            return False
        self.frontier = Antichain(minimal((*bound, time)))
        return True

    def forget(self, bound: Antichain) -> bool:
        """Drop the counts of all times before a bound; whether the frontier changed.

        >>> held = MutableAntichain()
        >>> held.update(5, 1), held.update(7, 1), held.forget(Antichain.of(6)), held.frontier.times
        (True, False, True, (7,))
        """
        self._counts = {t: count for t, count in self._counts.items() if bound.less_equal(t)}
        before, self.frontier = self.frontier, Antichain(minimal(self._leasts()))
        return set(before) != set(self.frontier)

    def positive(self) -> Iterator[Time]:
        """The times with a positive count."""
        return (time for time, count in self._counts.items() if count > 0)

    def settled(self) -> bool:
        """Whether every count is zero: no update is under way or owed.

        >>> owed = MutableAntichain()
        >>> owed.update(3, -1), owed.settled()
        (False, False)
        """
        return not self._counts

    def _queue(self, time: Time) -> None:
        heapq.heappush(self._heaps.setdefault(() if isinstance(time, int) else time[1:], []), time)
        self._queued += 1
        # Times that have lost their count below the least one would stay for ever.
        if self._queued > 2 * len(self._counts) + SPARE:
            times, self._heaps, self._queued = [*self.positive()], {}, 0
            for one in times:
                self._queue(one)

    def _leasts(self) -> Iterator[Time]:
        """The least time with a positive count, of each rounds."""
        for rounds, heap in list(self._heaps.items()):
            while heap and self._counts.get(heap[0], 0) <= 0:
                heapq.heappop(heap)
                self._queued -= 1
            if heap:
                yield heap[0]
            else:
                del self._heaps[rounds]
