"""Changes of logic at the coordinator: prepared on all workers, then decided at one logical time.

Guarantees that a version takes effect at the same time on every worker, or nowhere: the decision is
taken once each worker has loaded and checked it. A worker that joins meanwhile prepares it too.
Invariant: the changes of one operator have ascending times, so its states are upgraded in the order
of the decisions. Cost: one instruction and one report per worker and operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from meander.dataflow.control.command import SwitchLogic, id_in_use
from meander.dataflow.control.decisions import LogicDecision, PendingDecisions
from meander.dataflow.control.logic_change import (
    LogicChange,
    LogicUpdate,
    LogicVersion,
    PrepareLogic,
)
from meander.dataflow.control.reports import LogicPrepared
from meander.dataflow.interfaces import Clock
from meander.dataflow.migration.events import round_ms
from meander.dataflow.progress.capability import Capability
from meander.schemas.control import CommandError
from meander.schemas.status import CommandRejected, Event, LogicAccepted, LogicChanged
from meander.state.keys.ids import WorkerId, member_name
from meander.state.times.time import MIN_TIME, to_millis

ENDED = "the flow's sources have ended: send commands before that"
MAX_PARAMETERS = 64 << 10
"""The most characters of a version's parameters as JSON. The decision log and events hold them."""


@dataclass(slots=True)
class RunningChange:
    """A command that changes logic, under way."""

    command: SwitchLogic
    started_at: float
    preparations: dict[int, PrepareLogic]
    """What each worker has to load, by number."""
    awaited: set[tuple[int, WorkerId]] = field(default_factory=set)
    """The preparations that workers have not reported."""
    upgrading: set[int] = field(default_factory=set)
    """The preparations whose version upgrades the states of the operator."""
    error: str = ""
    time: int | None = None
    """The time of the decision, once it is taken."""
    advance_request: Capability | None = None

    @property
    def is_soon(self) -> bool:
        """Whether the next command waits: until the decision, and without a time until all workers
        know it."""
        is_timeless_part = bool(self.command.part_of) and self.command.time is None
        return self.time is None or self.advance_request is not None or is_timeless_part


