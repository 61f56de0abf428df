"""The command handler: it reads the control topic, submits commands and reports their outcome.

Guarantees that every command on the control topic gets an answer, even if the execution ends before
the command does. No execution handles a command again that has had its final answer. A command
counts as done once it waits for no turn and all decisions up to it are durable. The decision log
says which commands are done (`CommandsDoneDecision`). A driver may die between an answer and that
decision, so the next driver also reads the answers on the status topic. The offset of the consumer
group only shows the first command that is not done to lag tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from meander.app.loading.flow_code import FlowCode
from meander.app.recovery.decision_log import DecisionLog
from meander.connectors.topics.control import ControlTopic
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import MoveBins, SwitchLogic
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.events import EngineEvent, LastMessage, NotDecided
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.schemas import control
from meander.schemas.errors import SetupError
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
    LogicAccepted,
    LogicChanged,
    PlanCompared,
    Planned,
    Queued,
    Reconfigured,
    Reconfiguring,
    Rescaled,
    Rescaling,
    RolledBack,
)

log = LineLogger(__name__)

MOVES_PER_EVENT = 5_000
"""The limit of bin moves in one event, which makes a record of about 100 kB."""
EXECUTION_ENDED = "the execution that handled the command has ended; send it again"
FLOW_ENDED = "the flow has ended; send it again once the flow runs"


class OpenCommands:
    """A record of the commands that were started and have not ended, over all executions.

    >>> commands = OpenCommands()
    >>> for event in Queued(id="m1", offset=3, after=[]), Queued(id="m2", offset=4, after=["m1"]):
    ...     commands.note(event)
    >>> commands.advance(CommandsDoneDecision(4))
    >>> [event.id for event in commands.end("why")], [event.id for event in commands.end("why")]
    (['m1'], [])
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._logic = set[str]()
        self.begun: dict[int, Sequence[int]] = {}
        """The workers that an execution had as it began a plan that has not ended, by its offset:
        its command names those, also in later executions."""
        self.done: CommandsDoneDecision | None = None
        """The commands that are done; None before they are known."""
        self.answered: set[int] = set()
        """The offsets of commands that have had their final answers, besides those of `done`."""

    def advance(self, done: CommandsDoneDecision) -> None:
        """Note which commands are done."""
        self.done = done
        self.answered = {offset for offset in self.answered if not done.covers(offset)}

    def note(self, event: Event) -> None:
        """Note an event that starts or ends a command."""
        match event:
            case (
                Accepted()
                | Queued()
                | Rescaling()
                | Reconfiguring()
                | CheckpointAccepted()
                | LogicAccepted()
            ):
                self._offsets[event.id] = event.offset
                if isinstance(event, LogicAccepted):
                    self._logic.add(event.id)
                if isinstance(event, Reconfiguring):
                    self.begun.setdefault(event.offset, event.members)
            case Completed() | Rescaled() | Checkpointed() | CheckpointFailed() | LogicChanged():
                self._end(event.id)
            case Reconfigured() | RolledBack() | PlanCompared():
                self._end(event.id, event.offset)
            case Aborted() | CommandRejected():
                self._end(event.id, event.offset)
            case Planned(last=True):
                self._end(event.id, event.offset)

    @property
    def logic(self) -> set[str]:
        """The ids of commands that change logic."""
        return {*self._logic}

    def end(self, reason: str, waiting: Mapping[str, int] | None = None) -> Iterator[Aborted]:
        """End all commands that are done, with those that wait for their turn; yield an event for
        each.

        A later execution handles the other commands again.
        """
        waiting = waiting or {}
        ended, self._offsets = {**self._offsets, **waiting}, {}
        for id, offset in ended.items():
            if self.done is not None and self.done.covers(offset):
                if id in self._logic and id not in waiting:
                    # Its decision holds for the next execution too.
                    self._offsets[id] = offset
                    continue
                self._logic.discard(id)
                yield Aborted(id=id, by="", reason=reason, offset=offset)

    def _end(self, id: str, offset: int | None = None) -> None:
        """Note the final answer to the command of an id, or to another one at an offset."""
        started = self._offsets.get(id)
        offset = started if offset is None else offset
        # A user may have given another command the same id by mistake.
        if started == offset:
            self._offsets.pop(id, None)
            self._logic.discard(id)
        # A rescale continues when a migration of its bins ends, which has the same offset.
        if offset is None or offset in self._offsets.values():
            return
        self.begun.pop(offset, None)
        if self.done is None or not self.done.covers(offset):
            self.answered.add(offset)


