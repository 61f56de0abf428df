"""Pending timers of a stateful operator: per key, in time order, movable by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure is not fired here but
travels with the bin. Cost: O(log n) to set and to take, O(timers of the bin) to move.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterable

from state.antichain import Antichain
from state.ids import Bin

TIMER_BYTES = 300
"""About what one timer takes in memory, beside its key."""


class Timers:
    """At most one timer per key and time.

    >>> timers = Timers()
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.depart(Bin(0), 9)
    >>> timers.next_due(Antichain()), timers.take(5), timers.next_due(Antichain())
    (5, [b'a'], None)
    """

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes they take."""
        self._by_time: dict[int, dict[bytes, Bin]] = {}
        self._by_bin: dict[Bin, set[tuple[int, bytes]]] = {}
        self._times: list[int] = []
        self._frozen: dict[Bin, set[tuple[int, bytes]]] = {}
        self._frozen_least: dict[Bin, int] = {}
        self._departures: dict[Bin, list[int]] = {}

    def set(self, bin: Bin, time: int, key: bytes) -> None:
        """Set a timer."""
        departures = self._departures.get(bin)
        frozen = departures is not None and time >= departures[0]
        timers = (self._frozen if frozen else self._by_bin).setdefault(bin, set())
        if (time, key) in timers:
            return
        timers.add((time, key))
        self.size += TIMER_BYTES + len(key)
        if frozen:
            self._frozen_least[bin] = min(time, self._frozen_least.get(bin, time))
        else:
            if time not in self._by_time:
                self._by_time[time] = {}
                heapq.heappush(self._times, time)
            self._by_time[time][key] = bin

    def next_due(self, passed: Antichain) -> int | None:
        """The least time of a timer that the frontier has passed."""
        least = self._next
        return None if least is None or passed.less_equal(least) else least

    def take(self, time: int) -> list[bytes]:
        """The keys due at the least time, in order."""
        assert heapq.heappop(self._times) == time
        due = self._by_time.pop(time)
        for key, bin in due.items():
            self._by_bin[bin].discard((time, key))
        self.size -= sum(TIMER_BYTES + len(key) for key in due)
        return sorted(due)

    @property
    def least(self) -> int | None:
        """The least time of any timer, as long as it is here."""
        here = () if self._next is None else (self._next,)
        return min((*here, *self._frozen_least.values()), default=None)

    def depart(self, bin: Bin, time: int) -> None:
        """From `time` on the bin belongs to another worker: its timers from then on stay quiet."""
        insort(self._departures.setdefault(bin, []), time)
        here = self._by_bin.get(bin, set())
        moving = {timer for timer in here if timer[0] >= time}
        here -= moving
        for due, key in moving:
            del self._by_time[due][key]
        if moving:
            self._frozen.setdefault(bin, set()).update(moving)
            least = min(due for due, _ in moving)
            self._frozen_least[bin] = min(least, self._frozen_least.get(bin, least))

    def of(self, bin: Bin) -> list[tuple[int, bytes]]:
        """The timers that travel with a departing bin, in order."""
        return sorted(self._frozen.get(bin, ()))

    def all(self, bin: Bin) -> list[tuple[int, bytes]]:
        """All timers of a bin, in order."""
        return sorted([*self._by_bin.get(bin, ()), *self._frozen.get(bin, ())])

    @property
    def bins(self) -> Collection[Bin]:
        """Those that have any."""
        return {bin for bins in (self._by_bin, self._frozen) for bin, some in bins.items() if some}

    def departed(self, bin: Bin) -> None:
        """The bin has left, and its timers with it."""
        gone = self._frozen.pop(bin, set())
        self._frozen_least.pop(bin, None)
        self.size -= sum(TIMER_BYTES + len(key) for _, key in gone)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
        else:
            del self._departures[bin]

    def install(self, bin: Bin, timers: Iterable[tuple[int, bytes]]) -> None:
        """Take over the timers of a bin that has arrived."""
        for time, key in timers:
            self.set(bin, time, key)

    @property
    def _next(self) -> int | None:
        """The least time of a timer that may be fired here."""
        while self._times and not self._by_time[self._times[0]]:
            del self._by_time[heapq.heappop(self._times)]
        return self._times[0] if self._times else None
