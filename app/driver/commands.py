"""The command handler: it reads the control topic, submits commands and reports their outcome.

Guarantees that every command on the control topic gets an answer, even if the execution ends before
the command does. A command counts as handled only once all decisions up to it are durable. The
handler skips records that are no commands. The decision log holds the handled offset
(`CommandsDoneDecision`), which each start reads. The offset of the consumer group only shows it to
lag tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meander.app.recovery.decision_log import DecisionLog
from meander.connectors.topics.control import ControlTopic
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.events import EngineEvent, LastMessage
from meander.dataflow.coordinator.rescaler import Rescaler
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

MOVES_PER_EVENT = 5_000
"""The limit of bin moves in one event, which makes a record of about 100 kB."""
EXECUTION_ENDED = "the execution that handled the command has ended; send it again"


class OpenCommands:
    """A record of the commands that were started and have not ended, over all executions.

    >>> commands = OpenCommands()
    >>> for event in Queued(id="m1", offset=3, after=[]), Queued(id="m2", offset=4, after=["m1"]):
    ...     commands.note(event)
    >>> [event.id for event in commands.end(4)], [event.id for event in commands.end(5)]
    (['m1'], [])
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self.handled: int | None = None
        """The offset before which all commands have been handled; None before it is known."""

    def note(self, event: Event) -> None:
        """Note an event that starts or ends a command."""
        match event:
            case Accepted() | Queued() | Rescaling() | CheckpointAccepted():
                self._offsets[event.id] = event.offset
            case Completed() | Aborted() | Rescaled() | Checkpointed() | CheckpointFailed():
                self._offsets.pop(event.id, None)
            case CommandRejected() if self._offsets.get(event.id) == event.offset:
                # A user may have given another command the same id by mistake.
                del self._offsets[event.id]

    def end(self, resumed: int) -> Iterator[Aborted]:
        """End all commands of earlier executions; yield an event for each.

        A new execution handles commands from the offset `resumed` on again.
        """
        ended, self._offsets = self._offsets, {}
        for id, offset in ended.items():
            if offset < resumed:
                yield Aborted(id=id, by="", ms=0.0, bins=0, bytes=0, reason=EXECUTION_ENDED)


@dataclass(slots=True)
class PendingCommand:
    """A record of the control topic that does not count as handled yet."""

    offset: int
    decisions: int | None = None
    """The number of decisions when it was handled; None before."""

    def is_durable(self, durable: int) -> bool:
        """Return whether all its decisions are durable, given the number of durable ones."""
        return self.decisions is not None and self.decisions <= durable


class CommandHandler:
    """A handler that starts commands, and yields events about them."""

    def __init__(
        self,
        plan: Plan,
        topic: ControlTopic,
        decision_log: DecisionLog,
        coordinator: Coordinator,
        rescaler: Rescaler,
        commands: OpenCommands,
    ) -> None:
        self._commands = commands
        self._plan, self._rescaler = plan, rescaler
        self._topic, self._decision_log, self._controller = topic, decision_log, coordinator
        self._pending: deque[PendingCommand] = deque()
        self._stop: control.Stop | None = None
        """The command that ends the flow, after its savepoint if it asks for one."""
        self._saved = False
        self._logged: Callable[[], bool] = lambda: True
        """Whether the decision log holds the newest handled offset."""

    def poll(self) -> Iterator[Event]:
        """Handle new commands; yield events, such as rejections."""
        for raw in self._topic.poll():
            name = f"offset {raw.offset}"
            self._pending.append(PendingCommand(raw.offset))
            if not control.is_command(raw.value):
                log.debug("record_ignored", offset=raw.offset, reason="it is not a command")
                continue
            try:
                command = control.parse_command(raw.value, self._plan.flow.space.count)
                name = command.id
                self._rescaler.expect_fresh(name)
                yield from self._handle(command, raw.offset)
            except control.CommandError as error:
                name = error.command or name
                yield CommandRejected(id=name, offset=raw.offset, reason=str(error))
        yield from self._rescaler.step()
        self._note_handled()

    def _handle(self, command: control.Command, offset: int) -> Iterator[Event]:
        """Start a command, or let it wait for its turn. Raises CommandError."""
        match command:
            case control.Rescale():
                self._rescaler.enqueue(command, offset)
            case control.Abort(id=by, command=other):
                yield from self._rescaler.abort(other, by)
            case control.RequestCheckpoint(id=name, policy=policy, savepoint=savepoint):
                self._controller.checkpoint(name, policy, savepoint or "")
                yield CheckpointAccepted(id=name, offset=offset)
            case control.Stop(id=name, savepoint=savepoint):
                if savepoint:
                    self._controller.checkpoint(name, savepoint=savepoint)
                    yield CheckpointAccepted(id=name, offset=offset)
                self._stop, self._saved = command, savepoint is None
            case control.Migrate():
                moves = MoveBins.from_command(command, self._plan.flow.space, offset)
                if command.dry_run:
                    yield from self._planned(moves, offset)
                else:
                    self._rescaler.migrate(moves)

    def _note_handled(self) -> None:
        """Log the offset of the last command that waits for no turn and is durable."""
        queued = self._rescaler.queued
        for pending in self._pending:
            if pending.decisions is None and pending.offset not in queued:
                pending.decisions = self._decision_log.started
        handled = None
        while self._pending and self._pending[0].is_durable(self._decision_log.durable):
            handled = self._pending.popleft().offset
        if handled is not None:
            self._commands.handled = handled + 1
            self._logged = self._decision_log(CommandsDoneDecision(handled + 1))
            self._topic.commit(handled)

    @property
    def stopped(self) -> bool:
        """Whether the flow ends. No later execution finds the command that ended it."""
        ends = self._stop is not None and self._saved and not self._pending
        return ends and self._logged()

    def events(self) -> Iterator[Event]:
        """Yield the engine's events since the last call, as events of the status topic."""
        for event in self._controller.events():
            yield from self.follow(event)

    def follow(self, event: EngineEvent) -> Iterator[Event]:
        """Note an event of the engine; yield it where it is one of the status topic."""
        self._rescaler.note(event)
        self._note_savepoint(event)
        if not isinstance(event, LastMessage):
            yield event

    def _note_savepoint(self, event: EngineEvent) -> None:
        """End the flow once the savepoint is complete; let it continue if the savepoint failed."""
        if self._stop is None:
            return
        match event:
            case Checkpointed(id=id) if id == self._stop.id:
                self._saved = True
            case CheckpointFailed(id=id) if id == self._stop.id:
                self._stop = None

    def _planned(self, command: MoveBins, offset: int) -> Iterator[Event]:
        """Yield the planned moves of a command, in events that fit a record.

        Raises CommandError.
        """
        if self._rescaler.must_wait(command):
            self._rescaler.expect(command)
            plan = self._controller.migrations.plan(command)
        else:
            plan = self._controller.plan(command)
        moves = [
            (n, int(move.bin), int(move.source), int(move.target), plan.bytes(move.bin))
            for n, round in enumerate(plan.rounds)
            for move in round
        ]
        for first in range(0, max(1, len(moves)), MOVES_PER_EVENT):
            some = moves[first : first + MOVES_PER_EVENT]
            yield Planned(
                id=command.id, offset=offset, moves=some, rounds=len(plan.rounds),
                estimate=plan.seconds, last=first + MOVES_PER_EVENT >= len(moves),
            )  # fmt: skip
