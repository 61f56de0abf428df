"""The windows of a stream: which of them a record belongs to, by its own time.

Guarantees that the own time of a record, and for sessions the open ones of its key, decide alone.
All assigners are pure, so results are the same on every replay. Invariant: two open windows of a
key differ in their starts. Cost: O(windows of a record); of a session O(open sessions of the key).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from meander.schemas.control import MAX_MILLIS
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_number, checked_whole

MAX_WINDOWS: Final = 10_000
"""The most windows of one record."""
MAX_SECONDS: Final = MAX_MILLIS // 1000
"""The most seconds of a window."""


class Window(NamedTuple):
    """A window that holds the records of some own times.

    >>> Window(0, 60_000).holds(59_999), Window(0, 60_000).holds(60_000)
    (True, False)
    """

    start: int
    """The first time that it may hold, in milliseconds since 1970."""
    end: int
    """The first time behind it."""

    def holds(self, event_ms: int) -> bool:
        """Return whether a record with this own time lies in the window."""
        return self.start <= event_ms < self.end


@dataclass(frozen=True, slots=True)
class Hopping:
    """An assigner of windows of one size that start at a fixed interval.

    >>> Hopping(300, 100).assign(250)
    (Window(start=0, end=300), Window(start=100, end=400), Window(start=200, end=500))
    >>> Hopping(100, 100, offset_ms=10).assign(5)
    (Window(start=-90, end=10),)
    """

    size_ms: int
    every_ms: int
    late_ms: int = 0
    offset_ms: int = 0
    """The start of one of the windows."""
    merges = False

    def assign(self, event_ms: int) -> tuple[Window, ...]:
        """Return the windows that hold a record."""
        every, size = self.every_ms, self.size_ms
        last = event_ms - (event_ms - self.offset_ms) % every
        first = last - (size - 1 - (event_ms - last)) // every * every
        return tuple(Window(start, start + size) for start in range(first, last + 1, every))

    def join(self, window: Window, opened: Collection[Window]) -> tuple[Window, Sequence[Window]]:
        """Return the window as it is, and the equal open one."""
        return window, (window,) if window in opened else ()


@dataclass(frozen=True, slots=True)
class Sessions:
    """An assigner of sessions. A session ends `gap_ms` behind its last record, and its length is at
    most `longest_ms`.

    A record joins the first open session that it touches, and merges it with the others where the
    sum is not too long. A session that is full ends at its greatest length.

    >>> sessions = Sessions(30, 100)
    >>> sessions.join(Window(20, 50), [Window(0, 30), Window(40, 70)])
    (Window(start=0, end=70), [Window(start=0, end=30), Window(start=40, end=70)])
    >>> sessions.join(Window(90, 120), [Window(0, 95)])
    (Window(start=0, end=100), [Window(start=0, end=95)])
    >>> sessions.join(Window(30, 60), [Window(0, 30)])
    (Window(start=30, end=60), [])
    """

    gap_ms: int
    longest_ms: int = MAX_MILLIS
    late_ms: int = 0
    merges = True

    def assign(self, event_ms: int) -> tuple[Window, ...]:
        """Return the session of a record alone."""
        return (Window(event_ms, event_ms + self.gap_ms),)

    def join(self, window: Window, opened: Collection[Window]) -> tuple[Window, Sequence[Window]]:
        """Return the session that a record makes of the open ones, and those of them in it."""
        found, joined = window, list[Window]()
        for other in opened:
            if not (other.start < window.end and window.start < other.end):
                continue
            both = Window(min(found.start, other.start), max(found.end, other.end))
            if both.end - both.start <= self.longest_ms:
                found = both
            elif not joined and other.start <= window.start:
                found = Window(other.start, other.start + self.longest_ms)
            else:
                continue
            joined.append(other)
        return found, joined


@dataclass(frozen=True, slots=True)
class Sliding:
    """An assigner of windows that end with a record. Each holds the records of `size_ms`.

    >>> sliding = Sliding(60_000, late_ms=5_000)
    >>> sliding.window(100_000), sliding.close(100_000), sliding.last(100_000)
    (Window(start=40001, end=100001), 105001, 165000)
    """

    size_ms: int
    late_ms: int = 0
    merges = False

    def window(self, event_ms: int) -> Window:
        """Return the window that ends with records of an own time."""
        return Window(event_ms + 1 - self.size_ms, event_ms + 1)

    def close(self, event_ms: int) -> int:
        """Return when this window closes, in milliseconds of logical time."""
        return event_ms + 1 + self.late_ms

    def last(self, event_ms: int) -> int:
        """Return when the last window closes that may hold such records."""
        return event_ms + self.size_ms + self.late_ms


@dataclass(frozen=True, slots=True)
class Counts:
    """An assigner of windows with a fixed number of records of a key."""

    size: int
    merges = False


Windows = Hopping | Sessions | Sliding | Counts
"""An assigner of windows."""


def described(windows: Windows) -> str:
    """Return windows in the words of their definition.

    >>> described(Hopping(300_000, 60_000, late_ms=500)), described(Sessions(30_000))
    ('hopping(300, every=60, late=0.5)', 'session(30)')
    """
    match windows:
        case Hopping(size, every, late, offset):
            name, length = ("tumbling" if size == every else "hopping"), size
            options = {"every": every if size != every else 0, "late": late, "offset": offset}
        case Sessions(gap, longest, late):
            name, length = "session", gap
            options = {"longest": longest if longest != MAX_MILLIS else 0, "late": late}
        case Sliding(size, late):
            name, length, options = "sliding", size, {"late": late}
        case Counts(size):
            return f"count({size})"
    given = (f", {option}={ms / 1000:.15g}" for option, ms in options.items() if ms)
    return f"{name}({length / 1000:.15g}{''.join(given)})"


def tumbling(size: float, *, late: float = 0, offset: float = 0) -> Hopping:
    """Return windows of `size` seconds that follow each other. A record lies in one of them, by its
    own time.

    A window closes once the frontier reaches `late` seconds behind its end. One window starts
    `offset` seconds after 1970 in UTC, so `tumbling(86400, offset=-3600)` gives the days of a zone
    one hour ahead.

    >>> tumbling(60).assign(61_500)
    (Window(start=60000, end=120000),)
    """
    size_ms = millis_of("tumbling window", "size", size)
    return Hopping(size_ms, size_ms, _late("tumbling window", late), _offset(offset, size_ms))


def hopping(size: float, *, every: float, late: float = 0, offset: float = 0) -> Hopping:
    """Return windows of `size` seconds, one of which starts every `every` seconds. A record lies in
    each window that holds its own time. The other options are those of `tumbling`.

    >>> len(hopping(300, every=60).assign(0))
    5
    """
    subject = "hopping window"
    size_ms, every_ms = millis_of(subject, "size", size), millis_of(subject, "every", every)
    if every_ms > size_ms or size_ms > MAX_WINDOWS * every_ms:
        raise SetupError(
            subject, f"one of {size} seconds starts every {every} seconds",
            f"let a record lie in 1 to {MAX_WINDOWS:,} of them",
        )  # fmt: skip
    return Hopping(size_ms, every_ms, _late(subject, late), _offset(offset, every_ms))


def sliding(size: float, *, late: float = 0) -> Sliding:
    """Return windows of `size` seconds, each of which ends with a record and holds the records
    before it. Records of a key with equal own times share one.

    >>> sliding(60).window(100_000)
    Window(start=40001, end=100001)
    """
    return Sliding(millis_of("sliding window", "size", size), _late("sliding window", late))


def session(gap: float, *, longest: float | None = None, late: float = 0) -> Sessions:
    """Return sessions: windows that end `gap` seconds behind their last record, by own times.

    A record between two open sessions merges them. No session gets longer than `longest` seconds; a
    record behind that starts another one.

    >>> session(30, longest=3600)
    Sessions(gap_ms=30000, longest_ms=3600000, late_ms=0)
    """
    gap_ms = millis_of("session", "gap", gap)
    longest_ms = MAX_MILLIS if longest is None else millis_of("session", "longest", longest)
    if longest_ms < gap_ms:
        raise SetupError(
            "session", f"the longest has {longest} seconds, and a gap ends one after {gap}",
            "give a longest of at least the gap",
        )  # fmt: skip
    return Sessions(gap_ms, longest_ms, _late("session", late))


def count(size: int) -> Counts:
    """Return windows of `size` records of a key, in the total order. A window closes with its last
    record. It starts with the least own time of its records, and ends behind the greatest.

    >>> count(100)
    Counts(size=100)
    """
    return Counts(checked_whole("window of a count", "size", size, 1, unit="records"))


def millis_of(subject: str, option: str, seconds: object, least: float = 0.001) -> int:
    """Return the milliseconds of an option in seconds. Raises SetupError for other values.

    >>> millis_of("session", "gap", 0.5)
    500
    """
    return round(checked_number(subject, option, seconds, least, MAX_SECONDS) * 1000)


def _late(subject: str, seconds: object) -> int:
    return millis_of(subject, "late", seconds, 0)


def _offset(seconds: object, every_ms: int) -> int:
    """Return the least offset of windows that start where those of another offset do."""
    number = checked_number("window", "offset", seconds, -MAX_SECONDS, MAX_SECONDS)
    return round(number * 1000) % every_ms