@dataclass(frozen=True, slots=True)
class AwaitingFiles:
    """A command that waits for files of the flow's code."""

    id: str
    offset: int
    submit: Callable[[], None]


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
        code: FlowCode,
        has_all_files: Callable[[], bool],
    ) -> None:
        """`has_all_files` returns whether each worker has all files of the flow's code."""
        self._commands, self._code, self._has_all_files = commands, code, has_all_files
        self._awaiting_files: list[AwaitingFiles] = []
        self._plan, self._rescaler = plan, rescaler
        self._topic, self._decision_log, self._controller = topic, decision_log, coordinator
        self._done = commands.done or CommandsDoneDecision(0)
        coordinator.logics.resume(commands.logic)
        rescaler.resume(commands.begun)
        self._unread = {*self._done.pending}
        """The offsets of commands that an earlier execution has left, and that come again."""
        self._pending: dict[int, int | None] = {}
        """The offsets of commands that are not done, with the number of decisions when each was
        handled; None before."""
        self._stop: control.Stop | None = None
        """The command that ends the flow, after its savepoint if it asks for one."""
        self._stop_offset = 0
        self._saved = False
        self._logged: Callable[[], bool] = lambda: True
        """Whether the decision log says which commands are done."""

    def poll(self) -> Iterator[Event]:
        """Handle new commands; yield events, such as rejections."""
        for raw in self._topic.poll():
            if self._done.covers(raw.offset):
                continue
            name = f"offset {raw.offset}"
            self._unread = {offset for offset in self._unread if offset > raw.offset}
            self._pending[raw.offset] = None
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
        yield from self._submit_with_files()
        self._note_handled()

    def _submit_with_files(self) -> Iterator[Event]:
        """Submit commands once all workers have the files that came before them."""
        if not (self._awaiting_files and self._has_all_files()):
            return
        awaiting, self._awaiting_files = self._awaiting_files, []
        for one in awaiting:
            try:
                one.submit()
            except control.CommandError as error:
                yield CommandRejected(id=one.id, offset=one.offset, reason=str(error))

    def _handle(self, command: control.Command, offset: int) -> Iterator[Event]:
        """Start a command, or let it wait for its turn. Raises CommandError."""
        match command:
            case control.Rescale():
                self._rescaler.enqueue(command, offset)
            case control.ApplyPlan(dry_run=True):
                yield self._rescaler.compare(command, offset)
            case control.ApplyPlan():
                self._await_files(command, offset, partial(self._rescaler.enqueue, command, offset))
            case control.Abort(id=by, command=other):
                yield from self._abort(other, by)
            case control.RequestCheckpoint(id=name, policy=policy, savepoint=savepoint):
                self._controller.checkpoint(name, policy, savepoint or "")
                yield CheckpointAccepted(id=name, offset=offset)
            case control.Stop():
                yield from self._start_stop(command, offset)
            case control.ChangeLogic():
                change = SwitchLogic.from_command(command, offset)
                submit = partial(self._rescaler.change_logic, change)
                self._await_files(command, offset, submit)
            case control.Migrate():
                moves = MoveBins.from_command(command, self._plan.flow.space, offset)
                if command.dry_run:
                    yield from self._planned(moves, offset)
                else:
                    self._rescaler.migrate(moves)

    def _start_stop(self, command: control.Stop, offset: int) -> Iterator[Event]:
        """End the flow, after its savepoint if the command asks for one. Raises CommandError."""
        if command.savepoint:
            self._controller.checkpoint(command.id, savepoint=command.savepoint)
            yield CheckpointAccepted(id=command.id, offset=offset)
        self._stop, self._saved = command, command.savepoint is None
        self._stop_offset = offset

    def _await_files(
        self, command: control.Command, offset: int, submit: Callable[[], None]
    ) -> None:
        """Submit a command once all workers have the files that came beside the flow's module.

        Raises CommandError where a file cannot be sent.
        """
        try:
            self._code.add_new_files()
        except SetupError as error:
            raise control.CommandError(str(error)) from error
        self._awaiting_files.append(AwaitingFiles(command.id, offset, submit))

    def _abort(self, id: str, by: str) -> Sequence[Event]:
        """End a command, which may wait for files yet. Raises CommandError where it cannot end, or
        the id of the abort is in use."""
        for one in self._awaiting_files:
            if one.id == id:
                self._controller.use(by)
                self._awaiting_files.remove(one)
                why = f"command {by!r} has aborted it before it began"
                return [
                    Aborted(
                        id=id, by=by, ms=0.0, bins=0, bytes=0, unmoved=[], reason=why,
                        offset=one.offset,
                    )
                ]  # fmt: skip
        return self._rescaler.abort(id, by)

    def _note_handled(self) -> None:
        """Log the commands that wait for no turn and whose decisions are durable."""
        queued = self._queued
        for offset, decisions in self._pending.items():
            if decisions is None and offset not in queued:
                self._pending[offset] = self._decision_log.started
        durable = self._decision_log.durable
        self._log_done(
            offset
            for offset, decisions in self._pending.items()
            if decisions is not None and decisions <= durable
        )

    @property
    def _queued(self) -> dict[int, str]:
        """The offsets of commands that wait for their turn, or for a decision, with their ids."""
        awaiting = {one.offset: one.id for one in self._awaiting_files}
        return self._rescaler.queued | self._controller.logics.undecided | awaiting

    def _log_done(self, done: Iterable[int]) -> None:
        """Start to write that commands are done."""
        ended = {*done}
        if not ended:
            return
        self._pending = {n: one for n, one in self._pending.items() if n not in ended}
        end = max(self._done.offset, max(ended) + 1)
        open = sorted(offset for offset in (*self._unread, *self._pending) if offset < end)
        self._done = CommandsDoneDecision(end, tuple(open))
        self._commands.advance(self._done)
        self._logged = self._decision_log(self._done)
        self._topic.commit(self._done.first)

    @property
    def stopped(self) -> bool:
        """Whether the flow ends. No later execution finds the command that ended it."""
        ends = self._stop is not None and self._saved and self._stop_offset not in self._pending
        return ends and self._logged()

    def end(self, flush: Callable[[], None]) -> Iterator[Event]:
        """End all commands as the flow ends; yield the last events about them.

        `flush` waits until the decision log is durable, because the next execution would handle
        queued commands again.
        """
        yield from self.events()
        decided = self._rescaler.end_decided()
        queued = {id: offset for offset, id in self._queued.items()}
        self._log_done([*self._pending])
        flush()
        yield from decided
        yield from self._commands.end(FLOW_ENDED, queued)

    def events(self) -> Iterator[Event]:
        """Yield the engine's events since the last call, as events of the status topic."""
        for event in self._controller.events():
            yield from self.follow(event)

    def follow(self, event: EngineEvent) -> Iterator[Event]:
        """Note an event of the engine; yield it where it is one of the status topic."""
        self._rescaler.note(event)
        self._note_savepoint(event)
        if not isinstance(event, LastMessage | NotDecided):
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
