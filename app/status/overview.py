"""The overview of a flow, from the events on its status topic.

Guarantees that equal events give equal overviews. A reader may begin anywhere: from the first
heartbeat on, it knows all of the last execution, except migrations that ended before. Only the age
of the heartbeat depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from meander.connectors.topics.status import StatusRecord
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinMoved,
    Claimed,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Joined,
    JoinFailed,
    Left,
    Migration,
    Queued,
    Recovering,
    Started,
)

MAX_WORKER_CHANGES = 20
"""The most workers that joined or left in an overview."""

OPEN = {"queued", "moving"}
"""The states of migrations that have not ended."""

SILENCE = Heartbeat(
    driver="", execution=0, heartbeat_timeout=0.0, workers=0, lag=0, counters={},
    frontiers={}, bins=[], moving=[], omitted=0,
)  # fmt: skip
"""Stands for the last heartbeat of a flow before its first one."""


@dataclass(slots=True)
class Overview:
    """An overview of the last execution of one flow."""

    flow: str
    state: str = "never started"
    reason: str = ""
    heartbeat_ms: int | None = None
    """The time of the last heartbeat at the broker, milliseconds since 1970."""
    heartbeat: Heartbeat = SILENCE
    """The last heartbeat, with later events."""
    worker_changes: list[Joined | JoinFailed | Left] = field(default_factory=list)
    """The last workers that joined or left, at most `MAX_WORKER_CHANGES`."""
    migrations: dict[str, Migration] = field(default_factory=dict)
    since_ms: int | None = None
    """The time before which ended migrations are unknown. None where all of them are known."""
    omitted: int = 0
    """The number of running migrations that `migrations` does not hold."""
    _claimed: set[str] = field(default_factory=set)
    _claim: StatusRecord | None = None
    """The claim of a driver that has sent no heartbeat yet."""
    _before_claim: tuple[str, str] = ("", "")
    """The state and the reason before that claim."""

    def silent(self, now_ms: int) -> bool:
        """Return whether the heartbeats of a driver stopped before its end."""
        heard, timeout = self.heartbeat_ms or 0, self.heartbeat.heartbeat_timeout
        if self._claim is not None and isinstance(self._claim.event, Claimed):
            heard, timeout = self._claim.millis, self._claim.event.heartbeat_timeout
        alive = self.state in {"starting", "running"}
        return alive and now_ms - heard > timeout * 1000

    def take(self, told: StatusRecord) -> None:
        """Add an event."""
        match told.event:
            case Heartbeat() as heartbeat:
                self._hear(told.millis, heartbeat)
            case Claimed(driver=driver):
                self._claimed.add(driver)
                if self.state not in {"starting", "running"}:
                    self._claim, self._before_claim = told, (self.state, self.reason)
                    self.state, self.reason = "starting", ""
            case Started(workers=workers):
                self.state, self.reason = "running", ""
                self._learn(workers=workers, registered=workers)
            case Recovering(reason=reason):
                self._end("starting", reason)
            case Finished() if self._claim is not None:
                # A command such as `meander reset` claims a flow and runs no worker.
                self.state, self.reason = self._before_claim
                self._claim = None
            case Finished(counters=counters):
                self._end("stopped" if self.state == "starting" else "finished", "")
                self._learn(counters=self.heartbeat.counters | counters)
            case Failed(reason=reason):
                self._end("failed", reason)
            case Joined() | JoinFailed() | Left() as event:
                self.worker_changes = [*self.worker_changes, event][-MAX_WORKER_CHANGES:]
            case event:
                note(self.migrations, event)

    def _hear(self, millis: int, heartbeat: Heartbeat) -> None:
        if heartbeat.driver != self.heartbeat.driver:
            self.migrations, self.worker_changes = {}, []
            self.since_ms = None if heartbeat.driver in self._claimed else millis
        self.state, self.reason = "running" if heartbeat.bins else "starting", ""
        self.heartbeat_ms, self.heartbeat, self._claim = millis, heartbeat, None
        self.migrations |= {one.id: one for one in heartbeat.moving}
        known = sum(one.state in OPEN for one in self.migrations.values())
        self.omitted = len(heartbeat.moving) + heartbeat.omitted - known

    def _learn(self, **fields: object) -> None:
        """Add fields to the last heartbeat."""
        self.heartbeat = replace(self.heartbeat, **fields)

    def _end(self, state: str, reason: str) -> None:
        self.state, self.reason, self._claim = state, reason, None
        self.migrations = {
            name: replace(one, state="ended") if one.state in OPEN else one
            for name, one in self.migrations.items()
        }


def note(migrations: dict[str, Migration], event: Event) -> None:
    """Add an event of a command."""
    match event:
        case Accepted() as accepted:
            migrations[accepted.id] = Migration(
                id=accepted.id, state="moving", strategy=accepted.strategy, at_ms=accepted.time,
                bins=len(accepted.bins), precopy=accepted.precopy,
            )  # fmt: skip
        case Queued(id=name, after=after):
            reason = f"waits for {', '.join(after)}"
            migrations[name] = Migration(id=name, state="queued", reason=reason)
        case BinMoved() as moved if (known := migrations.get(moved.id)) is not None:
            migrations[moved.id] = replace(
                known,
                moved=known.moved + 1,
                bytes=known.bytes + moved.bytes,
                keys=known.keys + moved.keys,
            )
        case Completed() | Aborted() as done if (known := migrations.get(done.id)) is not None:
            migrations[done.id] = replace(
                known,
                state=done.type,
                ms=done.ms,
                already_there=_already_there(known, done),
                fetched=0,
                eta=None,
                reason=_stay(done),
            )
        case Aborted(id=name, by=by, reason=reason) if by:
            # It was still waiting for its worker or its turn.
            migrations[name] = Migration(id=name, state="aborted", reason=reason)
        case CommandRejected(id=name, reason=reason) if name not in migrations:
            # A second command under an id in use says nothing of the first.
            migrations[name] = Migration(id=name, state="rejected", reason=reason)


def _already_there(known: Migration, done: Completed | Aborted) -> int:
    if done.bins is None or done.unmoved is None:
        return 0
    return max(0, known.bins - done.bins - len(done.unmoved))


def _stay(done: Completed | Aborted) -> str:
    """Return how many bins stay, or why the migration ended where that is unknown."""
    if isinstance(done, Aborted) and done.unmoved is None:
        return done.reason
    return f"{len(done.unmoved)} bins stay where they were" if done.unmoved else ""


def share_command(flow: str, workers: int) -> str:
    """Return the command that gives each worker without bins its share.

    >>> share_command("counts", 3)
    'meander rescale counts --workers 3'
    """
    return f"meander rescale {flow} --workers {workers}"


def overview(flow: str, events: Iterable[StatusRecord]) -> Overview:
    """Return the overview that follows from events."""
    seen = Overview(flow)
    for told in events:
        seen.take(told)
    return seen
