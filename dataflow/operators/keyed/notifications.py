"""Notifications: requested calls of keys once all records of a time have arrived (Naiad, OnNotify).

Guarantees that a key is called once per time of its requests, after all records of that time. The
call comes before any later record in the total order. A capability keeps every frontier from
passing the time before the call.

A bin leaves at a later time than any request while it was here, so notifications never move (I2).
Cost: O(log n) to request and to remove one.
"""

from __future__ import annotations

import heapq

from meander.dataflow.records.loop_times import Iterations, iterations_of, outer_time
from meander.state.times.antichain import MutableAntichain
from meander.state.times.time import Time

NOTIFICATION_BYTES = 300
"""The approximate bytes of a notification in memory, beside its key."""

Notification = tuple[Time, bytes]
"""A time, and the encoded key that is called once all records of it have arrived."""


class Notifications:
    """A queue that holds the notifications of an operator, at most one per key and time.

    >>> notifications = Notifications()
    >>> for time in ((5, 1), (5, 0), (5, 0)): notifications.request(time, b"a")
    >>> notifications.first, notifications.pop(), notifications.least_times
    (((5, 0), b'a'), ((5, 0), b'a'), ((5, 1),))
    """

    def __init__(self) -> None:
        self.size = 0
        """The approximate bytes of all notifications."""
        self._requested: set[Notification] = set()
        self._heap: list[Notification] = []
        self._times = MutableAntichain()

    def request(self, time: Time, key: bytes) -> None:
        """Add a call of a key once all records of a time have arrived."""
        notification = (time, key)
        if notification not in self._requested:
            self._requested.add(notification)
            heapq.heappush(self._heap, notification)
            self._times.update(time, 1)
            self.size += NOTIFICATION_BYTES + len(key)

    @property
    def first(self) -> Notification | None:
        """Return the first notification in the order of time, as records are applied, and key."""
        return self._heap[0] if self._heap else None

    @property
    def iterations(self) -> Iterations:
        """Return the iterations of the first notification, or those of the outer scope."""
        return iterations_of(self._heap[0][0]) if self._heap else ()

    def pop(self) -> Notification:
        """Remove and return the first notification."""
        notification = heapq.heappop(self._heap)
        self._requested.remove(notification)
        self._times.update(notification[0], -1)
        self.size -= NOTIFICATION_BYTES + len(notification[1])
        return notification

    def peek(
        self, iterations: Iterations, before: int | None, max_count: int
    ) -> list[Notification]:
        """Return the first notifications of some iterations before an outer time, in order and at
        most `max_count`. They stay."""
        found: list[Notification] = []
        while len(found) < max_count and self.iterations == iterations and self._heap:
            if before is not None and outer_time(self._heap[0][0]) >= before:
                break
            found.append(heapq.heappop(self._heap))
        for notification in found:
            heapq.heappush(self._heap, notification)
        return found

    def all(self) -> list[Notification]:
        """Return all notifications in order."""
        return sorted(self._requested)

    @property
    def least_times(self) -> tuple[Time, ...]:
        """Return the least times of notifications."""
        return self._times.frontier.times
