"""Reconfigurations at the coordinator: the parts of a change of plan take effect at one time.

Prepare, decide, end (Trisk, 3.2). Guarantees that a reconfiguration holds as a whole or not at all:
each bin is pre-copied and each version of logic is loaded before one record decides all parts, for
one logical time. A failure before leaves the old plan in force; from the decision on it goes
forward only. Invariant: one reconfiguration is under way at a time. Only the workers and operators
that it names take part; the others never wait. Cost: that of its parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meander.dataflow.control.command import MoveBins, Reconfigure, SwitchLogic, bins_id
from meander.dataflow.control.decisions import (
    JointDecision,
    LogicDecision,
    PendingDecisions,
    WorkersPlan,
)
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.coordinator.events import EngineEvent, NotDecided
from meander.dataflow.coordinator.logic_changes import LogicChanges
from meander.dataflow.coordinator.partition_assignment import PartitionAssignment
from meander.dataflow.interfaces import Clock
from meander.dataflow.migration.events import round_ms
from meander.dataflow.migration.scheduler import MigrationScheduler
from meander.dataflow.progress.capability import Capability
from meander.schemas.control import CommandError
from meander.schemas.status import PlanInForce
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis


@dataclass(slots=True)
class RunningReconfiguration:
    """A reconfiguration under way."""

    command: Reconfigure
    started_at: float
    time: int | None = None
    """The time of the decision, once it is taken."""
    decided_at: float = 0.0
    advance_request: Capability | None = None


class Reconfigurations:
    """The reconfigurations of a flow, one after another."""

    def __init__(
        self,
        migrations: MigrationScheduler,
        logics: LogicChanges,
        assignment: PartitionAssignment,
        decisions: PendingDecisions,
        clock: Clock,
        request_advance: Callable[[int], Capability],
        plan_after: Callable[[Reconfigure, int], WorkersPlan],
    ) -> None:
        """`plan_after` returns what a reconfiguration at a time makes of the workers."""
        self._migrations, self._logics, self._assignment = migrations, logics, assignment
        self._decisions, self._clock = decisions, clock
        self._request_advance, self._plan_after = request_advance, plan_after
        self._queue = deque[Reconfigure]()
        self._running: RunningReconfiguration | None = None
        self._events: list[EngineEvent] = []

    # -- commands

    def submit(self, command: Reconfigure) -> None:
        """Queue a checked command."""
        self._queue.append(command)

    def cancel(self, id: str, by: str) -> None:
        """End one of the `undecided` reconfigurations."""
        reason = f"command {by!r} has aborted it"
        if self._running is not None and self._running.command.id == id:
            self._roll_back(self._running, reason)
            return
        queued = next(command for command in self._queue if command.id == id)
        self._queue.remove(queued)
        self._report_not_decided(queued, reason)

    # -- the steps of a turn

    def step(
        self,
        closed_before: int | None,
        check: Callable[[Reconfigure], None],
        acknowledged: Callable[[int], bool],
        ended: bool,
    ) -> None:
        """Start the next reconfiguration, decide one that is prepared, or end one that is complete.

        `ended` tells whether the sources have ended, so no later time comes. `check` raises
        `CommandError` where a command has become invalid in the queue; `acknowledged` returns
        whether every worker has received all decisions for a time.
        """
        if self._running is None and self._queue:
            self._start(self._queue.popleft(), closed_before, check)
        elif (running := self._running) is not None:
            if running.time is not None:
                self._end(running, acknowledged)
            elif reason := self._failure(running, closed_before, ended):
                self._roll_back(running, reason)
            elif closed_before is not None and self._may_decide(running.command, closed_before):
                self._decide(running, closed_before)

    def _start(
        self,
        command: Reconfigure,
        closed_before: int | None,
        check: Callable[[Reconfigure], None],
    ) -> None:
        try:
            check(command)
        except CommandError as error:
            self._report_not_decided(command, str(error))
            return
        assert closed_before is not None, "the check rejects a command behind the sources' end"
        self._running = RunningReconfiguration(command, self._clock.monotonic())
        for part in moves_of(command):
            self._migrations.submit(part, closed_before)
        if command.logic:
            self._logics.submit(
                SwitchLogic(command.id, command.logic, command.time, command.offset, command.id)
            )

    def _may_decide(self, command: Reconfigure, closed_before: int) -> bool:
        """Return whether all is prepared, and the named time is the next that is not closed.

        A decision for a later time would bind the bins until then, over a restart too.
        """
        is_early = command.time is not None and not self._is_due(command, closed_before)
        return not is_early and self._is_prepared(command)

    def _is_due(self, command: Reconfigure, closed_before: int) -> bool:
        return command.time is not None and command.time <= closed_before

    def _is_prepared(self, command: Reconfigure) -> bool:
        id = command.id
        in_transfer = any(map(self._assignment.in_transfer, command.partitions))
        prepared = self._migrations.is_prepared(id) and self._logics.is_prepared(id)
        return prepared and not in_transfer

    def _failure(
        self, running: RunningReconfiguration, closed_before: int | None, ended: bool
    ) -> str:
        """Return why a reconfiguration cannot be decided any more, or ''."""
        command = running.command
        if reason := self._logics.failures.get(command.id):
            return reason
        if closed_before is None:
            return "the flow's sources have ended before all was prepared"
        if command.time is not None and ended and not self._is_due(command, closed_before):
            return f"the flow's sources have ended before time {to_millis(command.time)} ms"
        if self._is_prepared(command):
            return self._conflict(command, closed_before)
        if self._is_due(command, closed_before):
            assert command.time is not None
            return (
                f"time {to_millis(command.time)} ms came before all was prepared: name a later"
                " time, or leave it out for as soon as possible"
            )
        if (seconds := self._clock.monotonic() - running.started_at) > command.seconds:
            return (
                f"it was not prepared within {seconds:.0f} seconds: look at what holds it up with"
                " meander status, or give it more time"
            )
        return ""

    def _conflict(self, command: Reconfigure, closed_before: int) -> str:
        """Return why a prepared reconfiguration cannot be decided for the time that it names."""
        if not self._is_due(command, closed_before):
            return ""
        if self._decision_time(command, closed_before) == command.time:
            return ""
        return (
            f"another command changes a part of it at {to_millis(closed_before)} ms: name another"
            " time"
        )

    def _decision_time(self, command: Reconfigure, closed_before: int) -> int:
        """Return the first time at which no other command changes a part."""
        time = closed_before if command.time is None else command.time
        time = max(time, self._logics.last_time(command.logic) + 1)
        return self._migrations.free_time(command.id, time)

    def _decide(self, running: RunningReconfiguration, closed_before: int) -> None:
        """Decide all parts for one time, by one record."""
        command, id = running.command, running.command.id
        time = running.time = self._decision_time(command, closed_before)
        running.decided_at = self._clock.monotonic()
        if command.time is None:
            running.advance_request = self._request_advance(time)
        decision = JointDecision(id, command.offset, self._plan_after(command, time), time=time)
        with self._decisions.together(decision):
            self._migrations.start_prepared(id, time, closed_before)
            self._logics.decide_prepared(id, time, closed_before)
            for (source, partition), worker in command.partitions.items():
                place = self._assignment.place(source, partition)
                self._assignment.start(transfer_id(id, source, partition), place, worker, time)

    def _end(self, running: RunningReconfiguration, acknowledged: Callable[[int], bool]) -> None:
        command, time = running.command, running.time
        assert time is not None
        ids = {
            *(part.id for part in moves_of(command)),
            *(transfer_id(command.id, *place) for place in command.partitions),
        }
        moving = {one.command.id for one in self._migrations.commands} | self._assignment.running
        if not acknowledged(time) or not ids.isdisjoint(moving):
            return
        if running.advance_request is not None:
            running.advance_request.drop()
        self._running = None
        now = self._clock.monotonic()
        durations = running.decided_at - running.started_at, now - running.decided_at
        self._events.append(
            plan_event(command.id, time, self._changed_versions(command), *map(round_ms, durations))
        )

    def _roll_back(self, running: RunningReconfiguration, reason: str) -> None:
        """Leave the old plan in force."""
        self._migrations.cancel(running.command.id)
        self._logics.cancel(running.command.id)
        self._running = None
        self._report_not_decided(running.command, reason)

    def _report_not_decided(self, command: Reconfigure, reason: str) -> None:
        self._events.append(NotDecided(id=command.id, reason=reason))

    # -- queries

    @property
    def idle(self) -> bool:
        """Whether no reconfiguration is queued or under way."""
        return self._running is None and not self._queue

    @property
    def waiting(self) -> bool:
        """Whether a reconfiguration without a named time waits for its decision."""
        running = self._running
        undecided = running is not None and running.time is None and running.command.time is None
        return bool(self._queue) or undecided

    @property
    def awaits_time(self) -> bool:
        """Whether a reconfiguration is prepared and only waits for the time that it names."""
        running = self._running
        if running is None or running.time is not None or running.command.time is None:
            return False
        return self._is_prepared(running.command)

    @property
    def requested(self) -> list[int]:
        """The times to which sources advance for a reconfiguration."""
        running = self._running
        if running is None or running.advance_request is None or running.time is None:
            return []
        return [running.time]

    @property
    def undecided(self) -> list[str]:
        """The ids of the reconfigurations that are not decided."""
        running = self._running
        preparing = [] if running is None or running.time is not None else [running.command.id]
        return [*preparing, *(command.id for command in self._queue)]

    def decided(self, id: str) -> PlanInForce | None:
        """Return the event of a decided reconfiguration that not all workers have applied, or
        None."""
        running = self._running
        if running is None or running.command.id != id or running.time is None:
            return None
        return plan_event(id, running.time, self._changed_versions(running.command))

    def _changed_versions(self, command: Reconfigure) -> dict[str, LogicVersion]:
        return {operator: self._logics.version(operator) for operator in command.logic}

    @property
    def held_time(self) -> int | None:
        """The time that a reconfiguration names, which stays open until it is decided."""
        running = self._running
        return None if running is None or running.time is not None else running.command.time

    def awaits_receipt(self, acknowledged: Callable[[int], bool]) -> bool:
        """Return whether some worker may not have received a decided reconfiguration."""
        running = self._running
        if running is None or running.time is None:
            return False
        return not acknowledged(running.time)

    def targets(self) -> set[WorkerId]:
        """Return the workers that get a bin or a partition by a reconfiguration."""
        commands = [*self._queue, *([] if self._running is None else [self._running.command])]
        found = {worker for command in commands for worker in command.partitions.values()}
        return found.union(*(its.values() for command in commands for its in command.bins.values()))

    def events(self) -> list[EngineEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def moves_of(command: Reconfigure) -> list[MoveBins]:
    """Return the commands that move the bins of a reconfiguration, one per group."""
    return [
        MoveBins(
            bins_id(command.id, group),
            tuple(targets),
            next(iter(targets.values())),
            strategy="all-at-once",
            operator=group,
            others=targets,
            offset=command.offset,
            part_of=command.id,
        )
        for group, targets in command.bins.items()
        if targets
    ]


def restored_event(decision: JointDecision) -> PlanInForce:
    """Return the event of a decision that a restart has brought into force."""
    logic = (part for part in decision.parts if isinstance(part, LogicDecision))
    versions = {change.operator: change.version for part in logic for change in part.changes}
    return plan_event(decision.id, decision.time, versions)


def plan_event(
    id: str,
    time: int,
    versions: Mapping[str, LogicVersion],
    prepare_ms: float | None = None,
    synchronise_ms: float | None = None,
) -> PlanInForce:
    """Return the event of a plan in force, with the new versions of operators."""
    words = {operator: str(version) for operator, version in versions.items()}
    return PlanInForce(
        id=id, time=to_millis(time), at=time, versions=words,
        prepare_ms=prepare_ms, synchronise_ms=synchronise_ms,
    )  # fmt: skip


def transfer_id(id: str, source: str, partition: int) -> str:
    """Return the id of the transfer of a partition by a reconfiguration."""
    return f"{id}/{source}.{partition}"
