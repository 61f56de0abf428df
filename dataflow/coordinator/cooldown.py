"""The cool-down of plans: the time from one that comes into force to the start of the next.

Guarantees that only plans wait, and what comes behind them. Cost: one clock read per call.
"""

from __future__ import annotations

from meander.dataflow.coordinator.worker_change import Queueable
from meander.dataflow.interfaces import Clock
from meander.schemas.control import ApplyPlan


class Cooldown:
    """A cool-down of some seconds, which the last plan in force has started."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._plan, self._ends_at = "", clock.monotonic()

    def start(self, plan: str) -> None:
        """Start with a plan that has come into force."""
        self._plan, self._ends_at = plan, self._clock.monotonic() + self._seconds

    def reason(self, command: Queueable | None) -> str:
        """Return the event that a command has to wait for, or ''."""
        if not isinstance(command, ApplyPlan) or self._clock.monotonic() >= self._ends_at:
            return ""
        return f"the cool-down of {self._seconds:g} s after plan {self._plan!r} is over"
