"""The rate of logical time, and the lead of the control frontier that follows from it."""

from __future__ import annotations

from meander.dataflow.interfaces import Clock
from meander.state.times.time import duration, to_millis


class TimeRate:
    """A measurement of logical time against the wall clock; the rate of live data is 1.0."""

    WINDOW = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._start: int | None = None
        self._speed = 0.0

    def lead(self, furthest: int, control_lead: float) -> int:
        """Return how far ahead of `furthest` times may be closed, in logical time."""
        now = self._clock.monotonic()
        if self._start is None:
            self._start, self._since = furthest, now
        elif now - self._since >= self.WINDOW:
            passed = to_millis(furthest - self._start) / 1000
            self._speed = passed / (now - self._since)
            self._start, self._since = furthest, now
        return duration(control_lead * min(1.0, self._speed))

    def within(self, distance: int, seconds: float) -> bool:
        """Return whether the data covers a distance within some seconds at its recent rate.

        Return True where no rate is known.
        """
        return not self._speed or to_millis(distance) <= seconds * self._speed * 1000
