"""How fast the data's time runs, and so how far ahead of it commands may be ruled out."""

from __future__ import annotations

from meander.dataflow.interfaces import Clock
from meander.state.times.time import span, to_millis


class TimeRate:
    """How fast logical time runs, against the wall clock: 1.0 for live data."""

    WINDOW = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._start: int | None = None
        self._speed = 0.0

    def lead(self, furthest: int, control_lead: float) -> int:
        """How far ahead of `furthest` commands may be ruled out, in logical time."""
        now = self._clock.monotonic()
        if self._start is None:
            self._start, self._since = furthest, now
        elif now - self._since >= self.WINDOW:
            passed = to_millis(furthest - self._start) / 1000
            self._speed = passed / (now - self._since)
            self._start, self._since = furthest, now
        return span(control_lead * min(1.0, self._speed))

    def within(self, distance: int, seconds: float) -> bool:
        """Whether data as fast as of late covers a distance in so many seconds; yes where it is not
        known to move."""
        return not self._speed or to_millis(distance) <= seconds * self._speed * 1000
