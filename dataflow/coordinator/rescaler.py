"""The rescaler: commands that add workers to a running flow or remove them, one at a time.

A command for another plan adds workers, lets bins, partitions and logic change at one time, then
removes workers. Where it fails before that time, the workers that joined for it leave again.

Guarantees that each command is answered and ends. New workers start, join one by one, and get their
share of bins and partitions, or the bins that a migration names. The workers with the highest ids
leave: they give bins and partitions away, and their processes exit. No execution uses a worker id
twice, because keys on the state topic contain it. A worker that fails to join is reported, and the
command continues without it. A rescale also gives a share to a worker without bins, which a restart
may have left. A worker that joined for a migration and gets no bin leaves again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeVar

from meander.dataflow.control.command import MoveBins, SwitchLogic, id_in_use
from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.coordinator.cooldown import Cooldown
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.events import EngineEvent, LastMessage, NotDecided
from meander.dataflow.coordinator.plan_change import MAX_AHEAD, renumbered
from meander.dataflow.coordinator.plans import Plans
from meander.dataflow.coordinator.pool import RescalablePool
from meander.dataflow.coordinator.reconfigurations import restored_event
from meander.dataflow.coordinator.worker_change import KINDS, Change, Queueable
from meander.dataflow.interfaces import Clock
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.migration.events import round_ms
from meander.schemas.control import ApplyPlan, CommandError, Rescale
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
    PlanCompared,
    PlanInForce,
    Reconfigured,
    Reconfiguring,
    Rescaled,
    Rescaling,
    RolledBack,
)
from meander.state.keys.ids import WorkerId, member_name

C = TypeVar("C", MoveBins, SwitchLogic)
log = LineLogger(__name__)

MAX_QUEUED = 1000
"""The limit of queued commands, whose offsets share one record of the decision log."""


class Rescaler:
    """A handler of `Rescale` commands, and of migrations to workers that do not exist yet.

    `slots` is the number of slots of the master, where that is known. `plan_cooldown` is the time
    in seconds from one plan that comes into force to the start of the next.
    """

    def __init__(
        self, coordinator: Coordinator, pool: RescalablePool, clock: Clock, slots: int | None,
        plan_cooldown: float = 0.0,
    ) -> None:  # fmt: skip
        self._controller, self._pool, self._clock = coordinator, pool, clock
        self.plans = Plans(coordinator, pool, slots)
        self.next_id = len(pool.handles)
        """The id of the next new worker, unless a migration names a higher one."""
        self._queue: deque[tuple[Queueable, int]] = deque()
        self._cooldown = Cooldown(clock, plan_cooldown)
        self._change: Change | None = None
        self._unused: dict[WorkerId, Change] = {}
        """The workers that joined for a migration and got no bin yet, with that change."""
        self._begun: Mapping[int, Sequence[int]] = {}

    # -- commands

    def resume(self, begun: Mapping[int, Sequence[int]]) -> None:
        """Note the workers that the execution had which began a plan, by the offset of the plan.
        Its command names those."""
        self._begun = begun

    def migrate(self, command: MoveBins) -> None:
        """Submit a migration, or queue it where it has to wait for its worker or for a plan.

        Raises CommandError, also where a plan removes its worker.
        """
        self.expect_to_stay(command)
        if self.must_wait(command):
            self.enqueue(command, command.offset)
        else:
            self._submit(command)

    def expect_to_stay(self, command: MoveBins) -> None:
        """Raise CommandError where a worker of a migration may leave by a plan under way: the plan
        removes it, or it has joined for the plan, which may be rolled back yet."""
        change = self._change
        if change is None or change.plan is None:
            return
        targets = {command.worker, *command.others.values()}
        if leaving := targets.intersection(change.plan.leaving):
            raise CommandError(
                f"worker {min(leaving)} leaves by plan {change.id!r}: name another worker, or"
                " abort the plan"
            )
        joined = targets.intersection(change.joined)
        if joined and not change.decided and not self.must_wait(command):
            raise CommandError(
                f"worker {min(joined)} has joined for plan {change.id!r}, which is not decided:"
                " wait until the plan is in force, or name another worker"
            )

    def change_logic(self, command: SwitchLogic) -> None:
        """Submit a change of logic, or queue it where it has to wait for a plan.

        Raises CommandError.
        """
        if self.must_wait(command):
            self.enqueue(command, command.offset)
        else:
            self._controller.change_logic(command)

    def enqueue(self, command: Queueable, offset: int) -> None:
        """Queue a command. It starts once all workers run and earlier commands have ended.

        Raises CommandError.
        """
        if len(self._queue) >= MAX_QUEUED:
            raise CommandError(
                f"{MAX_QUEUED} commands wait for their turn: send it again once some have ended"
            )
        self._queue.append((command, offset))

    def expect_fresh(self, id: str) -> None:
        """Raise CommandError for the id of a command that is in progress or queued here."""
        in_progress = set() if self._change is None else {self._change.id}
        if id in in_progress | {command.id for command, _ in self._queue}:
            raise id_in_use(id)

    def compare(self, command: ApplyPlan, offset: int) -> PlanCompared:
        """Return the plan in force, and what a command would do to it. Raises CommandError."""
        return self.plans.compare(command, offset, self.next_id)

    def must_wait(self, command: MoveBins | SwitchLogic) -> bool:
        """Return whether a command has to wait until the worker that it names has joined, or until
        an earlier plan is being prepared.

        The worker is awaited where its id is unused, and where earlier commands wait for it.
        """
        change = self._change
        is_joining = change is not None and change.then == self._reconfigure
        if is_joining or any(isinstance(one, ApplyPlan) for one, _ in self._queue):
            return True
        if isinstance(command, SwitchLogic):
            return False
        new = self.next_id <= command.worker < self.next_id + MAX_AHEAD
        joining = set() if self._change is None else self._change.joining
        return new or command.worker in joining | self._awaited_workers | self._unused.keys()

    def expect(self, command: MoveBins) -> None:
        """Raise CommandError where a migration could not start once its worker has joined."""
        self._controller.expect(command)
        self.plans.expect_slots([ANYWHERE] * (command.worker >= self.next_id))

    def abort(self, id: str, by: str) -> list[Aborted]:
        """Abort a command; return the events about one that waits for its worker or its turn.

        A worker that joins for it leaves again. Raises CommandError, also for a rescale that has
        started.
        """
        waiting = self._waiting
        for command, offset in waiting:
            if command.id == id:
                self._controller.use(by)
                if self._change is not None and self._change.migration is command:
                    self._change.migration = None
                else:
                    self._queue.remove((command, offset))
                why = f"command {by!r} has aborted it before it began"
                bins = [int(bin) for bin in command.bins] if isinstance(command, MoveBins) else []
                return [
                    Aborted(
                        id=id, by=by, ms=0.0, bins=0, bytes=0, unmoved=bins, reason=why,
                        offset=offset,
                    )
                ]  # fmt: skip
        if (change := self._change) is not None and change.id == id:
            if self._abort_plan(change, by):
                return []
            if by in self._controller.migrations.ids:
                raise id_in_use(by)
            if change.plan is not None:
                raise CommandError(
                    f"plan {id!r} is decided or has been rolled back, so it has to complete: wait"
                    " for its end, then apply the plan that you want"
                )
            raise CommandError(
                f"command {id!r} has started to change the workers, so it has to complete: wait for"
                " its end, then send meander rescale with the number of workers that you want"
            )
        self._controller.abort(id, by, [command.id for command, _ in waiting])
        return []

    # -- state

    @property
    def starting(self) -> bool:
        """Whether a command waits until the flow is ready, or until workers have joined."""
        return bool(self._queue) if self._change is None else bool(self._change.joining)

    @property
    def idle(self) -> bool:
        """Whether no command is in progress or queued, and all workers run."""
        return self._change is None and not self._queue and self._pool.working

    @property
    def in_progress(self) -> Change | None:
        """The command in progress."""
        return self._change

    @property
    def queued(self) -> dict[int, str]:
        """The offsets of queued commands, and of a change of plan in progress, with their ids. A
        restart handles these again."""
        queued = {offset: command.id for command, offset in self._queue}
        change = self._change
        in_progress = change is not None and change.plan is not None
        return queued | ({change.offset: change.id} if change is not None and in_progress else {})

    def wait_reasons(self) -> dict[Hashable, Wait]:
        """Return the waits of queued commands."""
        change = self._change
        when = self._cooldown.reason(self._next) or "all workers run"
        when = when if change is None else f"{change.id!r} has ended"
        found: dict[Hashable, Wait] = {}
        for command, offset in self._queue:
            kind = KINDS[type(command)]
            found[offset] = Wait(kind, when, {"id": command.id})
            when = f"{command.id!r} has ended"
        return found

    @property
    def _next(self) -> Queueable | None:
        return self._queue[0][0] if self._queue else None

    @property
    def _waiting(self) -> list[tuple[Queueable, int]]:
        """The queued commands and the migration whose worker joins, and their offsets."""
        found = [*self._queue]
        if (change := self._change) is not None and change.migration is not None:
            found.append((change.migration, change.offset))
        return found

    @property
    def _awaited_workers(self) -> set[WorkerId]:
        """The workers that waiting migrations name."""
        return {one.worker for one, _ in self._waiting if isinstance(one, MoveBins)}

    # -- steps

    def step(self) -> Iterator[Event]:
        """Continue the command in progress, or start the next; yield events."""
        if self._change is not None:
            yield from self._continue(self._change)
        if self._change is None and self._pool.working and self._controller.ready:
            yield from self._start_next()

    def note(self, event: EngineEvent) -> None:
        """Note an event of the engine that continues the command in progress."""
        change = self._change
        match event:
            case Joined(worker=number) if change is not None:
                change.joining.discard(WorkerId(number))
                change.joined.append(WorkerId(number))
            case LastMessage(worker):
                self._pool.release(worker)
            case Completed() | Aborted() | PartitionMoved() if change is not None:
                if event.id in change.moves:
                    change.moves.discard(event.id)
                    if not isinstance(event, PartitionMoved) and event.unmoved:
                        change.failure = "not all bins have moved, as the flow's sources have ended"
            case PlanInForce(id=id) if change is not None and id in change.moves:
                change.moves.discard(id)
                change.decided = True
                self._cooldown.start(id)
            case NotDecided(id, reason) if change is not None and id in change.moves:
                change.moves.discard(id)
                change.failure = reason

    def _start_next(self) -> Iterator[Event]:
        if idle := self._unused.keys() - self._awaited_workers:
            self._remove_unused(min(idle))
        elif self._queue and not self._cooldown.reason(self._next):
            command, offset = self._queue.popleft()
            match command:
                case Rescale():
                    yield from self._start_rescale(command, offset)
                case ApplyPlan():
                    yield from self._start_plan(command, offset)
                case MoveBins():
                    yield from self._start_migration(command, offset)
                case SwitchLogic():
                    yield from _submitted(command, self._controller.change_logic)

    def _start_rescale(self, command: Rescale, offset: int) -> Iterator[Event]:
        members = sorted(self._pool.handles)
        more = command.workers - len(members)
        joining = [WorkerId(self.next_id + n) for n in range(more)]
        leaving = members[command.workers :]
        try:
            if joining:
                self.plans.expect_slots([ANYWHERE] * len(joining))
            if leaving:
                self._controller.leave(command.id, leaving, offset)
            else:
                self._controller.use(command.id)
        except CommandError as error:
            yield CommandRejected(id=command.id, offset=offset, reason=str(error))
            return
        # A rescale names the number of all workers, so none of them is unused any more.
        self._unused.clear()
        self.next_id += len(joining)
        self._pool.joining.launch(dict.fromkeys(joining, ANYWHERE))
        then = self._end if leaving else self._share
        self._change = Change(
            command.id, offset, self._clock.monotonic(), then, {*joining}, {*leaving}
        )
        yield Rescaling(
            id=command.id, offset=offset, workers=command.workers,
            joining=list(joining), leaving=list(leaving),
        )  # fmt: skip

    def _start_migration(self, command: MoveBins, offset: int) -> Iterator[Event]:
        """Start the worker that a migration names; submit the migration where its id is in use."""
        if command.worker < self.next_id:
            yield from _submitted(command, self._submit)
            return
        try:
            self.expect(command)
        except CommandError as error:
            yield CommandRejected(id=command.id, offset=offset, reason=str(error))
            return
        self.next_id = command.worker + 1
        self._pool.joining.launch({command.worker: ANYWHERE})
        self._change = Change(
            command.id, offset, self._clock.monotonic(), self._migrate, {command.worker},
            migration=command,
        )  # fmt: skip
        yield Rescaling(
            id=command.id, offset=offset, workers=len(self._pool.handles) + 1,
            joining=[command.worker], leaving=[],
        )  # fmt: skip

    # -- plans

    def _abort_plan(self, change: Change, by: str) -> bool:
        """End a change of plan that is not decided; return whether it was one.

        The event that ends it comes once the workers that have joined for it are gone.
        """
        awaits_decision = change.id in self._controller.reconfigurations.undecided
        is_joining = change.then == self._reconfigure
        if change.plan is None or change.aborted_by or not (awaits_decision or is_joining):
            return False
        if awaits_decision:
            self._controller.abort(change.id, by)
        else:
            self._controller.use(by)
            change.failure = f"command {by!r} has aborted it"
        change.aborted_by = by
        return True

    def _start_plan(self, command: ApplyPlan, offset: int) -> Iterator[Event]:
        """Start the workers that another plan has more."""
        try:
            decision = self._controller.reconfigured(command.id, offset)
            if decision is not None:
                # The restart has completed it.
                self._cooldown.start(command.id)
                yield restored_event(decision)
                workers = len(self._pool.handles)
                yield Reconfigured(id=command.id, offset=offset, workers=workers, ms=None)
                return
            members = sorted(self._pool.handles)
            if former := self._begun.get(offset):
                command = renumbered(command, former, members)
            change = self.plans.change(command, offset, self.next_id)
        except CommandError as error:
            yield CommandRejected(id=command.id, offset=offset, reason=str(error))
            return
        self._unused.clear()
        self.next_id = max([self.next_id, *(worker + 1 for worker in change.joining)])
        self._pool.joining.launch(change.joining)
        self._change = Change(
            command.id, offset, self._clock.monotonic(), self._reconfigure, {*change.joining},
            plan=change,
        )  # fmt: skip
        yield Reconfiguring(
            id=command.id, offset=offset, by=command.by, why=command.why,
            operations=[*map(str, change.operations)], members=[*map(int, members)],
        )  # fmt: skip

    def _reconfigure(self, change: Change) -> Iterable[Event]:
        """Let all parts of another plan change at one time, once its workers have joined."""
        assert change.plan is not None
        change.then = self._remove_workers
        if change.failure:
            return self._remove_workers(change)
        try:
            self._controller.reconfigure(change.plan.reconfigure)
        except CommandError as error:
            change.failure = str(error)
            return self._remove_workers(change)
        change.moves.add(change.id)
        return ()

    def end_decided(self) -> list[Event]:
        """Return the last events of a plan that is decided, as the flow ends: the next start
        completes it."""
        change = self._change
        if change is None or change.plan is None:
            return []
        pending = self._controller.reconfigurations.decided(change.id)
        if pending is None and not change.decided:
            return []
        self._change = None
        workers = len(self._pool.handles) - len(change.leaving or change.plan.leaving)
        end = Reconfigured(id=change.id, offset=change.offset, workers=workers, ms=None)
        return [end] if pending is None else [pending, end]

    def _remove_workers(self, change: Change) -> Iterable[Event]:
        """Let the workers leave that the plan in force does not have."""
        assert change.plan is not None
        change.then = self._end_plan
        surplus = change.plan.leaving if change.decided else change.joined
        try:
            if surplus:
                id = self._unused_command_id(f"{change.id}/leaving")
                self._controller.leave(id, surplus, change.offset)
                change.leaving |= {*surplus}
        except CommandError as error:
            log.warning("workers_stay", workers=",".join(map(str, surplus)), reason=str(error))
        return () if change.leaving else self._end_plan(change)

    def _end_plan(self, change: Change) -> Iterable[Event]:
        self._change = None
        ms = round_ms(self._clock.monotonic() - change.started_at)
        if change.aborted_by:
            return (
                Aborted(
                    id=change.id, by=change.aborted_by, ms=ms, bins=0, bytes=0, unmoved=[],
                    reason=change.failure, offset=change.offset,
                ),
            )  # fmt: skip
        if not change.decided:
            return (RolledBack(id=change.id, offset=change.offset, reason=change.failure),)
        workers = len(self._pool.handles)
        return (Reconfigured(id=change.id, offset=change.offset, workers=workers, ms=ms),)

    def _continue(self, change: Change) -> Iterator[Event]:
        joining = self._pool.joining
        for worker in joining.ready:
            try:
                self._controller.join(worker, change.id)
            except CommandError as error:
                joining.drop(worker, f"{member_name(worker)}: {error}", self._pool.handles)
            else:
                self._pool.promote(worker)
        for worker, why in joining.dropped():
            change.joining.discard(worker)
            if change.plan is not None:
                change.failure = why
            yield JoinFailed(id=change.id, worker=worker, reason=why)
        for worker, counters in self._pool.removed():
            change.leaving.discard(worker)
            yield Left(id=change.id, worker=worker, counters=counters)
        if not (change.joining or change.leaving or change.moves):
            yield from change.then(change)

    # -- next steps, once all workers have joined or left

    def _share(self, change: Change) -> Iterable[Event]:
        """Move a share of bins and partitions to the workers that have joined or own no bin."""
        change.then = self._end
        workers = sorted({*change.joined, *self._controller.without_bins()})
        try:
            if workers:
                change.moves |= self._controller.share(change.id, workers, change.offset)
        except CommandError as error:
            change.failure = f"the joined workers get no share: {error}"
        return () if change.moves else self._end(change)

    def _migrate(self, change: Change) -> Iterable[Event]:
        """Submit a migration, unless it was aborted, once its worker has joined or failed to."""
        self._change = None
        self._unused |= dict.fromkeys(change.joined, change)
        command, change.migration = change.migration, None
        return () if command is None else _submitted(command, self._submit)

    def _submit(self, command: MoveBins) -> None:
        self._controller.submit(command)
        self._unused.pop(command.worker, None)

    def _remove_unused(self, worker: WorkerId) -> None:
        """Let a worker leave that no migration needs any more."""
        self._change = change = self._unused.pop(worker)
        change.then = self._end
        try:
            id = self._unused_command_id(f"{change.id}/back")
            self._controller.leave(id, [worker], change.offset)
        except CommandError as error:
            change.failure = f"{member_name(worker)} stays, though nothing moves to it: {error}"
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


def _submitted(command: C, submit: Callable[[C], None]) -> Iterable[Event]:
    """Submit a command; return its rejection, if it is rejected."""
    try:
        submit(command)
    except CommandError as error:
        return (CommandRejected(id=command.id, offset=command.offset, reason=str(error)),)
    return ()
