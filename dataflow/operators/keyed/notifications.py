"""Notifications: an operator asks to be called once all of a time has come (Naiad, OnNotify).

Guarantees that a key that asks at a time is called once, after all that the frontier had to pass
for that time and before anything later in the total order; until then its time is owed, so no
frontier passes it. A bin leaves at a later time than any that was asked for while it was here, so
nothing has to move with it (I2). Cost: O(log n) to ask and to take.
"""

from __future__ import annotations

import heapq

from meander.dataflow.records.loop_times import Rounds, outer, rounds_of
from meander.state.times.antichain import MutableAntichain
from meander.state.times.time import Time

NOTICE_BYTES = 300
"""About what one takes in memory, beside its key."""

Notice = tuple[Time, bytes]
"""A time, and the encoded key that wants to be called once all of it has come."""


class Notifications:
    """At most one per key and time, a time of any scope.

    >>> notices = Notifications()
    >>> for time in ((5, 1), (5, 0), (5, 0)): notices.ask(time, b"a")
    >>> notices.first, notices.pop(), notices.owed
    (((5, 0), b'a'), ((5, 0), b'a'), ((5, 1),))
    """

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes they take."""
        self._asked: set[Notice] = set()
        self._heap: list[Notice] = []
        self._times = MutableAntichain()

    def ask(self, time: Time, key: bytes) -> None:
        """Have a key called once all of a time has come."""
        notice = (time, key)
        if notice not in self._asked:
            self._asked.add(notice)
            heapq.heappush(self._heap, notice)
            self._times.update(time, 1)
            self.size += NOTICE_BYTES + len(key)

    @property
    def first(self) -> Notice | None:
        """The first in the order of time, as records are applied, and key."""
        return self._heap[0] if self._heap else None

    @property
    def rounds(self) -> Rounds:
        """Those of the first; without any those of the outer scope."""
        return rounds_of(self._heap[0][0]) if self._heap else ()

    def pop(self) -> Notice:
        """Take the first."""
        notice = heapq.heappop(self._heap)
        self._asked.remove(notice)
        self._times.update(notice[0], -1)
        self.size -= NOTICE_BYTES + len(notice[1])
        return notice

    def firsts(self, rounds: Rounds, before: int | None, most: int) -> list[Notice]:
        """The first that are of some rounds and before an outer time, at most so many, in order;
        they stay."""
        found: list[Notice] = []
        while len(found) < most and self._heap:
            time, _ = self._heap[0]
            if rounds_of(time) != rounds or (before is not None and outer(time) >= before):
                break
            found.append(heapq.heappop(self._heap))
        for notice in found:
            heapq.heappush(self._heap, notice)
        return found

    def all(self) -> list[Notice]:
        """Who asked, and at what time, in order."""
        return sorted(self._asked)

    @property
    def owed(self) -> tuple[Time, ...]:
        """The least times asked for."""
        return self._times.frontier.times
