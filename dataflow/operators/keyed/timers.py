"""The timers of a stateful operator: per key, in time order, movable by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure is not fired here but
travels with the bin. Cost: O(log n) to set and to take, O(timers of the bin) to move.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterable

from meander.state.keys.ids import Bin

TIMER_BYTES = 300
"""The approximate bytes of a timer in memory, beside its key."""
SPARE = 1024
"""The number of departed timers that the heap may hold in any case."""

Timer = tuple[int, bytes]
"""A time, and the encoded key that is called then."""


class Timers:
    """A queue that holds the timers of an operator, at most one per key and time.

    >>> timers = Timers()
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.depart(Bin(0), 9)
    >>> timers.first, timers.pop(), timers.first
    ((5, b'a'), (5, b'a'), None)
    """

    def __init__(self) -> None:
        self.size = 0
        """The approximate bytes of all timers."""
        self._bins: dict[Timer, Bin] = {}
        """Timers that may fire here, with their bins."""
        self._by_bin: dict[Bin, set[Timer]] = {}
        """The same timers by bin."""
        self._heap: list[Timer] = []
        """The same timers, and some that have departed."""
        self._frozen: dict[Bin, set[Timer]] = {}
        self._frozen_least: dict[Bin, int] = {}
        self._departures: dict[Bin, list[int]] = {}

    def set(self, bin: Bin, time: int, key: bytes) -> None:
        """Set a timer."""
        departures = self._departures.get(bin)
        frozen = departures is not None and time >= departures[0]
        timers = (self._frozen if frozen else self._by_bin).setdefault(bin, set())
        timer = (time, key)
        if timer in timers:
            return
        timers.add(timer)
        self.size += TIMER_BYTES + len(key)
        if frozen:
            self._frozen_least[bin] = min(time, self._frozen_least.get(bin, time))
        else:
            self._bins[timer] = bin
            heapq.heappush(self._heap, timer)

    @property
    def first(self) -> Timer | None:
        """Return the first timer that may fire here, in the order of time and key, or None."""
        while self._heap and self._heap[0] not in self._bins:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> Timer:
        """Remove and return the first timer."""
        timer = self.first
        assert timer is not None, "none is pending"
        heapq.heappop(self._heap)
        self._by_bin[self._bins.pop(timer)].discard(timer)
        self.size -= TIMER_BYTES + len(timer[1])
        return timer

    def firsts(self, before: int | None, most: int) -> list[Timer]:
        """Return the first timers before a time, at most `most`, in order. They stay."""
        found: list[Timer] = []
        while len(found) < most and (timer := self.first) is not None:
            if before is not None and timer[0] >= before:
                break
            heapq.heappop(self._heap)
            # The heap may hold a timer twice that has departed and come back.
            if not found or found[-1] != timer:
                found.append(timer)
        for timer in found:
            heapq.heappush(self._heap, timer)
        return found

    @property
    def least(self) -> int | None:
        """Return the least time of the timers that are here, departing ones included, or None."""
        here = () if self.first is None else (self.first[0],)
        return min((*here, *self._frozen_least.values()), default=None)

    def depart(self, bin: Bin, time: int) -> None:
        """Give the timers of a bin from `time` on to its next owner. They no longer fire here."""
        insort(self._departures.setdefault(bin, []), time)
        here = self._by_bin.get(bin, set())
        moving = {timer for timer in here if timer[0] >= time}
        here -= moving
        for timer in moving:
            del self._bins[timer]
        if len(self._heap) > 2 * len(self._bins) + SPARE:
            self._heap = [*self._bins]
            heapq.heapify(self._heap)
        if moving:
            self._frozen.setdefault(bin, set()).update(moving)
            least = min(due for due, _ in moving)
            self._frozen_least[bin] = min(least, self._frozen_least.get(bin, least))

    def of(self, bin: Bin) -> list[Timer]:
        """Return the timers that travel with a departing bin, in order."""
        return sorted(self._frozen.get(bin, ()))

    def all(self, bin: Bin) -> list[Timer]:
        """Return all timers of a bin, in order."""
        return sorted([*self._by_bin.get(bin, ()), *self._frozen.get(bin, ())])

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers."""
        return {bin for bins in (self._by_bin, self._frozen) for bin, some in bins.items() if some}

    def departed(self, bin: Bin) -> None:
        """Remove the timers of a bin that has left."""
        gone = self._frozen.pop(bin, set())
        self._frozen_least.pop(bin, None)
        self.size -= sum(TIMER_BYTES + len(key) for _, key in gone)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
        else:
            del self._departures[bin]

    def install(self, bin: Bin, timers: Iterable[Timer]) -> None:
        """Set the timers of a bin that has arrived."""
        for time, key in timers:
            self.set(bin, time, key)