class LogicChanges:
    """All changes of logic of a flow, in the order of their decisions."""

    def __init__(
        self,
        defined: Mapping[str, LogicVersion],
        earlier: Sequence[LogicChange],
        start: int,
        decisions: PendingDecisions,
        clock: Clock,
        send: Callable[[WorkerId, PrepareLogic], None],
        broadcast: Callable[[LogicChange], None],
        request_advance: Callable[[int], Capability],
        joint: Collection[str] = (),
    ) -> None:
        """`defined` are the versions in the definition of the flow; `earlier` the changes that
        earlier executions have decided. Those at `start` or later have not been reported, except
        the parts of the reconfigurations `joint`."""
        self._defined, self._decided = defined, list(earlier)
        self._decisions, self._clock, self._send = decisions, clock, send
        self._broadcast, self._request_advance = broadcast, request_advance
        self._restarted_at, self._numbers = start, count()
        self._queue = deque[SwitchLogic]()
        self._running: list[RunningChange] = []
        self._events: list[Event] = []
        self.failures: dict[str, str] = {}
        """Why parts of reconfigurations have failed, by their ids."""
        ahead = (one.command for one in earlier if one.time >= start and one.command)
        self.resume(dict.fromkeys(id for id in ahead if id not in joint))

    # -- commands

    def check(self, command: SwitchLogic, closed_before: int) -> None:
        """Raise `CommandError` where a command names an operator without a changeable logic, comes
        before a change that is decided, or has parameters that no record holds."""
        for operator, update in command.updates.items():
            if operator not in self._defined:
                known = ", ".join(map(repr, self._defined))
                raise CommandError(
                    f"operator {operator!r} has no logic that can change: "
                    + (f"name one of {known}" if known else "derive it from ChangeableLogic")
                )
            last = self._last(operator)
            if last is not None and (command.time or closed_before) <= last.time:
                raise CommandError(
                    f"the logic of operator {operator!r} changes at {to_millis(last.time)} ms by"
                    f" command {last.command!r}: name a later time"
                )
            _updated(operator, self.version(operator), update)

    def is_decided(self, command: SwitchLogic) -> bool:
        """Return whether an earlier execution has decided a command, which comes again where no
        record says that it is done. Raise `CommandError` where another command had its id."""
        offsets = {one.offset for one in self._decided if one.command == command.id}
        if offsets - {command.offset}:
            raise id_in_use(command.id)
        return bool(offsets)

    def submit(self, command: SwitchLogic) -> None:
        """Queue a checked command. The commands are prepared one after another."""
        if self.is_decided(command):
            self.resume([command.id])
        else:
            self._queue.append(command)
        self._report(command, LogicAccepted(command.id, command.offset, sorted(command.updates)))

    def _start(
        self, command: SwitchLogic, workers: Iterable[WorkerId], closed_before: int | None
    ) -> None:
        """Let all workers prepare the versions of a command."""
        try:
            self._check_again(command, closed_before)
        except CommandError as error:
            self._reject(command, str(error))
            return
        numbered = [(next(self._numbers), one) for one in command.updates.items()]
        preparations = {
            number: PrepareLogic(number, operator, before, _updated(operator, before, update))
            for number, (operator, update) in numbered
            for before in [self.version(operator)]
        }
        running = RunningChange(command, self._clock.monotonic(), preparations)
        self._running.append(running)
        for worker in workers:
            self._prepare(running, worker)

    def welcome(self, worker: WorkerId, closed_before: int) -> list[LogicChange]:
        """Return the changes that a joining worker needs; it also prepares those under way."""
        for running in self._running:
            if running.time is None:
                self._prepare(running, worker)
        self._forget_before(closed_before)
        return [*self._decided]

    # -- parts of reconfigurations

    def is_prepared(self, id: str) -> bool:
        """Return whether all workers have prepared the part of a reconfiguration, if it has one."""
        queued = any(command.part_of == id for command in self._queue)
        return not (queued or any(running.awaited for running in self._parts_of(id)))

    def decide_prepared(self, id: str, time: int, closed_before: int) -> None:
        """Decide that the part of a reconfiguration takes effect at a time."""
        self._forget_before(closed_before)
        for running in self._parts_of(id):
            self._take_effect(running, time)

    def cancel(self, id: str) -> None:
        """End the part of a reconfiguration that has not been decided."""
        self._queue = deque(command for command in self._queue if command.part_of != id)
        for running in self._parts_of(id):
            self._running.remove(running)
        self.failures.pop(id, None)

    def last_time(self, operators: Iterable[str]) -> int:
        """Return the time of the last decided change of some operators; `MIN_TIME` before any."""
        decided = (one.time for one in self._decided if one.operator in set(operators))
        return max(decided, default=MIN_TIME)

    def _parts_of(self, id: str) -> list[RunningChange]:
        return [one for one in self._running if one.command.part_of == id and one.time is None]

    def resume(self, ids: Iterable[str]) -> None:
        """Report the end of commands that an earlier execution has decided, once all workers know
        their changes."""
        wanted = {*ids} - {running.command.id for running in self._running}
        for id in dict.fromkeys(one.command for one in self._decided if one.command in wanted):
            changes = [one for one in self._decided if one.command == id]
            preparations = {
                n: PrepareLogic(n, one.operator, one.before, one.version)
                for n, one in enumerate(changes)
            }
            started_at, time = self._clock.monotonic(), changes[0].time
            self._running.append(
                RunningChange(SwitchLogic(id, {}), started_at, preparations, time=time)
            )

    def _check_again(self, command: SwitchLogic, closed_before: int | None) -> None:
        """Raise `CommandError` where a command has become invalid in the queue."""
        if closed_before is None:
            raise CommandError(ENDED)
        self.check(command, max(closed_before, self.soon + 1))

    def forget(self, worker: WorkerId) -> None:
        """Await nothing of a worker that has left."""
        for running in self._running:
            running.awaited = {one for one in running.awaited if one[1] != worker}

    def report(self, worker: WorkerId, report: LogicPrepared) -> None:
        """Note that a worker has prepared a version, or cannot."""
        for running in self._running:
            if report.number in running.preparations:
                running.awaited.discard((report.number, worker))
                one = running.preparations[report.number]
                version = LogicVersion(report.name, report.parameters)
                running.preparations[report.number] = replace(one, version=version)
                if report.upgrades:
                    running.upgrading.add(report.number)
                if report.error and not running.error:
                    running.error = f"{member_name(worker)}: {report.error}"

    # -- the steps of a turn

    def step(
        self,
        workers: Iterable[WorkerId],
        closed_before: int | None,
        acknowledged: Callable[[int], bool],
    ) -> None:
        """Decide prepared changes, report those that are in force everywhere, and start the next
        one.

        `acknowledged` returns whether every worker has received all decisions for a time.
        """
        if self._queue and not any(one.is_soon for one in self._running):
            self._start(self._queue.popleft(), workers, closed_before)
        for running in list(self._running):
            if running.time is None:
                self._decide(running, closed_before)
            elif acknowledged(running.time):
                self._end(running)

    def _decide(self, running: RunningChange, closed_before: int | None) -> None:
        command = running.command
        if closed_before is None:
            running.error = running.error or ENDED
        elif command.time is not None and command.time < closed_before:
            running.error = running.error or (
                f"time {to_millis(command.time)} ms was closed before all workers had loaded the"
                " logic: name a later time, or leave it out for as soon as possible"
            )
        if running.error:
            self._running.remove(running)
            self._reject(command, running.error)
        elif not (running.awaited or command.part_of):
            assert closed_before is not None
            self._forget_before(closed_before)
            last = self.last_time(command.updates)
            next_time = closed_before + 1 if last == closed_before else closed_before
            self._take_effect(running, command.time or next_time)

    def _reject(self, command: SwitchLogic, reason: str) -> None:
        if command.part_of:
            self.failures[command.part_of] = reason
        self._report(command, CommandRejected(command.id, command.offset, reason))

    def _report(self, command: SwitchLogic, event: Event) -> None:
        """Report an event of a command. A reconfiguration reports its parts itself."""
        if not command.part_of:
            self._events.append(event)

    def _take_effect(self, running: RunningChange, time: int) -> None:
        """Decide that the versions of a command take effect at a time."""
        running.time = time
        if running.command.time is None and not running.command.part_of:
            running.advance_request = self._request_advance(time)
        changes = [
            self._change(running, number, one) for number, one in running.preparations.items()
        ]
        self._decided += changes
        self._decisions.add(LogicDecision(tuple(changes)), partial(self._send_all, changes))

    def _change(self, running: RunningChange, number: int, one: PrepareLogic) -> LogicChange:
        assert running.time is not None
        last = self._last(one.operator)
        generation = 0 if last is None else last.generation
        generation += number in running.upgrading
        return LogicChange(
            running.command.id,
            one.operator,
            running.time,
            one.before,
            one.version,
            generation,
            running.command.offset,
        )

    def _send_all(self, changes: Iterable[LogicChange]) -> None:
        for change in changes:
            self._broadcast(change)

    def _end(self, running: RunningChange) -> None:
        self._running.remove(running)
        if running.advance_request is not None:
            running.advance_request.drop()
        assert running.time is not None
        command, seconds = running.command, self._clock.monotonic() - running.started_at
        versions = {one.operator: str(one.version) for one in running.preparations.values()}
        event = LogicChanged(
            id=command.id, time=to_millis(running.time), at=running.time,
            versions=versions, ms=round_ms(seconds),
        )  # fmt: skip
        self._report(command, event)

    # -- queries

    def version(self, operator: str) -> LogicVersion:
        """Return the last version of an operator that is decided."""
        last = self._last(operator)
        return self._defined[operator] if last is None else last.version

    @property
    def soon(self) -> int:
        """The last time of a change without a time of its own; later commands wait for it. A
        restart begins at the time of the change that it has completed, if there is one."""
        restored = max(
            (one.time for one in self._decided if one.time <= self._restarted_at), default=0
        )
        return max((one.time or 0 for one in self._running if one.is_soon), default=restored)

    @property
    def idle(self) -> bool:
        """Whether no change is under way."""
        return not (self._running or self._queue)

    @property
    def requested(self) -> list[int]:
        """The times to which sources advance for a change."""
        return [
            one.time
            for one in self._running
            if one.time is not None and one.advance_request is not None
        ]

    @property
    def waiting(self) -> bool:
        """Whether a change still waits for its time."""
        return bool(self._queue) or any(one.time is None for one in self._running)

    @property
    def undecided(self) -> dict[int, str]:
        """The offsets of commands that are not decided, with their ids."""
        preparing = (one.command for one in self._running if one.time is None)
        return {one.offset: one.id for one in (*self._queue, *preparing)}

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _prepare(self, running: RunningChange, worker: WorkerId) -> None:
        for number, preparation in running.preparations.items():
            running.awaited.add((number, worker))
            self._send(worker, preparation)

    def _last(self, operator: str) -> LogicChange | None:
        changes = [one for one in self._decided if one.operator == operator]
        return changes[-1] if changes else None

    def _forget_before(self, closed_before: int) -> None:
        """Forget the changes that neither records from `closed_before` on nor stored states
        need."""
        passed = {one.operator: one for one in self._decided if one.time < closed_before}
        upgrades = {
            (one.operator, one.generation): one for one in reversed(self._decided) if one.generation
        }
        needed = [*passed.values(), *upgrades.values()]
        self._decided = [
            one
            for one in self._decided
            if one.time >= closed_before or any(one is other for other in needed)
        ]


def _updated(operator: str, before: LogicVersion, update: LogicUpdate) -> LogicVersion:
    """Return the version that an update leads to. Raise `CommandError` where its parameters are
    no JSON, or too long."""
    try:
        version = update.of(before)
    except ValueError as error:  # JSON has large numbers that no float holds.
        raise CommandError(
            f"JSON cannot express the parameters of operator {operator!r} ({error}): give"
            " finite numbers"
        ) from None
    if (length := len(version.parameters)) > MAX_PARAMETERS:
        raise CommandError(
            f"the parameters of operator {operator!r} take {length:,} characters as JSON, and"
            f" may take {MAX_PARAMETERS:,}: have the class read the rest from a file"
        )
    return version
