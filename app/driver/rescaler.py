"""The rescaler: commands that add workers to a running flow or remove them, one at a time.

Guarantees that each command is answered and ends. New workers start, join one by one, and get their
share of bins and partitions, or the bins that a migration names. The workers with the highest ids
leave: they give bins and partitions away, and their processes exit. No execution uses a worker id
twice, because keys on the state topic contain it. A worker that fails to join is reported, and the
command continues without it. A worker that joined for a migration and gets no bin leaves again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from meander.app.driver.workers.worker_pool import WorkerPool
from meander.connectors.links.links import member_name
from meander.dataflow.control.command import MoveBins, Refused, id_in_use
from meander.dataflow.coordinator.coordinator import Controller
from meander.dataflow.interfaces import Clock
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.migration.events import Event as EngineEvent
from meander.dataflow.migration.events import round_ms
from meander.schemas.control import Rescale
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import (
    Aborted,
    CommandRejected,
    Event,
    Joined,
    JoinFailed,
    Left,
    Rescaled,
    Rescaling,
)
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

MAX_AHEAD = 1000
"""The limit by which a new worker's id may exceed the next free id."""


@dataclass(slots=True)
class Change:
    """A command in progress."""

    id: str
    offset: int
    started_at: float
    then: Callable[[Change], Iterable[Event]]
    """The next step, once no worker and no move is awaited."""
    joining: set[WorkerId] = field(default_factory=set)
    """The workers that have not joined yet."""
    leaving: set[WorkerId] = field(default_factory=set)
    """The workers that have not left yet."""
    joined: list[WorkerId] = field(default_factory=list)
    moves: set[object] = field(default_factory=set)
    """The ids of moves to the workers that have joined."""
    migration: MoveBins | None = None
    """The command to submit once its worker has joined."""
    failure: str = ""
    """The part of the command that failed, and the reason."""


