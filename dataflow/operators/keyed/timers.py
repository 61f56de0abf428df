"""The timers and alarms of a stateful operator: in time order, cancelled by name, moved by bin.

Guarantees I2 for timers: one that is due at or after its bin's departure does not fire here, but
moves with the bin, as a row of its store. An alarm moves with its bin whenever it is due.
Invariant: a key has at most one timer or alarm of a name. The near ones of a bin are few
(`spilling_queue.py`), so checkpoints and handoffs carry them in a list beside the states. Cost:
that of the queues; O(near timers of the bin) to move.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable

from meander.dataflow.operators.keyed.spilling_queue import SpillingQueue
from meander.state.encoding.timers import ALARM, TIMER, Timer, split_tag, tag_of
from meander.state.keys.ids import Bin
from meander.state.store.timer_rows import TimerRows
from meander.state.times.time import MIN_TIME


class Timers:
    """A set of the timers of an operator, at most one per key, name and time.

    >>> from tempfile import mkdtemp
    >>> from meander.state.store.store import Database
    >>> database = Database(mkdtemp(), budget_bytes=8 << 20)
    >>> timers = Timers(TimerRows(database.store("seen")))
    >>> timers.set(Bin(0), 5, b"a"); timers.set(Bin(0), 9, b"a"); timers.start_departure(Bin(0), 9)
    >>> timers.first, timers.pop(), timers.first
    ((5, b'a'), (5, b'a'), None)
    >>> timers.set(Bin(1), 6, b"b", "late"); timers.set(Bin(1), 7, b"b", "late"); timers.first
    (7, b'blate')
    >>> database.close()
    """

    def __init__(self, rows: TimerRows) -> None:
        """`rows` are those of the operator's store."""
        self.retired = False
        """Whether no timer fires any more: the run has ended before their times (`run_end.py`)."""
        self.alarms = SpillingQueue(rows, ALARM)
        """The alarms of bins that are here, by milliseconds of the wall clock."""
        self._here = SpillingQueue(rows, TIMER)
        """The timers. Those at or after the departures of their bins do not fire here."""
        self._rows = rows
        self._departures: dict[Bin, list[int]] = {}
        self._arrivals: dict[Bin, int] = {}

    @property
    def size(self) -> int:
        """Return the approximate bytes of all timers and alarms in memory."""
        return self._here.size + self.alarms.size

    def set_max_bytes(self, max_bytes: int) -> None:
        """Set the most bytes of timers, and of alarms, in memory."""
        self._here.max_bytes = self.alarms.max_bytes = max_bytes

    def set(self, bin: Bin, time: int, key: bytes, name: str = "") -> None:
        """Set a timer. One with a name replaces the timer or alarm of that key and name."""
        if name:
            self.cancel(bin, key, name)
        self._here.set(bin, (time, tag_of(key, name)), named=bool(name))

    def set_alarm(self, bin: Bin, due_ms: int, key: bytes, name: str = "") -> None:
        """Set an alarm for a time of the wall clock. One with a name replaces the timer or alarm of
        that key and name."""
        if name:
            self.cancel(bin, key, name)
        self.alarms.set(bin, (due_ms, tag_of(key, name)), named=bool(name))

    def cancel(self, bin: Bin, key: bytes, name: str) -> None:
        """Cancel the timer or alarm of a key and a name, if there is one."""
        tag = tag_of(key, name)
        if not (self._here.cancel(tag) or self.alarms.cancel(tag)):
            self._rows.cancel(bin, tag)

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
        """Return a time that no timer precedes, departing ones included, or None without timers.
        It is the time of the first one, or that of a far one that has been cancelled."""
        return None if self.retired else self._here.least

    def least_of(self, bin: Bin) -> int | None:
        """Return the same for the timers of one bin, retired ones included."""
        return self._here.least_of(bin)

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
        departures = self._departures.setdefault(bin, [])
        insort(departures, time)
        self._here.limit(bin, departures[0])

    def near(self, bin: Bin) -> list[Timer]:
        """Return the timers and alarms of a bin that are no rows of its store, in order. Alarms
        stand as in layers."""
        alarms = sorted((-due, tag) for due, tag in self.alarms.of(bin))
        return [*alarms, *self._here.of(bin)]

    def settle(self, bin: Bin | None = None) -> None:
        """Write the far timers and alarms of a bin, or of all bins, to the store."""
        self._rows.settle(bin)

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers or alarms, or had far ones."""
        return {*self._here.bins, *self.alarms.bins}

    def remove_departed(self, bin: Bin) -> None:
        """Remove the timers of a bin that has left."""
        self._here.drop(bin)
        self.alarms.drop(bin)
        self._rows.close(bin)
        self._arrivals.pop(bin, None)
        later = self._departures[bin][1:]
        if later:
            self._departures[bin] = later
            self._here.limit(bin, later[0])
        else:
            del self._departures[bin]
            self._here.unlimit(bin)

    def install(self, bin: Bin, timers: Iterable[Timer]) -> None:
        """Set the timers and alarms of a bin that has arrived, whose rows are in the store."""
        if self._rows.open(bin):
            self._here.open(bin)
            self.alarms.open(bin)
        for time, tag in timers:
            named = split_tag(tag)[0] != tag
            if time < MIN_TIME:
                self.alarms.add(bin, (-time, tag), named=named)
            else:
                self._here.add(bin, (time, tag), named=named)
        if bin in self._departures:
            self._here.limit(bin, self._departures[bin][0])
