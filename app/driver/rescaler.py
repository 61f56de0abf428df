"""Workers that come and go because somebody asked for it: one command after the other.

Guarantees that each command is answered, and ends: those that come are launched, join one by one
and then get their share of bins and partitions, or the bins that a migration names; those that go
(the highest numbers) give theirs away, and their processes end. Numbers are never used twice in a
life of a flow, as keys on the state topic hold them. A newcomer that does not come is told of and
done without; one that has come for a migration, and gets nothing by it, goes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from meander.app.driver.workers.worker_pool import WorkerPool
from meander.connectors.links.links import member_name
from meander.dataflow.control.command import MoveBins, Refused, used_before
from meander.dataflow.coordinator.coordinator import Controller
from meander.dataflow.coordinator.events import EngineEvent, LastMessage
from meander.dataflow.interfaces import Clock
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.migration.events import round_ms
from meander.schemas.control import Rescale
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import (
    Aborted,
    CommandRejected,
    Completed,
    Event,
    Joined,
    JoinFailed,
    Left,
    PartitionMoved,
    Rescaled,
    Rescaling,
)
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

MOST_AHEAD = 1000
"""By how much the number of a worker that is to be started may be ahead of the next."""


@dataclass(slots=True)
class Change:
    """A command under way."""

    id: str
    offset: int
    began: float
    then: Callable[[Change], Iterable[Event]]
    """What is done once nobody and nothing is awaited any more."""
    coming: set[WorkerId] = field(default_factory=set)
    going: set[WorkerId] = field(default_factory=set)
    """Who has not come, or gone, yet."""
    came: list[WorkerId] = field(default_factory=list)
    moves: set[object] = field(default_factory=set)
    """What is on its way to them."""
    migration: MoveBins | None = None
    """What is to be obeyed once its worker has come."""
    missed: str = ""
    """What could not be done of it, and why."""


class Rescaler:
    """Obeys `Rescale` commands, and migrations to workers that are not there yet.

    `slots` is how many workers fit, where that is known.
    """

    def __init__(
        self, controller: Controller, crew: WorkerPool, clock: Clock, slots: int | None
    ) -> None:
        self._controller, self._crew, self._clock = controller, crew, clock
        self._slots = slots
        self._next = len(crew.hands)
        self._asked: deque[tuple[Rescale | MoveBins, int]] = deque()
        self._change: Change | None = None
        self._unused: dict[WorkerId, Change] = {}
        """Who has come for a migration and got nothing so far, with what brought it."""

    # -- what is asked

    def ask(self, command: Rescale | MoveBins, offset: int) -> None:
        """A command has come; its turn comes once all work and those before it have ended."""
        self._asked.append((command, offset))

    def expect_fresh(self, id: str) -> None:
        """Raises Refused for the id of a command that is under way here, or waits for its turn."""
        under_way = set() if self._change is None else {self._change.id}
        if id in under_way | {command.id for command, _ in self._asked}:
            raise used_before(id)

    def awaits(self, command: MoveBins) -> bool:
        """Whether a migration has to wait for its worker: one that is yet to be started, by a
        number never used before, or that those before it wait for."""
        new = self._next <= command.worker < self._next + MOST_AHEAD
        coming = set() if self._change is None else self._change.coming
        return new or command.worker in coming | self._named | self._unused.keys()

    def expect(self, command: MoveBins) -> None:
        """Raises Refused where a migration cannot be obeyed once its worker has come."""
        self._controller.expect(command)
        self._expect_slots(len(self._crew.hands) + (command.worker >= self._next))

    def abort(self, id: str, by: str) -> list[Event]:
        """Give up a migration that waits for its worker, or for its turn: what is to be told of
        it, and nothing where none of that id does. A worker on its way to it comes, and goes again.
        Raises Refused."""
        for command, offset in self._waiting:
            if command.id == id:
                self._controller.use(by)
                if self._change is not None and self._change.migration is command:
                    self._change.migration = None
                else:
                    self._asked.remove((command, offset))
                why = f"command {by!r} has aborted it before it began"
                bins = [int(bin) for bin in command.bins]
                return [
                    CommandRejected(id=id, offset=offset, reason=why),
                    Aborted(id=id, by=by, ms=0.0, bins=0, bytes=0, unmoved=bins),
                ]
        return []

    # -- what is known

    @property
    def unbegun(self) -> set[int]:
        """Where the commands lie whose turn has not come."""
        return {offset for _, offset in self._asked}

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

    @property
    def _waiting(self) -> list[tuple[MoveBins, int]]:
        """The migrations that have not been obeyed, and where they lie."""
        found = [(one, offset) for one, offset in self._asked if isinstance(one, MoveBins)]
        if (change := self._change) is not None and change.migration is not None:
            found.append((change.migration, change.offset))
        return found

    @property
    def _named(self) -> set[WorkerId]:
        """The workers that they name."""
        return {command.worker for command, _ in self._waiting}

    # -- the steps

    def step(self) -> Iterator[Event]:
        """What can be done now; what is to be told of it."""
        if self._change is not None:
            yield from self._go_on(self._change)
        if self._change is None and self._crew.working and self._controller.ready:
            yield from self._take_turn()

    def note(self, event: EngineEvent) -> None:
        """Follow the engine's part of a change."""
        change = self._change
        match event:
            case Joined(worker=number) if change is not None:
                change.coming.discard(WorkerId(number))
                change.came.append(WorkerId(number))
            case LastMessage(worker):
                self._crew.release(worker)
            case Completed() | Aborted() | PartitionMoved() if change is not None:
                if event.id in change.moves:
                    change.moves.discard(event.id)
                    if not isinstance(event, PartitionMoved) and event.unmoved:
                        change.missed = "not all bins have moved, as the flow's sources have ended"

    def _take_turn(self) -> Iterator[Event]:
        """Begin the next change, where there is one."""
        if idle := self._unused.keys() - self._named:
            self._send_back(min(idle))
        elif self._asked:
            command, offset = self._asked.popleft()
            if isinstance(command, Rescale):
                yield from self._begin(command, offset)
            else:
                yield from self._hire(command, offset)

    def _begin(self, command: Rescale, offset: int) -> Iterator[Event]:
        members = sorted(self._crew.hands)
        more = command.workers - len(members)
        coming = [WorkerId(self._next + n) for n in range(more)]
        going = members[command.workers :]
        try:
            if coming:
                self._expect_slots(command.workers)
            if going:
                self._controller.leave(command.id, going, offset)
            else:
                self._controller.use(command.id)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        # Whoever asks for a number of workers counts all that there are.
        self._unused.clear()
        self._next += len(coming)
        self._crew.newcomers.launch(coming)
        then = self._share if coming else self._end
        self._change = Change(
            command.id, offset, self._clock.monotonic(), then, {*coming}, {*going}
        )
        yield Rescaling(
            id=command.id, offset=offset, workers=command.workers,
            joining=list(coming), leaving=list(going),
        )  # fmt: skip

    def _hire(self, command: MoveBins, offset: int) -> Iterator[Event]:
        """Start the worker that a migration names; where that number is used, obey it."""
        if command.worker < self._next:
            yield from self._obey(command, offset)
            return
        try:
            self.expect(command)
        except Refused as refusal:
            yield CommandRejected(id=command.id, offset=offset, reason=str(refusal))
            return
        self._next = command.worker + 1
        self._crew.newcomers.launch([command.worker])
        self._change = Change(
            command.id, offset, self._clock.monotonic(), self._migrate, {command.worker},
            migration=command,
        )  # fmt: skip
        yield Rescaling(
            id=command.id, offset=offset, workers=len(self._crew.hands) + 1,
            joining=[command.worker], leaving=[],
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
                self._controller.join(worker, change.id)
            except Refused as refusal:
                newcomers.give_up(worker, f"{member_name(worker)}: {refusal}", self._crew.hands)
            else:
                self._crew.enlist(worker)
        for worker, why in newcomers.lost():
            change.coming.discard(worker)
            yield JoinFailed(id=change.id, worker=worker, reason=why)
        for worker, counters in self._crew.gone():
            change.going.discard(worker)
            yield Left(id=change.id, worker=worker, counters=counters)
        if not (change.coming or change.going or change.moves):
            yield from change.then(change)

    # -- what follows once all have come, or gone

    def _share(self, change: Change) -> Iterable[Event]:
        """Those who have come get what is theirs."""
        change.then = self._end
        try:
            if change.came:
                change.moves |= self._controller.share(change.id, change.came, change.offset)
        except Refused as refusal:
            change.missed = f"the newcomers get no share: {refusal}"
        return ()

    def _migrate(self, change: Change) -> Iterable[Event]:
        """Obey a migration, unless it has been aborted, now that its worker has come or has not."""
        self._change = None
        self._unused |= dict.fromkeys(change.came, change)
        command, change.migration = change.migration, None
        return () if command is None else self._obey(command, change.offset)

    def _obey(self, command: MoveBins, offset: int) -> Iterable[Event]:
        try:
            self._controller.submit(command)
        except Refused as refusal:
            return (CommandRejected(id=command.id, offset=offset, reason=str(refusal)),)
        self._unused.pop(command.worker, None)
        return ()

    def _send_back(self, worker: WorkerId) -> None:
        """Have a worker go that nobody needs any more."""
        self._change = change = self._unused.pop(worker)
        change.then = self._end
        try:
            self._controller.leave(self._fresh(f"{change.id}/back"), [worker], change.offset)
        except Refused as refusal:
            change.missed = f"{member_name(worker)} stays, though nothing moves to it: {refusal}"
        else:
            change.going.add(worker)

    def _fresh(self, name: str) -> str:
        """An id that no command has had."""
        ids = self._controller.migrations.ids
        return next(id for id in (f"{name}-{n}" for n in count()) if id not in ids)

    def _end(self, change: Change) -> Iterable[Event]:
        self._change = None
        if change.missed:
            log.warning("rescale_fell_short", id=change.id, reason=change.missed)
        ms = round_ms(self._clock.monotonic() - change.began)
        workers = len(self._crew.hands)
        return (Rescaled(id=change.id, workers=workers, ms=ms, reason=change.missed),)
