"""Commands of a flow on their way from the control topic to the controller, and what becomes of
them on its way to the status topic.

Guarantees that every command on the control topic gets an answer, also one that has not ended when
a life of the flow does, and that a command is marked as dealt with only when all decisions up to it
are durable. Other records there are passed over. The mark lies in the journal (`Obeys`), which each
start reads and nothing expires from; the consumer group's offset only shows it to lag tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meander.app.driver.rescaler import Rescaler
from meander.app.recovery.decision_log import Journal
from meander.connectors.topics.control import ControlTopic
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import MoveBins, Refused
from meander.dataflow.control.decisions import Obeys
from meander.dataflow.coordinator.coordinator import Controller
from meander.dataflow.coordinator.events import EngineEvent, LastMessage
from meander.schemas import control
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import (
    Aborted,
    Accepted,
    CheckpointAccepted,
    Checkpointed,
    CheckpointFailed,
    CommandRejected,
    Completed,
    Event,
    Planned,
    Queued,
    Rescaled,
    Rescaling,
)

log = LineLogger(__name__)

PART = 5_000
"""Moves of bins in one event: a record of some 100 kB."""
LIFE_OVER = "the life of the flow in which it was obeyed has ended: give it again"


class Unended:
    """Commands that have been obeyed and have not ended, over all lives of a flow.

    >>> unended = Unended()
    >>> for event in Queued(id="m1", offset=3, after=[]), Queued(id="m2", offset=4, after=["m1"]):
    ...     unended.note(event)
    >>> [event.id for event in unended.end(4)], [event.id for event in unended.end(5)]
    (['m1'], [])
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self.place: int | None = None
        """The offset before which all commands have been dealt with; None before it is known."""

    def note(self, event: Event) -> None:
        """Follow what becomes of them."""
        match event:
            case Accepted() | Queued() | Rescaling() | CheckpointAccepted():
                self._offsets[event.id] = event.offset
            case Completed() | Aborted() | Rescaled() | Checkpointed() | CheckpointFailed():
                self._offsets.pop(event.id, None)
            case CommandRejected() if self._offsets.get(event.id) == event.offset:
                # The same id may have been given to another by mistake.
                del self._offsets[event.id]

    def end(self, begins: int) -> Iterator[Aborted]:
        """They have ended with the lives before one that takes up commands from an offset on."""
        ended, self._offsets = self._offsets, {}
        for id, offset in ended.items():
            if offset < begins:
                yield Aborted(id=id, by="", ms=0.0, bins=0, bytes=0, reason=LIFE_OVER)


@dataclass(slots=True)
class Open:
    """A command of the control topic that is not yet marked as dealt with."""

    offset: int
    decisions: int | None = None
    """How many had been taken when it was dealt with; None before."""

    def settled(self, durable: int) -> bool:
        """Whether all that it brought about is durable."""
        return self.decisions is not None and self.decisions <= durable


