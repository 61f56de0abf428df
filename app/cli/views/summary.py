"""Summarise a running flow, or a command, in one JSON line every ten seconds for programs.

Guarantees one line per `EVERY` seconds, however often heartbeats come; the status topic has each
heartbeat. A rate is the mean since the last line.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import to_builtins

from meander.app.common.output import CommandOutput
from meander.schemas.status import (
    Accepted,
    BinMoved,
    Checkpointed,
    Event,
    Heartbeat,
    RescaleProgress,
)

EVERY = 10.0
"""Seconds from one summary line to the next."""


class RunSummary:
    """A summary of a flow that follows its events."""

    def __init__(self) -> None:
        self._next = self._at = time.monotonic()
        self._counts = (0, 0)
        self._checkpoints = 0

    def take(self, event: Event) -> dict[str, object] | None:
        """Follow one more event; return the fields of a line where one is due."""
        if isinstance(event, Checkpointed):
            self._checkpoints += 1
        if not isinstance(event, Heartbeat) or time.monotonic() < self._next:
            return None
        return self._line(event)

    def _line(self, heartbeat: Heartbeat) -> dict[str, object]:
        now = time.monotonic()
        read, written = heartbeat.counters.get("read", 0), heartbeat.counters.get("written", 0)
        seconds, (read_before, written_before) = now - self._at, self._counts
        self._at, self._next, self._counts = now, now + EVERY, (read, written)
        return {
            "type": "summary",
            "state": "running" if heartbeat.bins else "starting",
            "workers": heartbeat.workers if heartbeat.bins else heartbeat.registered,
            "records_in_per_second": _rate(read - read_before, seconds),
            "records_out_per_second": _rate(written - written_before, seconds),
            "lag": heartbeat.lag,
            "frontier_delay_ms": _delay(heartbeat),
            "checkpoints": self._checkpoints,
            "migrations": len(heartbeat.moving) + heartbeat.omitted,
            "dead_letters": heartbeat.counters.get("dead_letters", 0),
        }


class MoveSummary:
    """A summary of a command that moves bins, which follows its events.

    It replaces the event of each bin, as a command may move thousands.
    """

    def __init__(
        self, output: CommandOutput, waits: Callable[[RescaleProgress], str] | None = None
    ) -> None:
        """`waits` describes on a terminal what a rescale waits for."""
        self._output, self._waits, self._next = output, waits, time.monotonic() + EVERY
        self._bins = self._moved = self._bytes = 0

    def take(self, event: Event) -> None:
        """Follow one more event; print it as a JSON line, or a summary where one is due."""
        match event:
            case BinMoved(bytes=count):
                self._moved, self._bytes = self._moved + 1, self._bytes + count
            case Heartbeat(rescale=rescale):
                if (now := time.monotonic()) >= self._next:
                    self._next = now + EVERY
                    self._print(rescale)
            case _:
                self._bins += len(event.bins) if isinstance(event, Accepted) else 0
                self._output.event(event)

    def _print(self, rescale: RescaleProgress | None) -> None:
        if rescale is not None and self._waits is not None:
            self._output.say(self._waits(rescale))
        if self._output.as_json:
            self._output.line(
                {
                    "type": "summary", "bins": self._bins, "moved": self._moved,
                    "bytes": self._bytes, "rescale": to_builtins(rescale),
                }
            )  # fmt: skip


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _delay(heartbeat: Heartbeat) -> int | None:
    """Return how far the earliest frontier lies behind the clock; None while there is none."""
    frontiers = [millis for millis in heartbeat.frontiers.values() if millis]
    return max(0, time.time_ns() // 1_000_000 - min(frontiers)) if frontiers else None
