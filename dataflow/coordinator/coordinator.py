"""The coordinator: the only source of commands (design 2, control frontier).

Guarantees that no command gets a closed time, and that the decision log holds every decision before
any worker receives it. Invariant: the coordinator holds the capability of the control source at T,
the least time that is not closed. T lies just past the furthest time that any source has read, plus
a lead that follows the rate of the data. A command without a time gets T, and an advance request
moves idle sources there. Cost: O(1) per turn in which no source moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.outbox_drain import OutboxDrain
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.balance import distribute, shares_for_joining
from meander.dataflow.control.command import MoveBins, Reconfigure, SwitchLogic, id_in_use
from meander.dataflow.control.decisions import (
    JoinDecision,
    JointDecision,
    LeaveDecision,
    PendingDecisions,
    WorkersPlan,
    WriteDecision,
)
from meander.dataflow.control.instructions import Instruction, Revoke
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import (
    BinInstalled,
    BinPreCopied,
    BinPrefetched,
    BinSizes,
    BinUnreadableReport,
    LayerUnreadableReport,
    LogicPrepared,
    PartitionsRead,
    ResultsSuppressed,
    WorkerReport,
)
from meander.dataflow.control.resources import Resources
from meander.dataflow.control.routing import Routing
from meander.dataflow.coordinator import events
from meander.dataflow.coordinator.closed_times import ClosedTimes, PendingChanges
from meander.dataflow.coordinator.frontier_blockers import FrontierBlocker, FrontierBlockers
from meander.dataflow.coordinator.logic_changes import LogicChanges
from meander.dataflow.coordinator.partition_assignment import PartitionAssignment, Place
from meander.dataflow.coordinator.reconfigurations import Reconfigurations, moves_of
from meander.dataflow.coordinator.workers import LATEST, Workers, commands_for, initial_moves
from meander.dataflow.exactly_once.replay_check import Replays
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Clock, Links
from meander.dataflow.migration.estimate import MigrationEstimate
from meander.dataflow.migration.rounds import Round
from meander.dataflow.migration.scheduler import MigrationScheduler
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.membership import Membership
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.loop_times import outer_frontier, outer_time
from meander.dataflow.runtime.frame_validation import read, read_manifest
from meander.dataflow.runtime.worker import members_of
from meander.dataflow.wire import (
    DataFrame,
    MemberFrame,
    Payload,
    ProgressAckFrame,
    ProgressFrame,
    encode_data,
)
from meander.schemas.control import CommandError
from meander.schemas.errors import MeanderError
from meander.schemas.status import Joined, LayerUnreadable
from meander.state.checkpoint.checkpoint import Cut
from meander.state.keys.ids import COORDINATOR, Bin, WorkerId, member_name
from meander.state.times.antichain import Antichain
from meander.state.times.time import to_millis


class Coordinator:
    """A coordinator that orders commands, gives them times, and reports their results."""

    def __init__(
        self,
        plan: Plan,
        start: RestorePlan,
        links: Links,
        clock: Clock,
        write_decision: WriteDecision,
        checkpoints: CheckpointCoordinator,
        allow_nondeterminism: bool = False,
    ) -> None:
        """With `allow_nondeterminism` the flow continues when replayed results differ from
        committed results."""
        self.checkpoints = checkpoints
        self._plan, self._links = plan, links
        self._clock, self.decisions = clock, PendingDecisions(write_decision)
        self._progress = Progress(plan.graph, COORDINATOR, members_of(start.workers), links)
        self._routing = Routing(plan.flow.space, start.owners)
        self._membership = Membership(plan.graph, self._progress, links)
        self._closed_times = ClosedTimes(plan, self._progress.changes, clock, start.time)
        members = list(map(WorkerId, range(start.workers)))
        send = partial(self._broadcast, plan.partition_migrator.inputs[0])
        self.assignment = PartitionAssignment(
            plan,
            members,
            self._progress,
            self._closed_times,
            self.decisions,
            send,
            start.override_history.replay_end,
        )
        self.workers = Workers(members, self._membership, clock)
        self.migrations = MigrationScheduler(
            plan.groups,
            self._routing,
            self.decisions,
            clock,
            plan.flow.move_memory,
            self._send_instruction,
            partial(self._broadcast, plan.migrator.inputs[0]),
            self._closed_times.request_advance,
            self._closed_times.near,
        )
        self.logics = LogicChanges(
            plan.logics,
            start.logic_changes,
            start.time,
            self.decisions,
            clock,
            self._send_instruction,
            partial(self._broadcast, plan.migrator.inputs[0]),
            self._closed_times.request_advance,
            start.reconfigured,
        )
        self.reconfigurations = Reconfigurations(
            self.migrations,
            self.logics,
            self.assignment,
            self.decisions,
            clock,
            self._closed_times.request_advance,
            self._plan_after,
        )
        self.resources = dict(start.resources)
        """Where each worker has to run, by the plans decided so far."""
        self._reconfigured = dict(start.reconfigured)
        """The reconfigurations that earlier executions have decided, by id."""
        self.replays = Replays(start.history, plan.ordered_sinks, members, allow_nondeterminism)
        self._outbox_drain = OutboxDrain(checkpoints, bool(plan.outboxes))
        self._joining: list[tuple[WorkerId, str]] = []
        """The workers that join once no checkpoint is under way, and the ids of their commands."""
        self._events: list[events.EngineEvent] = []
        self._blockers = FrontierBlockers(plan)

    @property
    def progress(self) -> Progress:
        """Return the progress of the coordinator, for inspection."""
        return self._progress

    # -- for the driver

    def submit(self, command: MoveBins) -> None:
        """Accept a command. Raise `CommandError` with the remedy where the command is invalid."""
        self._check(command)
        self.migrations.submit(command, self._closed_times.next_time())

    def change_logic(self, command: SwitchLogic) -> None:
        """Accept a change of logic. Raise `CommandError` with the remedy where it is invalid."""
        closed_before = self._closed_times.next_time()
        if not self.logics.is_decided(command):
            if command.time is not None:
                self._closed_times.expect(command.time)
            self.logics.check(command, max(closed_before, self.logics.soon + 1))
        self.use(command.id)
        self.logics.submit(command)

    def execution_plan(
        self, workers: Mapping[WorkerId, Resources], places: Mapping[WorkerId, Resources]
    ) -> ExecutionPlan:
        """Return the plan in force after all changes decided so far, of workers with their
        resources and places. Raise `CommandError` where the sources have ended."""
        owners = self._owners_at(self._closed_times.next_time())
        return ExecutionPlan(
            workers,
            {operator: self.logics.version(operator) for operator in self._plan.logics},
            {group: tuple(its.values()) for group, its in owners.items()},
            self.assignment.readers(),
            places,
        )

    def reconfigured(self, id: str, offset: int) -> JointDecision | None:
        """Return what an earlier execution has decided about a command, which comes again; None
        where it has not. Raise `CommandError` where another command had its id."""
        decided = self._reconfigured.get(id)
        if decided is not None and decided.offset != offset:
            raise id_in_use(id)
        return decided

    def expect_reconfiguration(
        self, command: Reconfigure, joining: Collection[WorkerId] = ()
    ) -> None:
        """Check a reconfiguration as if some workers had joined. Raise `CommandError` where it is
        invalid."""
        if command.id in self.migrations.ids:
            raise id_in_use(command.id)
        self._check_reconfiguration(command, [*self.workers.active, *joining])

    def reconfigure(self, command: Reconfigure) -> None:
        """Accept a reconfiguration. Raise `CommandError` with the remedy where it is invalid."""
        self._check_reconfiguration(command)
        self.use(command.id)
        self.reconfigurations.submit(command)

    def expect(self, command: MoveBins) -> None:
        """Check a command as if the worker that it names had joined. Raise `CommandError` where
        it is invalid."""
        self._check(command, [*self.workers.active, command.worker])

    def abort(self, id: str, by: str, others: Sequence[str] = ()) -> None:
        """End a command once its current moves are complete. Raise `CommandError` where it cannot
        end; the error also names `others`, which wait for their turn."""
        if id in self.reconfigurations.undecided:
            self.use(by)
            self.reconfigurations.cancel(id, by)
            return
        self.migrations.abort(id, by, self.closed_before, others)

    def plan(self, command: MoveBins) -> MigrationEstimate:
        """Return the estimate of a command. Raise `CommandError` as `submit` does."""
        self._check(command)
        return self.migrations.plan(command)

    def use(self, id: str) -> None:
        """Reserve the id of a command. Raise `CommandError` if another command has it."""
        if id in self.migrations.ids:
            raise id_in_use(id)
        self.migrations.ids.add(id)

    def join(self, worker: WorkerId, id: str = "") -> None:
        """Let a worker, whose links stand, join the running flow without bins for a command.

        Raise `CommandError` where the worker cannot join.
        """
        self._closed_times.next_time()
        self.workers.expect(worker)
        self._joining.append((worker, id))
        self._start_joining()

    def share(self, id: str, joining: Sequence[WorkerId], offset: int = 0) -> set[str]:
        """Give joining workers as many bins and partitions as the others own, by the fewest moves.

        Return the ids of these commands. Raise `CommandError` where the sources have ended.
        """
        time = self._closed_times.next_time()
        active = self.workers.active
        owners = self._owners_at(time)
        bins = {group: shares_for_joining(its, joining, active) for group, its in owners.items()}
        read = {place: worker for worker in active for place in self.assignment.read_by(worker)}
        moves = commands_for(id, offset, bins, owners)
        return self._reassign(id, moves, shares_for_joining(read, joining, active), time)

    def without_bins(self) -> list[WorkerId]:
        """Return the active workers that own no bin, where the flow has a bin for each."""
        owners, active = self.owners(), self.workers.active
        if not self._plan.exchanges or len(owners) < len(active):
            return []
        return [worker for worker in active if worker not in set(owners)]

    def leave(self, id: str, workers: Sequence[WorkerId], offset: int = 0) -> None:
        """Move the bins and partitions of workers to the others, then let the workers leave.

        Raise `CommandError` where a worker cannot leave.
        """
        others = self.workers.remaining(workers)
        time = self._closed_times.next_time()
        if bound := self.reconfigurations.targets() & {*workers}:
            raise CommandError(
                f"{member_name(min(bound))} gets bins or partitions by a reconfiguration: wait"
                " until that is complete, or abort it"
            )
        for worker in workers:
            to_come = self.migrations.bound_for(worker)
            if to_come or self.assignment.has_transfer_to(worker):
                what = f"bins by command {to_come[0].id!r}" if to_come else "a partition"
                remedy = ", or abort it" if to_come and not to_come[0].has_to_complete else ""
                raise CommandError(
                    f"{member_name(worker)} gets {what}: wait until that is complete{remedy}"
                )
        self.use(id)
        # This includes bins that a command has assigned to others for later: they must move before.
        owners = self._owners_at(time)
        bins = {
            group: distribute([bin for bin, owner in its.items() if owner in workers], others)
            for group, its in owners.items()
        }
        read = [place for worker in workers for place in self.assignment.read_by(worker)]
        moves = commands_for(id, offset, bins, owners)
        names = self._reassign(id, moves, distribute(read, others), time)
        for worker in workers:
            self.workers.drain(worker, names | self.assignment.transfers_from(worker))

    def checkpoint(self, id: str = "", policy: Policy | None = None, savepoint: str = "") -> None:
        """Request a checkpoint; it starts once no worker joins or leaves.

        Without a policy it has the flow's policy. With a name it becomes a savepoint. Raise
        `CommandError` where another request waits.
        """
        self.checkpoints.expect(savepoint)
        if id:
            self.use(id)
        self.checkpoints.request(id, policy, savepoint)

    def move_partition(self, id: str, source: str, partition: int, worker: WorkerId) -> None:
        """Reassign a source partition to another worker. Raise `CommandError` where that is
        impossible."""
        if worker not in self.workers.active:
            raise CommandError(f"worker {worker} is unknown")
        time = self._closed_times.next_time()
        self.assignment.start(id, self.assignment.place(source, partition), worker, time)

    def _reassign(
        self,
        id: str,
        moves: Sequence[MoveBins],
        places: Mapping[WorkerId, Sequence[Place]],
        time: int,
    ) -> set[str]:
        """Reassign bins and partitions, all or none of them; return the ids of the commands."""
        for command in moves:
            self._check(command)
        names = {command.id for command in moves}
        for target, some in places.items():
            for place in some:
                names.add(name := f"{id}/{place[0]}.{place[1]}")
                self.assignment.start(name, place, target, time)
        for command in moves:
            self.submit(command)
        return names

    def _owners_at(self, time: int) -> dict[str, dict[Bin, WorkerId]]:
        """Return the owners of the movable bins, by colocation group."""
        return (
            self._plan.groups.by_group(self._routing.owners(time)) if self._plan.exchanges else {}
        )

    def report(self, worker: WorkerId, report: WorkerReport) -> None:
        """Handle a worker's report about its partitions, its bins or a checkpoint."""
        match report:
            case PartitionsRead():
                self.assignment.report(worker, report)
            case BinInstalled():
                self.migrations.installed(report)
            case BinPreCopied(number=number, manifest=data):
                manifest = read_manifest(self._plan, worker, data)
                self.migrations.pre_copies.precopied(number, manifest)
            case BinPrefetched(number, operator, _, size):
                self.migrations.pre_copies.prefetched(number, operator, size)
            case BinUnreadableReport():
                self.migrations.bin_unreadable(report)
            case BinSizes(operator, bins):
                self._note_sizes(operator, bins)
            case LogicPrepared():
                self.logics.report(worker, report)
            case ResultsSuppressed():
                self._events += self.replays.report(worker, report)
            case LayerUnreadableReport(reason):
                self._events.append(LayerUnreadable(worker, reason))
            case _:
                self.checkpoints.report(worker, report)

    def _note_sizes(self, operator: str, bins: Sequence[tuple[Bin, int, int]]) -> None:
        for bin, size, heat in bins:
            number = self._plan.groups.number(operator, bin)
            self.migrations.sizes.note(operator, number, size)
            self.migrations.sizes.note_heat(operator, number, heat)

    def receive(self, sender: WorkerId, frame: list[bytes]) -> None:
        """Handle one frame of a worker. Raise `MeanderError` for a frame that only workers may
        receive."""
        match read(self._plan, sender, frame):
            case ProgressFrame() | ProgressAckFrame() as update:
                self._progress.receive(sender, update)
            case MemberFrame() as news:
                self._membership.receive(sender, news)
                self.workers.remove(sender)
                self.logics.forget(sender)
                self._events.append(events.LastMessage(sender))
            case DataFrame():
                raise MeanderError(member_name(sender), "it sent data to the coordinator")
            case _:
                raise MeanderError(
                    member_name(sender), "it sent the coordinator a frame for workers"
                )

    def step(self) -> bool:
        """Run one turn; return whether it did anything."""
        received = False
        for sender, frame in self._links.receive():
            self.receive(sender, frame)
            received = True
        if self._progress.ready:
            self._start_joining()
            self.decisions.send()
            self.assignment.assign_new(self.workers.active)
            self._close_times()
            self._step_migrations()
            self.logics.step(self.workers.all, self.closed_before, self._acknowledged)
            self.reconfigurations.step(
                self.closed_before,
                self._check_reconfiguration,
                self._acknowledged,
                ended=self.furthest() is None and not self.assignment.under_way,
            )
            self._finish_transfers()
            self._release_leaving()
            self._step_checkpoint()
        flushed = self._progress.flush()
        self.workers.announce()
        self._links.flush()
        return flushed or received

    def events(self) -> list[events.EngineEvent]:
        """Return the events since the last call."""
        drained, self._events = [*self.migrations.events(), *self._events], []
        return [*drained, *self.logics.events(), *self.reconfigurations.events()]

    @property
    def done(self) -> bool:
        """Whether the whole computation is over."""
        over = self._progress.is_quiescent() and self.migrations.idle and self._outbox_drain.over
        over = over and self.logics.idle and self.reconfigurations.idle
        return over and not self.checkpoints.pending

    @property
    def ready(self) -> bool:
        """Whether all workers have opened and reported their partitions, so that workers may join
        and leave."""
        return self._progress.ready and self.assignment.known

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way, or bins move. A round whose time lies ahead does not
        count."""
        return self.checkpoints.under_way or any(map(self._due, self.migrations.rounds()))

    @property
    def closed_before(self) -> int | None:
        """T: every earlier time is closed for commands. None once all times are closed."""
        return self._closed_times.least

    def frontiers(self) -> dict[str, Antichain]:
        """Return the frontier of every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def frontier_blockers(self) -> dict[str, FrontierBlocker]:
        """Return what holds back the frontier of every probe and sink, by name."""
        found = {n: self._blockers.of(self._progress, at) for n, at in self._plan.probes.items()}
        return {name: one for name, one in found.items() if one is not None}

    def furthest(self) -> int | None:
        """Return the furthest time that any source has read."""
        return self._progress.furthest(self._plan.read_locations)

    def owners(self) -> list[WorkerId]:
        """Return the owner of every bin after all moves decided so far, group after group."""
        control = self._progress.frontier(self._plan.migrator.inputs[0])
        least = min((t for t in control if isinstance(t, int)), default=None)
        return self._routing.owners(LATEST if least is None else least - 1)

    # -- accepting

    def _check(self, command: MoveBins, workers: Sequence[WorkerId] | None = None) -> None:
        if command.id in self.migrations.ids:
            raise id_in_use(command.id)
        if not (self._plan.stateful or command.has_to_complete):
            raise CommandError("this flow has no stateful operator, so there is nothing to move")
        command.check(self._plan.groups, self.workers.active if workers is None else workers)
        self._closed_times.next_time()
        if command.time is not None:
            self._check_time(command, command.time)

    def _check_time(self, command: MoveBins, time: int) -> None:
        self._closed_times.expect(time)
        if (bin := self.migrations.moved_already(command, time)) is not None:
            raise CommandError(
                f"bin {bin} already moves at {to_millis(time)} ms: name another time"
            )

    def _check_reconfiguration(
        self, command: Reconfigure, members: Sequence[WorkerId] | None = None
    ) -> None:
        workers = self.workers.active if members is None else members
        closed_before = self._closed_times.next_time()
        if command.time is not None:
            self._closed_times.expect(command.time)
        for moves in moves_of(command):
            moves.check(self._plan.groups, workers)
        for (source, partition), worker in command.partitions.items():
            self.assignment.place(source, partition)
            if worker not in workers:
                raise CommandError(f"worker {worker} is unknown: name an active worker")
        for worker in command.removed:
            if to_come := self.migrations.bound_for(worker):
                raise CommandError(
                    f"{member_name(worker)} gets bins by command {to_come[0].id!r}: wait until that"
                    " is complete, or abort it"
                )
        logic = SwitchLogic(command.id, command.logic, command.time)
        self.logics.check(logic, max(closed_before, self.logics.soon + 1))

    def _plan_after(self, command: Reconfigure, time: int) -> WorkersPlan:
        """Return what a reconfiguration at a time makes of the workers."""
        owners = self._routing.owners(time)
        for group, targets in command.bins.items():
            for bin, worker in targets.items():
                owners[self._plan.groups.number(group, bin)] = worker
        self.resources = dict(command.resources)
        readers = self.assignment.readers() | dict(command.partitions)
        # Another command may have given a worker something that this one removes later.
        remaining = {*self.workers.all}.difference(command.removed).union(owners, readers.values())
        return WorkersPlan(tuple(sorted(remaining)), tuple(owners), readers, command.resources)

    # -- the steps of a turn

    def _start_joining(self) -> None:
        """Decide that the waiting workers join, unless a checkpoint is under way."""
        if not self.checkpoints.under_way:
            for worker, id in self._joining:
                joins = JoinDecision(worker, self._closed_times.next_time())
                self.decisions.add(joins, partial(self._admit, worker, id))
            self._joining.clear()

    def _admit(self, worker: WorkerId, id: str) -> None:
        closed_before = self._closed_times.next_time()
        self._progress.flush()
        self.workers.admit(worker, self.checkpoints.frozen)
        self.checkpoints.welcome(worker)
        self.replays.join(worker)
        for moves in initial_moves(self._routing, closed_before):
            self._send_decision(worker, self._plan.migrator.inputs[0], moves)
        for change in self.logics.welcome(worker, closed_before):
            time = max(change.time, closed_before)
            self._send(worker, self._plan.migrator.inputs[0], time, change)
        self._events.append(Joined(id, worker))

    def _send_instruction(self, worker: WorkerId, instruction: Instruction) -> None:
        """Send a worker an instruction, unless no decision can follow any more."""
        if self.closed_before is not None:
            self._send(worker, self._plan.migrator.inputs[0], self.closed_before, instruction)

    def _broadcast(
        self, at: Location, decision: Moves | Revoke | LogicChange | ReassignPartition
    ) -> None:
        for worker in self.workers.all:
            if self.workers.receives(worker, decision.time):
                self._send_decision(worker, at, decision)

    def _send_decision(
        self,
        worker: WorkerId,
        at: Location,
        decision: Moves | Revoke | LogicChange | ReassignPartition,
    ) -> None:
        self.workers.note_sent(worker, decision.time, self._closed_times.next_time())
        self._send(worker, at, decision.time, decision)

    def _send(self, worker: WorkerId, at: Location, time: int, payload: Payload) -> None:
        self._closed_times.check(time)
        edge = next(edge for edge in self._plan.graph.edges if edge.target == at)
        self._progress.changes.add(at, time, 1)
        self._links.send(worker, encode_data(edge.id, time, payload))

    def _finish_transfers(self) -> None:
        for transfer in self.assignment.finish():
            source = self._plan.sources[transfer.order.source].name
            self._events.append(events.partition_event(transfer, source))

    def _step_checkpoint(self) -> None:
        """Start a checkpoint where one is wanted, or advance the current one."""
        time = self.closed_before if self.closed_before is not None else self._closed_times.last
        if self._progress.is_quiescent():
            self._outbox_drain.end()
        wanted = self.checkpoints.wanted(
            self.closed_before is not None, self._outbox_drain.awaits_checkpoint
        )
        if wanted and not self.workers.changing and self._all_open():
            self.checkpoints.start(tuple(self.workers.all), self._request_advance)
        # A cut behind the time of a reconfiguration has all of it, and one before has nothing.
        if self.checkpoints.aligned and not self.reconfigurations.awaits_receipt(
            self._acknowledged
        ):
            members, owners = tuple(self.workers.all), tuple(self.owners())
            replay_from = self.replays.replay_from(self.workers.until)
            cut = Cut(
                time,
                members,
                owners,
                replay_starts=replay_from,
                lineage=(*self._plan.lineages.values(),),
                arrangements=self._plan.arrangements,
            )
            self.checkpoints.freeze(cut, self.frontiers().values())
        # Once the sources have ended, commit markers may have any time.
        self._events += self.checkpoints.step(time if self.closed_before is not None else LATEST)

    def _request_advance(self) -> Capability | None:
        """Move idle sources past the data that has been read, as a command without a time does."""
        return (
            None
            if self.closed_before is None
            else self._closed_times.request_advance(self.closed_before)
        )

    def _all_open(self) -> bool:
        """Whether every worker has opened, so each one knows all members."""
        return all(self._progress.is_open(worker) for worker in self.workers.all)

    def _release_leaving(self) -> None:
        """Release leaving workers whose bins have all moved."""
        # No checkpoint starts between the release of a worker and its exit. So a worker is released
        # only once its outboxes are drained, which may itself need a checkpoint.
        if self.closed_before is None or self.checkpoints.under_way:
            return
        unread = set(self._progress.outstanding(self._plan.migrator.inputs[0]))
        for worker, until in self.workers.drained.items():
            if self.workers.awaits_withdrawals(worker, unread):
                continue
            if self._outbox_drain.is_drained(worker, self._ended_before(until)):
                self.workers.announce_exit(worker)
                self.decisions.add(
                    LeaveDecision(worker, until), partial(self.workers.send_exit, worker)
                )
        # A worker is marked last, so that `unread` counts its withdrawals from the next turn on.
        running = {one.command.id for one in self.migrations.commands}
        for worker in self.workers.newly_drained(running | self.assignment.running):
            until = max([self.closed_before, *(time + 1 for time in self.assignment.times)])
            self._withdraw_moves(worker, until)
            advance_request = self._closed_times.request_advance(self.closed_before)
            self.workers.mark_drained(worker, until, advance_request)

    def _withdraw_moves(self, worker: WorkerId, until: int) -> None:
        """Withdraw all moves of later times from a worker that owns nothing then.

        It holds their times otherwise, and so stays until they have passed.
        """
        later = (moves for moves in self._routing.pending() if moves.time >= until)
        for command, time in dict.fromkeys((moves.command, moves.time) for moves in later):
            self._send_decision(worker, self._plan.migrator.inputs[0], Revoke(command, time))

    def _ended_before(self, time: int) -> bool:
        """Whether all earlier records have reached the ends of the flow."""
        ends = (self._progress.frontier(at) for at in self._plan.ends)
        return all(outer_time(one) >= time for frontier in ends for one in frontier)

    def _step_migrations(self) -> None:
        self.migrations.step(
            self.closed_before, self._closed_times.passed, self._completed_everywhere
        )
        if self.closed_before is not None:
            self._routing.compact(Antichain.of(self.closed_before))

    def _acknowledged(self, time: int) -> bool:
        """Whether every worker has received all decisions for a time."""
        received = self._progress.frontier(self._plan.migrator.inputs[0])
        return self._closed_times.passed(time) and not received.less_equal(time)

    def _completed_everywhere(self, time: int) -> bool:
        """Whether every stateful operator has passed a time, as far as the coordinator knows."""
        outputs = (self._plan.ports[one.name].outputs[0] for one in self._plan.stateful)
        frontiers = (outer_frontier(self._progress.frontier(output)) for output in outputs)
        return not any(frontier.less_equal(time) for frontier in frontiers)

    def _close_times(self) -> None:
        sent = [round for round in self.migrations.rounds() if round.sent]
        self._closed_times.advance(
            PendingChanges(
                furthest=self.furthest(),
                transferring=bool(self.assignment.under_way),
                unsent=self.decisions.least,
                held=self.reconfigurations.held_time,
                sent=[round.time for round in sent],
                requested=[
                    *(round.time for round in sent if round.advance_request is not None),
                    *self.assignment.times,
                    *self.logics.requested,
                    *self.reconfigurations.requested,
                ],
                leaving=list(self.workers.drained.values()),
                waiting=(
                    bool(self._joining)
                    or not self.migrations.idle
                    or self.logics.waiting
                    or self.reconfigurations.waiting
                ),
                lead_share=self.migrations.lead_share(self._due),
            )
        )

    def _due(self, round: Round) -> bool:
        """Whether a round is not sent yet, or its time cannot change any more."""
        return not round.sent or self._closed_times.passed(round.time)
