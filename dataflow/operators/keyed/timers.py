"""The timers and alarms of a stateful operator: in time order, cancelled by name, moved by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure does not fire here, but
moves with the bin. An alarm moves with its bin whenever it is due. Invariant: a key has at most one
timer or alarm of a name. Cost: O(log n) to set and to remove, O(timers of the bin) to move.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable

from meander.dataflow.operators.keyed.timer_queue import Timer, TimerQueue
from meander.state.encoding.timers import split_tag, tag_of
from meander.state.keys.ids import Bin
from meander.state.times.time import MIN_TIME


class Timers:
    """A set of the timers of an operator, at most one per key, name and time.

    >>> timers = Timers()
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.start_departure(Bin(0), 9)
    >>> timers.first, timers.pop(), timers.first
    ((5, b'a'), (5, b'a'), None)
    >>> timers.set(Bin(1), 6, b"b", "late"); timers.set(Bin(1), 7, b"b", "late"); timers.first
    (7, b'blate')
    """

    def __init__(self) -> None:
        self.retired = False
        """Whether no timer fires any more: the run has ended before their times (`run_end.py`)."""
        self.alarms = TimerQueue()
        """The alarms of bins that are here, by milliseconds of the wall clock."""
        self._here = TimerQueue()
        """The timers that may fire here."""
        self._leaving = TimerQueue()
        """The timers at or after the departures of their bins."""
        self._departures: dict[Bin, list[int]] = {}
        self._arrivals: dict[Bin, int] = {}

    @property
    def size(self) -> int:
        """Return the approximate bytes of all timers and alarms."""
        return self._here.size + self._leaving.size + self.alarms.size

    def set(self, bin: Bin, time: int, key: bytes, name: str = "") -> None:
        """Set a timer. One with a name replaces the timer or alarm of that key and name."""
        if name:
            self.cancel(key, name)
        self._add(bin, (time, tag_of(key, name)), bool(name))

    def set_alarm(self, bin: Bin, due_ms: int, key: bytes, name: str = "") -> None:
        """Set an alarm for a time of the wall clock. One with a name replaces the timer or alarm of
        that key and name."""
        if name:
            self.cancel(key, name)
        self.alarms.add(bin, (due_ms, tag_of(key, name)), named=bool(name))

    def cancel(self, key: bytes, name: str) -> None:
        """Cancel the timer or alarm of a key and a name, if there is one."""
        tag = tag_of(key, name)
        for queue in (self._here, self._leaving, self.alarms):
            if queue.cancel(tag):
                return

    def split(self, tag: bytes) -> tuple[bytes, str]:
        """Return the encoded key and the name of a timer that may fire here."""
        return self._here.split(tag)

    @property
    def first(self) -> Timer | None:
        """Return the first timer that may fire here, in the order of time and tag, or None."""
        return None if self.retired else self._here.first

    def pop(self) -> Timer:
        """Remove and return the first timer."""
        return self._here.pop()

    def peek(self, before: int | None, max_count: int) -> list[Timer]:
        """Return the first timers before a time, in order and at most `max_count`. They stay."""
        return [] if self.retired else self._here.peek(before, max_count)

    @property
    def least(self) -> int | None:
        """Return the least time of all timers, departing ones included, or None."""
        if self.retired:
            return None
        firsts = (self._here.first, self._leaving.first)
        return min((first[0] for first in firsts if first is not None), default=None)

    def may_ring(self, bin: Bin, time: int) -> bool:
        """Return whether this worker owns a bin at a time, so that its alarms may call then."""
        departures = self._departures.get(bin)
        left = departures is not None and time >= departures[0]
        return not left and time >= self._arrivals.get(bin, MIN_TIME)

    def note_arrival(self, bin: Bin, time: int) -> None:
        """Note that a bin is here that this worker owns from a time on."""
        self._arrivals[bin] = time

    def start_departure(self, bin: Bin, time: int) -> None:
        """Keep the timers of a bin from `time` on for its next owner. They no longer fire here."""
        insort(self._departures.setdefault(bin, []), time)
        for timer, named in self._here.take(bin, time):
            self._leaving.add(bin, timer, named=named)

    def departing(self, bin: Bin) -> list[Timer]:
        """Return the timers and alarms that move with a departing bin, in order. Retired timers
        move whenever they are due."""
        if self.retired:
            return self.all(bin)
        return [*self._alarms_of(bin), *self._leaving.of(bin)]

    def all(self, bin: Bin) -> list[Timer]:
        """Return all timers and alarms of a bin, in order."""
        return [*self._alarms_of(bin), *sorted([*self._here.of(bin), *self._leaving.of(bin)])]

    def _alarms_of(self, bin: Bin) -> list[Timer]:
        """Return the alarms of a bin as layers hold them, in order."""
        return sorted((-due, tag) for due, tag in self.alarms.of(bin))

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers or alarms."""
        return {*self._here.bins, *self._leaving.bins, *self.alarms.bins}

    def remove_departed(self, bin: Bin) -> None:
        """Remove the timers of a bin that has left."""
        if self.retired:
            self._here.drop(bin)
        self._leaving.drop(bin)
        self.alarms.drop(bin)
        self._arrivals.pop(bin, None)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
        else:
            del self._departures[bin]

    def install(self, bin: Bin, timers: Iterable[Timer]) -> None:
        """Set the timers and alarms of a bin that has arrived."""
        for time, tag in timers:
            named = split_tag(tag)[0] != tag
            if time < MIN_TIME:
                self.alarms.add(bin, (-time, tag), named=named)
            else:
                self._add(bin, (time, tag), named)

    def _add(self, bin: Bin, timer: Timer, named: bool) -> None:
        departures = self._departures.get(bin)
        left = departures is not None and timer[0] >= departures[0]
        (self._leaving if left else self._here).add(bin, timer, named=named)
