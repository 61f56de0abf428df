"""Notifications: calls that an operator asks for once all records of a time have arrived (Naiad,
OnNotify).

Guarantees that a key is called once per time it asks at, after all records that the frontier passes
for that time. The call comes before any later record in the total order. A capability keeps every
frontier from passing the time before.

A bin leaves at a later time than any that was asked for while it was here, so notifications never
move (I2). Cost: O(log n) to ask and to take.
"""

from __future__ import annotations

import heapq

from meander.dataflow.records.loop_times import Rounds, outer, rounds_of
from meander.state.times.antichain import MutableAntichain
from meander.state.times.time import Time

NOTICE_BYTES = 300
"""The approximate bytes of a notification in memory, beside its key."""

Notice = tuple[Time, bytes]
"""A time, and the encoded key that is called once all records of it have arrived."""


class Notifications:
    """A queue that holds the notifications of an operator, at most one per key and time of any
    scope.

    >>> notices = Notifications()
    >>> for time in ((5, 1), (5, 0), (5, 0)): notices.ask(time, b"a")
    >>> notices.first, notices.pop(), notices.owed
    (((5, 0), b'a'), ((5, 0), b'a'), ((5, 1),))
    """

    def __init__(self) -> None:
        self.size = 0
        """The approximate bytes of all notifications."""
        self._asked: set[Notice] = set()
        self._heap: list[Notice] = []
        self._times = MutableAntichain()

    def ask(self, time: Time, key: bytes) -> None:
        """Add a call of a key once all records of a time have arrived."""
        notice = (time, key)
        if notice not in self._asked:
            self._asked.add(notice)
            heapq.heappush(self._heap, notice)
            self._times.update(time, 1)
            self.size += NOTICE_BYTES + len(key)

    @property
    def first(self) -> Notice | None:
        """Return the first notification in the order of time, as records are applied, and key."""
        return self._heap[0] if self._heap else None

    @property
    def rounds(self) -> Rounds:
        """Return the iterations of the first notification, or those of the outer scope."""
        return rounds_of(self._heap[0][0]) if self._heap else ()

    def pop(self) -> Notice:
        """Remove and return the first notification."""
        notice = heapq.heappop(self._heap)
        self._asked.remove(notice)
        self._times.update(notice[0], -1)
        self.size -= NOTICE_BYTES + len(notice[1])
        return notice

    def firsts(self, rounds: Rounds, before: int | None, most: int) -> list[Notice]:
        """Return the first notifications of some iterations before an outer time, at most `most`,
        in order. They stay."""
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
        """Return all notifications in order."""
        return sorted(self._asked)

    @property
    def owed(self) -> tuple[Time, ...]:
        """Return the least times of notifications."""
        return self._times.frontier.times
