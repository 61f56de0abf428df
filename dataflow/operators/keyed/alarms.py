"""The alarms of a stateful operator that are due by the wall clock.

Guarantees that an alarm is due no earlier than asked, and only where its bin is at that logical
time (I2). Cost: a look at the clock per turn while alarms are pending, O(log n) per alarm.
"""

from __future__ import annotations

from typing import Final

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.keyed.timers import Timers
from meander.state.encoding.timers import Timer

RETRY_SECONDS: Final = 0.01
"""The seconds until the next look at an alarm that is due, and whose bin moves."""


class AlarmClock:
    """A clock that tells which alarms of an operator are due."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers, self._clock = timers, clock

    @property
    def pending(self) -> bool:
        """Return whether an alarm is pending."""
        return self._timers.alarms.first is not None

    def due(self, time: int, max_count: int) -> list[Timer]:
        """Return alarms that are due, of bins that are here at a logical time, in order and at most
        `max_count`."""
        alarms = self._timers.alarms
        now, first = self._clock.now_ms(), alarms.first
        if first is None or first[0] > now:
            return []
        due = alarms.peek(now + 1, max_count)
        return [one for one in due if self._timers.may_ring(alarms.bin_of(one), time)]

    def wait_seconds(self) -> float | None:
        """Return the seconds until the first alarm may call, or None without alarms."""
        first = self._timers.alarms.first
        if first is None:
            return None
        return max(RETRY_SECONDS, (first[0] - self._clock.now_ms()) / 1000)
