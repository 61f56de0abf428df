"""The stall log: each line names a wait, its start, and the condition that ends it.

Guarantees one line for each wait that has lasted `GRACE` seconds, and one for its end. The log
omits shorter waits. Cost: nothing without a wait.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from meander.dataflow.interfaces import Clock
from meander.schemas.log_lines import LineLogger, LogLine, Value

log = LineLogger("meander.waits")

GRACE = 1.0
"""Seconds of a wait before the log names it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for something (`what`) until a condition holds. Its fields name the objects."""

    what: str
    until: str
    fields: Mapping[str, Value] = field(default_factory=dict)

    def line(self, event: str, **fields: Value) -> LogLine:
        """Return a log line about this wait."""
        return LogLine(event, {"for": self.what} | dict(self.fields) | fields)


@dataclass(slots=True)
class _Stall:
    wait: Wait
    at: float
    at_ms: int
    logged: bool = False


class StallLog:
    """A log of the stalls of one process, by kind of wait. One thread uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalls: dict[str, dict[Hashable, _Stall]] = {}

    def update(self, kind: str, now: Mapping[Hashable, Wait]) -> None:
        """Log the current waits of one kind that have become stalls, and the end of others."""
        if not now and not self._stalls.get(kind):
            return
        stalls = self._stalls.setdefault(kind, {})
        seconds = self._clock.monotonic()
        for key in [key for key in stalls if key not in now]:
            over = stalls.pop(key)
            if over.logged:
                log.log(logging.INFO, over.wait.line("waited", seconds=round(seconds - over.at, 1)))
        for key, wait in now.items():
            known = stalls.setdefault(key, _Stall(wait, seconds, self._clock.now_ms()))
            if not known.logged and seconds - known.at >= GRACE:
                known.logged, known.wait = True, wait
                since = datetime.fromtimestamp(known.at_ms / 1000, UTC)
                log.log(logging.INFO, wait.line("waiting", since=f"{since:%X}", until=wait.until))