class CommandHandler:
    """Takes commands in, and tells what became of them."""

    def __init__(
        self,
        plan: Plan,
        topic: ControlTopic,
        journal: Journal,
        controller: Controller,
        rescaler: Rescaler,
        unended: Unended,
    ) -> None:
        self._unended = unended
        self._plan, self._rescaler = plan, rescaler
        self._topic, self._journal, self._controller = topic, journal, controller
        self._open: deque[Open] = deque()
        self._stop: control.Stop | None = None
        """What ends the flow once its savepoint is taken, if it asks for one."""
        self._saved = False
        self._noted: Callable[[], bool] = lambda: True
        """Whether the journal tells of all that is dealt with."""

    def take(self) -> Iterator[Event]:
        """Obey what has come; what was refused."""
        for raw in self._topic.poll():
            name = f"offset {raw.offset}"
            self._open.append(Open(raw.offset))
            if not control.meant(raw.value):
                log.debug("record_ignored", offset=raw.offset, reason="it is not a command")
                continue
            try:
                command = control.parse_command(raw.value, self._plan.flow.space.count)
                name = command.id
                self._rescaler.expect_fresh(name)
                yield from self._obey(command, raw.offset)
            except control.Rejected as refusal:
                name = refusal.command or name
                yield CommandRejected(id=name, offset=raw.offset, reason=str(refusal))
            except Refused as refusal:
                yield CommandRejected(id=name, offset=raw.offset, reason=str(refusal))
        yield from self._rescaler.step()
        self._settle()

    def _obey(self, command: control.Command, offset: int) -> Iterator[Event]:
        """Do what a command asks for, or have it wait for its turn. Raises Refused."""
        match command:
            case control.Rescale():
                self._rescaler.ask(command, offset)
            case control.Abort(id=by, command=other):
                waited = self._rescaler.abort(other, by)
                if not waited:
                    self._controller.abort(other, by)
                yield from waited
            case control.TakeCheckpoint(id=name, policy=policy, savepoint=savepoint):
                self._controller.checkpoint(name, policy, savepoint or "")
                yield CheckpointAccepted(id=name, offset=offset)
            case control.Stop(id=name, savepoint=savepoint):
                if savepoint:
                    self._controller.checkpoint(name, savepoint=savepoint)
                    yield CheckpointAccepted(id=name, offset=offset)
                self._stop, self._saved = command, savepoint is None
            case control.Migrate():
                asked = MoveBins.asked(command, self._plan.flow.space, offset)
                if command.dry_run:
                    yield from self._planned(asked, offset)
                elif self._rescaler.awaits(asked):
                    self._rescaler.ask(asked, offset)
                else:
                    self._controller.submit(asked)

    def _settle(self) -> None:
        """Mark what is dealt with: all that waits for no turn, once it is durable."""
        unbegun = self._rescaler.unbegun
        for dealt in self._open:
            if dealt.decisions is None and dealt.offset not in unbegun:
                dealt.decisions = self._journal.begun
        dealt_with = None
        while self._open and self._open[0].settled(self._journal.durable):
            dealt_with = self._open.popleft().offset
        if dealt_with is not None:
            self._unended.place = dealt_with + 1
            self._noted = self._journal(Obeys(dealt_with + 1))
            self._topic.done(dealt_with)

    @property
    def stopped(self) -> bool:
        """Whether the flow is to end: a later life does not find what has ended it."""
        ends = self._stop is not None and self._saved and not self._open
        return ends and self._noted()

    def happened(self) -> Iterator[Event]:
        """What became of commands since the last call."""
        for event in self._controller.events():
            yield from self.follow(event)

    def follow(self, event: EngineEvent) -> Iterator[Event]:
        """Follow an event of the engine; yield it where it is one of the status topic."""
        self._rescaler.note(event)
        self._note_savepoint(event)
        if not isinstance(event, LastMessage):
            yield event

    def _note_savepoint(self, event: EngineEvent) -> None:
        """The flow ends once it is taken, and goes on if it cannot be."""
        if self._stop is None:
            return
        match event:
            case Checkpointed(id=id) if id == self._stop.id:
                self._saved = True
            case CheckpointFailed(id=id) if id == self._stop.id:
                self._stop = None

    def _planned(self, command: MoveBins, offset: int) -> Iterator[Event]:
        """What a command would do, in parts that fit into a record each. Raises Refused."""
        if self._rescaler.awaits(command):
            self._rescaler.expect(command)
            plan = self._controller.migrations.plan(command)
        else:
            plan = self._controller.plan(command)
        moves = [
            (n, int(way.bin), int(way.source), int(way.target), plan.bytes(way.bin))
            for n, round in enumerate(plan.rounds)
            for way in round
        ]
        for first in range(0, max(1, len(moves)), PART):
            part = moves[first : first + PART]
            yield Planned(
                id=command.id, offset=offset, moves=part, rounds=len(plan.rounds),
                estimate=plan.seconds, last=first + PART >= len(moves),
            )  # fmt: skip
