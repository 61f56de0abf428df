"""What the status topic says about a flow, drawn together.

Guarantees that reading the same events gives the same overview, whenever it is read; only the age
of the heartbeat depends on the clock. Cost: the events of a week at most, a heartbeat a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from connectors.status import Told
from schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
)


@dataclass(slots=True)
class Migration:
    """What has become of one command."""

    id: str
    state: str
    """'moving', 'completed', 'rejected' or 'ended' with its flow."""
    strategy: str = ""
    at_ms: int | None = None
    bins: int = 0
    moved: int = 0
    bytes: int = 0
    keys: int = 0
    ms: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Overview:
    """One flow as of its last events."""

    flow: str
    state: str = "never started"
    reason: str = ""
    heartbeat_ms: int | None = None
    """When the broker took the last heartbeat, milliseconds since 1970."""
    lease: float = 0.0
    """Seconds of silence after which the driver counts as dead."""
    workers: int = 0
    lag: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    frontiers: dict[str, int] = field(default_factory=dict)
    """Milliseconds since 1970, by the name of probe or sink."""
    bins: list[int] = field(default_factory=list)
    """How many each worker owns."""
    migrations: dict[str, Migration] = field(default_factory=dict)

    def silent(self, now_ms: int) -> bool:
        """Whether a driver that has not said that it ends has gone silent."""
        alive = self.state in {"starting", "running"}
        return alive and now_ms - (self.heartbeat_ms or 0) > self.lease * 1000

    def take(self, told: Told) -> None:
        """Follow one more event."""
        match told.event:
            case Heartbeat() as beat:
                self._beat(told.millis, beat)
            case Started(workers=workers):
                self.state, self.reason, self.workers = "running", "", workers
            case Finished(counters=counters):
                self._end("finished", "")
                self.counters = self.counters | counters
            case Failed(reason=reason):
                self._end("failed", reason)
            case event:
                self._of_command(event)

    def _of_command(self, event: Event) -> None:
        match event:
            case Accepted() as accepted:
                self.migrations[accepted.id] = Migration(
                    accepted.id, "moving", accepted.strategy, accepted.time, len(accepted.bins)
                )
            case BinMoved() as moved:
                if (known := self.migrations.get(moved.id)) is not None:
                    known.moved += 1
                    known.bytes += moved.bytes
                    known.keys += moved.keys
            case Completed() as done:
                if (known := self.migrations.get(done.id)) is not None:
                    known.state, known.ms = "completed", done.ms
            case CommandRejected(id=name, reason=reason):
                # A second command under an id in use says nothing of the first.
                if name not in self.migrations:
                    self.migrations[name] = Migration(name, "rejected", reason=reason)

    def _beat(self, millis: int, beat: Heartbeat) -> None:
        self.state, self.reason = "running" if beat.bins else "starting", ""
        self.heartbeat_ms, self.lease = millis, beat.lease
        self.workers, self.lag = beat.workers, beat.lag
        self.counters, self.frontiers, self.bins = beat.counters, beat.frontiers, beat.bins

    def _end(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        for migration in self.migrations.values():
            if migration.state == "moving":
                migration.state = "ended"


def overview(flow: str, events: Iterable[Told | None]) -> Overview:
    """All events drawn together."""
    seen = Overview(flow)
    for told in events:
        if told is not None:
            seen.take(told)
    return seen
