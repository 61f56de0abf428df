"""A queue of timers of bins, in the order of time and tag (`state/encoding/timers.py`).

Guarantees at most one timer per time and tag, and at most one time per tag with a name. Cost:
O(log n) to add and to take the first, O(1) to cancel, O(timers of the bin) to give up a bin.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from meander.state.encoding.timers import Timer, split_tag
from meander.state.keys.ids import Bin

TIMER_BYTES = 300
"""The approximate bytes of a timer in memory, beside its key."""
HEAP_SLACK = 1024
"""The number of removed timers that the heap may always hold."""


class TimerQueue:
    """A queue that holds timers of several bins.

    >>> queue = TimerQueue()
    >>> for timer in ((9, b"a"), (5, b"a")): queue.add(Bin(0), timer)
    >>> queue.add(Bin(0), (7, b"ax"), named=True); queue.cancel(b"ax")
    True
    >>> queue.first, queue.pop(), queue.first
    ((5, b'a'), (5, b'a'), (9, b'a'))
    """

    def __init__(self) -> None:
        self.size = 0
        """The approximate bytes of all timers."""
        self._bins: dict[Timer, Bin] = {}
        """All timers, with their bins."""
        self._by_bin: dict[Bin, set[Timer]] = {}
        """The same timers by bin."""
        self._heap: list[Timer] = []
        """The same timers, and some removed ones."""
        self._times: dict[bytes, int] = {}
        """The time of each tag that has a name."""

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, bin: Bin, timer: Timer, *, named: bool = False) -> None:
        """Add a timer. A tag with a name must have no other time."""
        if timer in self._bins:
            return
        self._bins[timer] = bin
        self._by_bin.setdefault(bin, set()).add(timer)
        heapq.heappush(self._heap, timer)
        self.size += TIMER_BYTES + len(timer[1])
        if named:
            assert timer[1] not in self._times, "a name has one time"
            self._times[timer[1]] = timer[0]

    def cancel(self, tag: bytes) -> bool:
        """Remove the timer of a tag with a name. Return whether there was one."""
        time = self._times.get(tag)
        if time is None:
            return False
        self._remove((time, tag))
        self._trim()
        return True

    def split(self, tag: bytes) -> tuple[bytes, str]:
        """Return the encoded key and the name of a timer that it holds."""
        return split_tag(tag) if tag in self._times else (tag, "")

    @property
    def first(self) -> Timer | None:
        """Return the first timer, or None."""
        return self._head()

    def _head(self) -> Timer | None:
        while self._heap and self._heap[0] not in self._bins:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> Timer:
        """Remove and return the first timer."""
        timer = self.first
        assert timer is not None, "none is pending"
        heapq.heappop(self._heap)
        self._remove(timer)
        return timer

    def remove(self, timer: Timer) -> None:
        """Remove a timer that it holds."""
        self._remove(timer)
        self._trim()

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._bins

    def peek(self, before: int | None, max_count: int) -> list[Timer]:
        """Return the first timers before a time, in order and at most `max_count`. They stay."""
        found: list[Timer] = []
        while len(found) < max_count and (timer := self.first) is not None:
            if before is not None and timer[0] >= before:
                break
            heapq.heappop(self._heap)
            # The heap may hold a timer twice that was removed and added again.
            if not found or found[-1] != timer:
                found.append(timer)
        for timer in found:
            heapq.heappush(self._heap, timer)
        return found

    def bin_of(self, timer: Timer) -> Bin:
        """Return the bin of a timer that it holds."""
        return self._bins[timer]

    def of(self, bin: Bin) -> list[Timer]:
        """Return the timers of a bin, in order."""
        return sorted(self._by_bin.get(bin, ()))

    def take(self, bin: Bin, since: int) -> list[tuple[Timer, bool]]:
        """Remove and return the timers of a bin from a time on, each with whether it has a name."""
        taken = [timer for timer in self._by_bin.get(bin, ()) if timer[0] >= since]
        found = [(timer, timer[1] in self._times) for timer in taken]
        for timer in taken:
            self._remove(timer)
        self._trim()
        return found

    def drop(self, bin: Bin) -> None:
        """Remove the timers of a bin."""
        for timer in [*self._by_bin.get(bin, ())]:
            self._remove(timer)
        self._trim()

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers."""
        return self._by_bin.keys()

    def _remove(self, timer: Timer) -> None:
        bin = self._bins.pop(timer)
        timers = self._by_bin[bin]
        timers.remove(timer)
        if not timers:
            del self._by_bin[bin]
        self.size -= TIMER_BYTES + len(timer[1])
        self._times.pop(timer[1], None)

    def _trim(self) -> None:
        """Rebuild the heap where most of it is removed timers."""
        if len(self._heap) > 2 * len(self._bins) + HEAP_SLACK:
            self._heap = [*self._bins]
            heapq.heapify(self._heap)
