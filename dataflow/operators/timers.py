"""Pending timers of a stateful operator: per key, in time order, movable by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure is not fired here but
travels with the bin. Cost: O(log n) to set and to take, O(timers of the bin) to move.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable

from state.antichain import Antichain
from state.ids import Bin


class Timers:
    """At most one timer per key and time.

    >>> timers = Timers()
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.depart(Bin(0), 9)
    >>> timers.next_due(Antichain()), timers.take(5), timers.next_due(Antichain())
    (5, [b'a'], None)
    """

    def __init__(self) -> None:
        self._by_time: dict[int, dict[bytes, Bin]] = {}
        self._times: list[int] = []
        self._frozen: dict[Bin, set[tuple[int, bytes]]] = {}
        self._departures: dict[Bin, list[int]] = {}

    def set(self, bin: Bin, time: int, key: bytes) -> None:
        """Set a timer."""
        departures = self._departures.get(bin)
        if departures and time >= departures[0]:
            self._frozen.setdefault(bin, set()).add((time, key))
            return
        if time not in self._by_time:
            self._by_time[time] = {}
            heapq.heappush(self._times, time)
        self._by_time[time][key] = bin

    def next_due(self, passed: Antichain) -> int | None:
        """The least time of a timer that the frontier has passed."""
        if not self._times or passed.less_equal(self._times[0]):
            return None
        return self._times[0]

    def take(self, time: int) -> list[bytes]:
        """The keys due at the least time, in order."""
        assert heapq.heappop(self._times) == time
        return sorted(self._by_time.pop(time))

    @property
    def least(self) -> int | None:
        """The least time of any timer, as long as it is here."""
        frozen = (time for timers in self._frozen.values() for time, _ in timers)
        return min((*self._times[:1], *frozen), default=None)

    def depart(self, bin: Bin, time: int) -> None:
        """From `time` on the bin belongs to another worker: its timers from then on stay quiet."""
        insort(self._departures.setdefault(bin, []), time)
        moving = [
            (due, key)
            for due, keys in self._by_time.items()
            if due >= time
            for key, owner in keys.items()
            if owner == bin
        ]
        for due, key in moving:
            del self._by_time[due][key]
        self._times = [due for due in self._times if self._by_time[due]]
        self._by_time = {due: keys for due, keys in self._by_time.items() if keys}
        heapq.heapify(self._times)
        self._frozen.setdefault(bin, set()).update(moving)

    def of(self, bin: Bin) -> list[tuple[int, bytes]]:
        """The timers that travel with a departing bin, in order."""
        return sorted(self._frozen.get(bin, ()))

    def departed(self, bin: Bin) -> None:
        """The bin has left, and its timers with it."""
        self._frozen.pop(bin, None)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
        else:
            del self._departures[bin]

    def install(self, bin: Bin, timers: Iterable[tuple[int, bytes]]) -> None:
        """Take over the timers of a bin that has arrived."""
        for time, key in timers:
            self.set(bin, time, key)
