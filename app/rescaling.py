"""Workers that come and go because somebody asked for it: one command after the other.

Guarantees that each command is answered, and ends: those that come are launched, join one by one
and then get their share of bins and partitions, or the bins that a migration names; those that go
(the highest numbers) give theirs away, and their processes end. Numbers are never used twice in a
life of a flow, as keys on the state topic hold them. A newcomer that does not come is told of and
done without.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from app.crew import Crew
from connectors.links import member_name
from dataflow.controller import Controller
from dataflow.migrate.command import Migrate, Refused
from dataflow.migrate.said import Event as EngineEvent
from dataflow.migrate.said import round_ms
from dataflow.protocols import Clock
from dataflow.waits import Wait
from schemas.control import Rescale
from schemas.status import CommandRejected, Event, Joined, Left, NotJoined, Rescaled, Rescaling
from state.ids import WorkerId

log = logging.getLogger(__name__)

MOST_AHEAD = 1000
"""By how much the number of a worker that is to be started may be ahead of the next."""


@dataclass(slots=True)
class Change:
    """A command under way."""

    id: str
    offset: int
    began: float
    awaited: set[WorkerId]
    """Who has not come, or gone, yet."""
    shared: bool
    """Whether those who came have been given a share."""
    came: list[WorkerId] = field(default_factory=list)
    moves: set[object] = field(default_factory=set)
    """What is on its way to them."""
    migration: Migrate | None = None
    """What is to be obeyed once they have come."""


class Rescaler:
    """Obeys `Rescale` commands, and migrations to workers that are not there yet.

    `slots` is how many workers fit, where that is known.
    """

    def __init__(self, controller: Controller, crew: Crew, clock: Clock, slots: int | None) -> None:
        self._controller, self._crew, self._clock = controller, crew, clock
        self._slots = slots
        self._next = len(crew.hands)
        self._asked: deque[tuple[Rescale | Migrate, int]] = deque()
        self._change: Change | None = None

    @property
    def offset(self) -> int:
        """Where the command under way lies on the control topic."""
        assert self._change is not None
        return self._change.offset

    def ask(self, command: Rescale | Migrate, offset: int) -> None:
        """A command has come; its turn comes once all work and those before it have ended."""
        self._asked.append((command, offset))

    def hires(self, command: Migrate) -> bool:
        """Whether it names a worker that is yet to be started, by a number never used before."""
        return self._next <= command.worker < self._next + MOST_AHEAD

    def waits(self) -> dict[Hashable, Wait]:
        """The commands whose turn has not come."""
        change = self._change
        when = "all workers are at work" if change is None else f"{change.id!r} has ended"
        found: dict[Hashable, Wait] = {}
        for command, offset in self._asked:
            kind = "rescale" if isinstance(command, Rescale) else "migration"
            found[offset] = Wait(f"{kind} {command.id!r} to begin", when)
            when = f"{command.id!r} has ended"
        return found

    def step(self) -> Iterator[Event]:
        """What can be done now; what is to be told of it."""
        ready = self._crew.working and self._controller.ready
        if self._change is None and self._asked and ready:
            command, offset = self._asked.popleft()
            if isinstance(command, Rescale):
                yield from self._begin(command, offset)
            else:
                yield from self._hire(command, offset)
        if self._change is not None:
            yield from self._go_on(self._change)

    def note(self, event: EngineEvent) -> Iterator[Event]:
        """The engine's part of it goes on."""
        change = self._change
        match event:
            case {"type": "joined", "worker": int(number)} if change is not None:
                worker = WorkerId(number)
                change.awaited.discard(worker)
                change.came.append(worker)
                yield Joined(id=change.id, worker=worker)
            case {"type": "left", "worker": int(number)}:
                self._crew.release(WorkerId(number))
            case {"type": "completed" | "partition_moved", "id": name} if change is not None:
                change.moves.discard(name)

    def _begin(self, command: Rescale, offset: int) -> Iterator[Event]:
        members = sorted(self._crew.hands)
        more = command.workers - len(members)
        coming = [WorkerId(self._next + n) for n in range(more)]
        going = members[command.workers :]
        try:
            if coming:
                self._expect_slots(command.workers)
            if going:
                self._controller.leave(command.id, going)
            else:
                self._controller.use(command.id)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        self._next += len(coming)
        self._crew.newcomers.launch(coming)
        self._change = Change(
            command.id, offset, self._clock.monotonic(), {*coming, *going}, shared=not coming
        )
        yield Rescaling(
            id=command.id, offset=offset, workers=command.workers,
            joining=list(coming), leaving=list(going),
        )  # fmt: skip

    def _hire(self, command: Migrate, offset: int) -> Iterator[Event]:
        """Start the worker that a migration names, unless an earlier one has had it started."""
        members = len(self._crew.hands)
        coming = [command.worker] if command.worker not in self._crew.hands else []
        try:
            self._controller.expect(command)
            self._expect_slots(members + len(coming))
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        self._next = max(self._next, command.worker + 1)
        self._crew.newcomers.launch(coming)
        self._change = Change(
            command.id, offset, self._clock.monotonic(), {*coming}, shared=True, migration=command
        )
        yield Rescaling(
            id=command.id, offset=offset, workers=members + len(coming),
            joining=list(coming), leaving=[],
        )  # fmt: skip

    def _expect_slots(self, workers: int) -> None:
        if self._slots is not None and workers > self._slots:
            raise Refused(
                f"{workers} workers need a slot each, and the master has {self._slots} in all: name"
                " fewer workers, or start the flow on a master with more"
            )

    def _go_on(self, change: Change) -> Iterator[Event]:
        newcomers = self._crew.newcomers
        for worker in newcomers.ready:
            try:
                self._controller.join(worker)
            except Refused as refusal:
                newcomers.give_up(worker, f"{member_name(worker)}: {refusal}", self._crew.hands)
            else:
                self._crew.enlist(worker)
        for worker, why in newcomers.lost():
            change.awaited.discard(worker)
            yield NotJoined(id=change.id, worker=worker, reason=why)
        for worker, counters in self._crew.gone():
            change.awaited.discard(worker)
            yield Left(id=change.id, worker=worker, counters=counters)
        if change.awaited or change.moves:
            return
        if change.migration is not None:
            yield from self._migrate(change, change.migration)
            return
        if not change.shared:
            change.shared = True
            self._share(change)
            return
        ms = round_ms(self._clock.monotonic() - change.began)
        self._change = None
        yield Rescaled(id=change.id, workers=len(self._crew.hands), ms=ms)

    def _migrate(self, change: Change, command: Migrate) -> Iterator[Event]:
        """Obey a migration now that who it names has come, or has not. A worker that came for
        nothing goes again."""
        change.migration, self._change = None, None
        try:
            self._controller.submit(command)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=change.offset, reason=str(refusal))
            if command.worker in change.came:
                self._controller.leave(f"{command.id}/back", [command.worker])
                change.awaited, self._change = {command.worker}, change

    def _share(self, change: Change) -> None:
        try:
            change.moves |= self._controller.share(change.id, change.came)
        except Refused as refusal:
            log.warning("%s: the newcomers get no share: %s", change.id, refusal)
