"""The alarms of a stateful operator that are due by the wall clock.

Guarantees that an alarm is due no earlier than asked, and only where its bin is at that logical
time (I2). Invariant: while a function is to be called again on an alarm, the operator applies no
record, and while on a record, it calls no alarm. Cost: a look at the clock per turn while alarms
are pending, O(log n) per alarm.
"""

from __future__ import annotations

from typing import Final

from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.retries import Retries
from meander.state.encoding.timers import Timer

RETRY_SECONDS: Final = 0.01
"""The seconds until the next look at an alarm that is due, and whose bin moves."""


class AlarmClock:
    """A clock that tells which alarms of an operator are due."""

    def __init__(self, timers: Timers, clock: Clock, retries: Retries | None) -> None:
        self._timers, self._clock, self._retries = timers, clock, retries
        self.failed = False
        """Whether the function is to be called again on an alarm."""

    @property
    def pending(self) -> bool:
        """Return whether an alarm is pending."""
        return self._timers.alarms.first is not None

    def due(self, time: int | None, max_count: int) -> list[Timer]:
        """Return alarms that are due, of bins that are here at a logical time, in order and at most
        `max_count`; none where the inputs have ended. Call `note_called` after their calls."""
        if self._retries is not None and self._retries.pending and not self.failed:
            return []
        due = [] if time is None else self._due(time, max_count)
        if not due and self.failed and self._retries is not None:
            # The bin of the failed alarm has left, or the inputs have ended.
            self._retries.end_pass(0)
            self.failed = False
        return due

    def note_called(self) -> None:
        """Note that the function has been called on due alarms, and may have failed on one."""
        self.failed = self._retries is not None and self._retries.pending

    def _due(self, time: int, max_count: int) -> list[Timer]:
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
