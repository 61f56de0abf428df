"""Notifications: an operator asks to be called once all of a time has come (Naiad, OnNotify).

Guarantees that a key that asks at a time is called once, after all that the frontier had to pass
for that time and before anything later in the total order; until then its time is owed, so no
frontier passes it. A bin leaves at a later time than any that was asked for while it was here, so
nothing has to move with it (I2). Cost: O(log n) per time, a look-up per key.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dataflow.nested import outer, place, rounds_of, settled
from state.antichain import Antichain
from state.time import Time

NOTICE_BYTES = 300
"""About what one takes in memory, beside its key."""


class Notices:
    """At most one per key and time, a time of any scope.

    >>> notices = Notices()
    >>> for time in ((5, 1), (5, 0), (5, 0)): notices.ask(time, b"a")
    >>> notices.next_due(Antichain.of((5, 0))), notices.next_due(Antichain.of((5, 1), (6, 0)))
    (None, (5, 0))
    >>> notices.take((5, 0)), list(notices.owed)
    ([b'a'], [(5, 1)])
    """

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes they take."""
        self._keys: dict[Time, set[bytes]] = {}
        self._times: list[Time] = []

    def ask(self, time: Time, key: bytes) -> None:
        """Have a key called once all of a time has come."""
        if time not in self._keys:
            self._keys[time] = set()
            heapq.heappush(self._times, time)
        if key not in self._keys[time]:
            self._keys[time].add(key)
            self.size += NOTICE_BYTES + len(key)

    def next_due(self, passed: Antichain) -> Time | None:
        """The least time that was asked for, if a frontier has passed it in the total order."""
        if not self._times:
            return None
        least = self._times[0]
        return None if settled(passed, rounds_of(least)).less_equal(outer(least)) else least

    def all(self) -> list[tuple[Time, bytes]]:
        """Who asked, and at what time, in order."""
        return [
            (time, key)
            for time in sorted(self._keys, key=place)
            for key in sorted(self._keys[time])
        ]

    def take(self, time: Time) -> list[bytes]:
        """The keys that asked for the least time, in order."""
        assert heapq.heappop(self._times) == time
        keys = sorted(self._keys.pop(time))
        self.size -= sum(NOTICE_BYTES + len(key) for key in keys)
        return keys

    @property
    def owed(self) -> Iterable[Time]:
        """The times asked for."""
        return self._keys
