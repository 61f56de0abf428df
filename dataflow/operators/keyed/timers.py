"""The timers of a stateful operator: per key, in time order, movable by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure does not fire here, but
moves with the bin. Cost: O(log n) to set and to remove, O(timers of the bin) to move.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterable

from meander.state.keys.ids import Bin

TIMER_BYTES = 300
"""The approximate bytes of a timer in memory, beside its key."""
HEAP_SLACK = 1024
"""The number of departed timers that the heap may always hold."""

Timer = tuple[int, bytes]
"""A time, and the encoded key that is called then."""


class Timers:
    """A queue that holds the timers of an operator, at most one per key and time.

    >>> timers = Timers()
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.start_departure(Bin(0), 9)
    >>> timers.first, timers.pop(), timers.first
    ((5, b'a'), (5, b'a'), None)
    """

    def __init__(self) -> None:
        self.size = 0
        """The approximate bytes of all timers."""
        self.retired = False
        """Whether no timer fires any more: the run has ended before their times."""
        self._bins: dict[Timer, Bin] = {}
        """Timers that may fire here, with their bins."""
        self._by_bin: dict[Bin, set[Timer]] = {}
        """The same timers by bin."""
        self._heap: list[Timer] = []
        """The same timers, and some departed ones."""
        self._departing: dict[Bin, set[Timer]] = {}
        self._departing_least: dict[Bin, int] = {}
        self._departures: dict[Bin, list[int]] = {}

    def set(self, bin: Bin, time: int, key: bytes) -> None:
        """Set a timer."""
        departures = self._departures.get(bin)
        frozen = departures is not None and time >= departures[0]
        timers = (self._departing if frozen else self._by_bin).setdefault(bin, set())
        timer = (time, key)
        if timer in timers:
            return
        timers.add(timer)
        self.size += TIMER_BYTES + len(key)
        if frozen:
            self._departing_least[bin] = min(time, self._departing_least.get(bin, time))
        else:
            self._bins[timer] = bin
            heapq.heappush(self._heap, timer)

    @property
    def first(self) -> Timer | None:
        """Return the first timer that may fire here, in the order of time and key, or None."""
        if self.retired:
            return None
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

    def peek(self, before: int | None, max_count: int) -> list[Timer]:
        """Return the first timers before a time, in order and at most `max_count`. They stay."""
        found: list[Timer] = []
        while len(found) < max_count and (timer := self.first) is not None:
            if before is not None and timer[0] >= before:
                break
            heapq.heappop(self._heap)
            # The heap may hold a timer twice that has departed and returned.
            if not found or found[-1] != timer:
                found.append(timer)
        for timer in found:
            heapq.heappush(self._heap, timer)
        return found

    @property
    def least(self) -> int | None:
        """Return the least time of all timers, departing ones included, or None."""
        if self.retired:
            return None
        here = () if self.first is None else (self.first[0],)
        return min((*here, *self._departing_least.values()), default=None)

    def start_departure(self, bin: Bin, time: int) -> None:
        """Keep the timers of a bin from `time` on for its next owner. They no longer fire here."""
        insort(self._departures.setdefault(bin, []), time)
        staying = self._by_bin.get(bin, set())
        moving = {timer for timer in staying if timer[0] >= time}
        staying -= moving
        for timer in moving:
            del self._bins[timer]
        if len(self._heap) > 2 * len(self._bins) + HEAP_SLACK:
            self._heap = [*self._bins]
            heapq.heapify(self._heap)
        if moving:
            self._departing.setdefault(bin, set()).update(moving)
            least = min(due for due, _ in moving)
            self._departing_least[bin] = min(least, self._departing_least.get(bin, least))

    def departing(self, bin: Bin) -> list[Timer]:
        """Return the timers that move with a departing bin, in order."""
        return sorted(self._departing.get(bin, ()))

    def all(self, bin: Bin) -> list[Timer]:
        """Return all timers of a bin, in order."""
        return sorted([*self._by_bin.get(bin, ()), *self._departing.get(bin, ())])

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers."""
        return {
            bin for bins in (self._by_bin, self._departing) for bin, some in bins.items() if some
        }

    def remove_departed(self, bin: Bin) -> None:
        """Remove the timers of a bin that has left."""
        departed = self._departing.pop(bin, set())
        self._departing_least.pop(bin, None)
        self.size -= sum(TIMER_BYTES + len(key) for _, key in departed)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
        else:
            del self._departures[bin]

    def install(self, bin: Bin, timers: Iterable[Timer]) -> None:
        """Set the timers of a bin that has arrived."""
        for time, key in timers:
            self.set(bin, time, key)