class Rescaler:
    """A handler of `Rescale` commands, and of migrations to workers that do not exist yet.

    `slots` is the number of workers that fit on the master, where that is known.
    """

    def __init__(
        self, controller: Controller, pool: WorkerPool, clock: Clock, slots: int | None
    ) -> None:
        self._controller, self._pool, self._clock = controller, pool, clock
        self._slots = slots
        self._next_id = len(pool.handles)
        self._queue: deque[tuple[Rescale | MoveBins, int]] = deque()
        self._change: Change | None = None
        self._unused: dict[WorkerId, Change] = {}
        """The workers that joined for a migration and got no bin yet, with that change."""
        self._offsets: dict[str, int] = {}
        """The offsets of migrations that were submitted here and have not ended."""

    # -- commands

    def enqueue(self, command: Rescale | MoveBins, offset: int) -> None:
        """Queue a command. It starts once all workers run and earlier commands have ended."""
        self._queue.append((command, offset))

    def expect_fresh(self, id: str) -> None:
        """Raise Refused for the id of a command that is in progress or queued here."""
        in_progress = set() if self._change is None else {self._change.id}
        if id in in_progress | {command.id for command, _ in self._queue}:
            raise id_in_use(id)

    def must_wait(self, command: MoveBins) -> bool:
        """Return whether a migration has to wait until the worker that it names has joined.

        This is so for an unused id, and for a worker that earlier commands wait for.
        """
        new = self._next_id <= command.worker < self._next_id + MAX_AHEAD
        joining = set() if self._change is None else self._change.joining
        return new or command.worker in joining | self._awaited_workers | self._unused.keys()

    def expect(self, command: MoveBins) -> None:
        """Raise Refused where a migration could not start once its worker has joined."""
        self._controller.expect(command)
        self._expect_slots(len(self._pool.handles) + (command.worker >= self._next_id))

    def abort(self, id: str, by: str) -> list[Event]:
        """Abort a migration that waits for its worker or its turn; return the events about it.

        Returns no event where no such migration waits. A worker that joins for it leaves again.
        Raises Refused.
        """
        for command, offset in self._waiting_migrations:
            if command.id == id:
                self._controller.use(by)
                if self._change is not None and self._change.migration is command:
                    self._change.migration = None
                else:
                    self._queue.remove((command, offset))
                why = f"command {by!r} has aborted it before it began"
                bins = [int(bin) for bin in command.bins]
                return [
                    CommandRejected(id=id, offset=offset, reason=why),
                    Aborted(id=id, by=by, ms=0.0, bins=0, bytes=0, unmoved=bins),
                ]
        return []

    # -- state

    @property
    def queued(self) -> set[int]:
        """The offsets of queued commands."""
        return {offset for _, offset in self._queue}

    def offset(self, name: str) -> int:
        """Return the offset of a migration that was submitted here.

        Other ids belong to the command in progress.
        """
        if name in self._offsets:
            return self._offsets[name]
        assert self._change is not None
        return self._change.offset

    def wait_reasons(self) -> dict[Hashable, Wait]:
        """Return the waits of queued commands."""
        change = self._change
        when = "all workers run" if change is None else f"{change.id!r} has ended"
        found: dict[Hashable, Wait] = {}
        for command, offset in self._queue:
            kind = "rescale" if isinstance(command, Rescale) else "migration"
            found[offset] = Wait(kind, when, {"id": command.id})
            when = f"{command.id!r} has ended"
        return found

    @property
    def _waiting_migrations(self) -> list[tuple[MoveBins, int]]:
        """The migrations that have not been submitted, and their offsets."""
        found = [(one, offset) for one, offset in self._queue if isinstance(one, MoveBins)]
        if (change := self._change) is not None and change.migration is not None:
            found.append((change.migration, change.offset))
        return found

    @property
    def _awaited_workers(self) -> set[WorkerId]:
        """The workers that waiting migrations name."""
        return {command.worker for command, _ in self._waiting_migrations}

    # -- steps

    def step(self) -> Iterator[Event]:
        """Continue the command in progress, or start the next; yield events."""
        if self._change is not None:
            yield from self._continue(self._change)
        if self._change is None and self._pool.working and self._controller.ready:
            yield from self._start_next()

    def note(self, event: EngineEvent) -> Iterator[Event]:
        """Note an event of the engine; yield events of the command in progress."""
        change = self._change
        match event:
            case {"type": "joined", "worker": int(number)} if change is not None:
                worker = WorkerId(number)
                change.joining.discard(worker)
                change.joined.append(worker)
                yield Joined(id=change.id, worker=worker)
            case {"type": "left", "worker": int(number)}:
                self._pool.release(WorkerId(number))
            case {"type": "completed" | "aborted" | "partition_moved", "id": str(name)}:
                self._offsets.pop(name, None)
                if change is not None and name in change.moves:
                    change.moves.discard(name)
                    if event.get("unmoved"):
                        change.failure = "not all bins have moved, as the flow's sources have ended"

    def _start_next(self) -> Iterator[Event]:
        if idle := self._unused.keys() - self._awaited_workers:
            self._remove_unused(min(idle))
        elif self._queue:
            command, offset = self._queue.popleft()
            if isinstance(command, Rescale):
                yield from self._start_rescale(command, offset)
            else:
                yield from self._start_migration(command, offset)

    def _start_rescale(self, command: Rescale, offset: int) -> Iterator[Event]:
        members = sorted(self._pool.handles)
        more = command.workers - len(members)
        joining = [WorkerId(self._next_id + n) for n in range(more)]
        leaving = members[command.workers :]
        try:
            if joining:
                self._expect_slots(command.workers)
            if leaving:
                self._controller.leave(command.id, leaving)
            else:
                self._controller.use(command.id)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        # A rescale names the number of all workers, so none of them is unused any more.
        self._unused.clear()
        self._next_id += len(joining)
        self._pool.joining.launch(joining)
        then = self._share if joining else self._end
        self._change = Change(
            command.id, offset, self._clock.monotonic(), then, {*joining}, {*leaving}
        )
        yield Rescaling(
            id=command.id, offset=offset, workers=command.workers,
            joining=list(joining), leaving=list(leaving),
        )  # fmt: skip

    def _start_migration(self, command: MoveBins, offset: int) -> Iterator[Event]:
        """Start the worker that a migration names; submit the migration where its id is in use."""
        if command.worker < self._next_id:
            yield from self._submit(command, offset)
            return
        try:
            self.expect(command)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        self._next_id = command.worker + 1
        self._pool.joining.launch([command.worker])
        self._change = Change(
            command.id, offset, self._clock.monotonic(), self._migrate, {command.worker},
            migration=command,
        )  # fmt: skip
        yield Rescaling(
            id=command.id, offset=offset, workers=len(self._pool.handles) + 1,
            joining=[command.worker], leaving=[],
        )  # fmt: skip

    def _expect_slots(self, workers: int) -> None:
        if self._slots is not None and workers > self._slots:
            raise Refused(
                f"{workers} workers need a slot each, and the master has {self._slots} in all: name"
                " fewer workers, or start the flow on a master with more"
            )

    def _continue(self, change: Change) -> Iterator[Event]:
        joining = self._pool.joining
        for worker in joining.ready:
            try:
                self._controller.join(worker)
            except Refused as refusal:
                joining.drop(worker, f"{member_name(worker)}: {refusal}", self._pool.handles)
            else:
                self._pool.promote(worker)
        for worker, why in joining.dropped():
            change.joining.discard(worker)
            yield JoinFailed(id=change.id, worker=worker, reason=why)
        for worker, counters in self._pool.removed():
            change.leaving.discard(worker)
            yield Left(id=change.id, worker=worker, counters=counters)
        if not (change.joining or change.leaving or change.moves):
            yield from change.then(change)

    # -- next steps, once all workers have joined or left

    def _share(self, change: Change) -> Iterable[Event]:
        """Move a share of bins and partitions to the workers that have joined."""
        change.then = self._end
        try:
            if change.joined:
                change.moves |= self._controller.share(change.id, change.joined)
        except Refused as refusal:
            change.failure = f"the joined workers get no share: {refusal}"
        return ()

    def _migrate(self, change: Change) -> Iterable[Event]:
        """Submit a migration, unless it was aborted, once its worker has joined or failed to."""
        self._change = None
        self._unused |= dict.fromkeys(change.joined, change)
        command, change.migration = change.migration, None
        return () if command is None else self._submit(command, change.offset)

    def _submit(self, command: MoveBins, offset: int) -> Iterable[Event]:
        try:
            self._controller.submit(command)
        except Refused as refusal:
            return (CommandRejected(id=command.id, offset=offset, reason=str(refusal)),)
        self._offsets[command.id] = offset
        self._unused.pop(command.worker, None)
        return ()

    def _remove_unused(self, worker: WorkerId) -> None:
        """Let a worker leave that no migration needs any more."""
        self._change = change = self._unused.pop(worker)
        change.then = self._end
        try:
            self._controller.leave(self._unused_command_id(f"{change.id}/back"), [worker])
        except Refused as refusal:
            change.failure = f"{member_name(worker)} stays, though nothing moves to it: {refusal}"
        else:
            change.leaving.add(worker)

    def _unused_command_id(self, prefix: str) -> str:
        ids = self._controller.migrations.ids
        return next(id for id in (f"{prefix}-{n}" for n in count()) if id not in ids)

    def _end(self, change: Change) -> Iterable[Event]:
        self._change = None
        if change.failure:
            log.warning("rescale_fell_short", id=change.id, reason=change.failure)
        ms = round_ms(self._clock.monotonic() - change.started_at)
        workers = len(self._pool.handles)
        return (Rescaled(id=change.id, workers=workers, ms=ms, reason=change.failure),)
