"""The coordinator's part in the dataflow: the only source of commands (design 2, forswearing).

Guarantees that no command gets a time it has forsworn, and that every command's time was journalled
before any worker hears of it. It holds the capability of the control source at T, the least time
not forsworn: just past the furthest time that any source has read, plus a lead that follows the
speed of the data. Commands without a time get T, and are announced as a demand so that idle
sources move. Cost: O(1) per turn in which no source moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.outbox_drain import OutboxDrain
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.balance import share_of, shared_out
from meander.dataflow.control.command import MoveBins, Refused, used_before
from meander.dataflow.control.decisions import Joins, Journal, LeaveDecision, PendingDecisions
from meander.dataflow.control.instructions import Instruction, Revoke
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.coordinator import events
from meander.dataflow.coordinator.closed_times import ClosedTimes, PendingChanges
from meander.dataflow.coordinator.frontier_blockers import FrontierBlocker, FrontierBlockers
from meander.dataflow.coordinator.partition_assignment import PartitionAssignment, Place
from meander.dataflow.coordinator.workers import LATEST, Workers, commands_for, introduction
from meander.dataflow.exactly_once.replay_check import Replays
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Clock, Links
from meander.dataflow.migration.estimate import MigrationEstimate
from meander.dataflow.migration.events import Event
from meander.dataflow.migration.rounds import Part, Round
from meander.dataflow.migration.scheduler import MigrationScheduler
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.membership import Membership
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.loop_times import outer, outward
from meander.dataflow.runtime.frame_validation import read, read_manifest
from meander.dataflow.runtime.worker import members_of
from meander.dataflow.wire import (
    DataFrame,
    HeardFrame,
    MemberFrame,
    Payload,
    ProgressFrame,
    encode_data,
)
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import Cut
from meander.state.keys.ids import COORDINATOR, Bin, WorkerId, member_name
from meander.state.times.antichain import Antichain
from meander.state.times.time import to_millis


class Controller:
    """Orders commands, assigns times, forswears, and says what became of them."""

    def __init__(
        self,
        plan: Plan,
        start: RestorePlan,
        links: Links,
        clock: Clock,
        journal: Journal,
        checkpoints: CheckpointCoordinator,
        allow_nondeterminism: bool = False,
    ) -> None:
        """With `allow_nondeterminism` a flow goes on whose replay gives others than were out."""
        self.checkpoints = checkpoints
        self._plan, self._links = plan, links
        self._clock, self.decisions = clock, PendingDecisions(journal)
        self._progress = Progress(plan.graph, COORDINATOR, members_of(start.workers), links)
        self._routing = Routing(plan.flow.space, start.owners)
        self._roster = Membership(plan.graph, self._progress, links)
        self._forswearing = ClosedTimes(plan, self._progress.changes, clock, start.time)
        members = list(map(WorkerId, range(start.workers)))
        tell = partial(self._tell_all, plan.handover.inputs[0])
        self.reading = PartitionAssignment(
            plan, members, self._progress, self._forswearing, self.decisions, tell, start.past.mark
        )
        self.staff = Workers(members, self._roster, clock)
        self.conductor = MigrationScheduler(
            plan.groups,
            self._routing,
            self.decisions,
            clock,
            plan.flow.move_memory,
            self._instruct,
            partial(self._tell_all, plan.migrator.inputs[0]),
            self._forswearing.demand,
            self._forswearing.near,
        )
        self.replays = Replays(start.history, plan.timed, members, allow_nondeterminism)
        self._emptying = OutboxDrain(checkpoints, bool(plan.outboxes))
        self._joining: list[WorkerId] = []
        """Those who may join as soon as no checkpoint is being taken."""
        self._events: list[Event] = []
        self._holders = FrontierBlockers(plan)

    # -- what the coordinator calls

    def submit(self, command: MoveBins) -> None:
        """Accept a command. Raises Refused with a sentence that says what would be right."""
        self._check(command)
        self.conductor.submit(command, self._forswearing.open_time())

    def expect(self, command: MoveBins) -> None:
        """Raises Refused where a command cannot be obeyed once the worker it names has joined."""
        self._check(command, [*self.staff.staying, command.worker])

    def abort(self, id: str, by: str) -> None:
        """End a command that moves bins once what moves just now has moved. Raises Refused."""
        self.conductor.abort(id, by, self.forsworn)

    def plan(self, command: MoveBins) -> MigrationEstimate:
        """What a command would do now. Raises Refused as `submit`."""
        self._check(command)
        return self.conductor.plan(command)

    def use(self, id: str) -> None:
        """An id is a command's from now on. Raises Refused if it was before."""
        if id in self.conductor.ids:
            raise used_before(id)
        self.conductor.ids.add(id)

    def join(self, worker: WorkerId) -> None:
        """A worker joins the running flow; its links stand. It owns no bins until some move to it.

        Raises Refused where that cannot be.
        """
        self._forswearing.open_time()
        self.staff.expect(worker)
        self._joining.append(worker)
        self._begin_joining()

    def share(self, id: str, newcomers: Sequence[WorkerId]) -> set[str]:
        """Workers get as many bins and partitions as the others have, by the fewest moves; the ids
        of these. Raises Refused where that cannot be."""
        time = self._forswearing.open_time()
        staying = self.staff.staying
        owners = self._owners_at(time)
        bins = {group: share_of(its, newcomers, staying) for group, its in owners.items()}
        read = {place: worker for worker in staying for place in self.reading.of(worker)}
        moves = commands_for(id, bins, owners)
        return self._hand_out(id, moves, share_of(read, newcomers, staying), time)

    def leave(self, id: str, workers: Sequence[WorkerId]) -> None:
        """Workers give bins and partitions to the others, then they end. Raises Refused."""
        others = self.staff.others(workers)
        time = self._forswearing.open_time()
        for worker in workers:
            to_come = self.conductor.bound_for(worker)
            if to_come or self.reading.coming_to(worker):
                what = f"bins by command {to_come[0]!r}" if to_come else "a partition"
                raise Refused(f"{member_name(worker)} gets {what}: wait for the end of that")
        self.use(id)
        # Also what a command has promised to others for later: it must be gone before.
        owners = self._owners_at(time)
        bins = {
            group: shared_out([bin for bin, owner in its.items() if owner in workers], others)
            for group, its in owners.items()
        }
        read = [place for worker in workers for place in self.reading.of(worker)]
        moves = commands_for(id, bins, owners)
        names = self._hand_out(id, moves, shared_out(read, others), time)
        for worker in workers:
            self.staff.retire(worker, names | self.reading.going_from(worker))

    def checkpoint(self, id: str = "", policy: Policy | None = None, savepoint: str = "") -> None:
        """Take one, once nobody joins or leaves, by the flow's policy where it has none of its own;
        it is kept under a name, if any is given. Raises Refused where that cannot be."""
        self.checkpoints.expect(savepoint)
        if id:
            self.use(id)
        self.checkpoints.ask(id, policy, savepoint)

    def hand_over(self, id: str, source: str, partition: int, worker: WorkerId) -> None:
        """Another worker reads a partition from now on. Raises Refused where that cannot be."""
        if worker not in self.staff.staying:
            raise Refused(f"worker {worker} is unknown")
        time = self._forswearing.open_time()
        self.reading.begin(id, self.reading.place(source, partition), worker, time)

    def _hand_out(
        self,
        id: str,
        moves: Sequence[MoveBins],
        places: Mapping[WorkerId, Sequence[Place]],
        time: int,
    ) -> set[str]:
        """Bins and partitions go to others, all or none of them; the ids of that."""
        for command in moves:
            self._check(command)
        names = {command.id for command in moves}
        for target, some in places.items():
            for place in some:
                names.add(name := f"{id}/{place[0]}.{place[1]}")
                self.reading.begin(name, place, target, time)
        for command in moves:
            self.submit(command)
        return names

    def _owners_at(self, time: int) -> dict[str, dict[Bin, WorkerId]]:
        """By group, who has the bins that can move."""
        return self._plan.groups.apart(self._routing.owners(time)) if self._plan.exchanges else {}

    def report(self, worker: WorkerId, event: Event) -> None:
        """Take a worker's report of what it reads, or of a bin of an operator it has installed."""
        match event:
            case {"event": "reads"}:
                self.reading.noted(worker, event)
            case {
                "event": "bin_moved", "operator": str(operator), "bin": int(bin),
                "time": int(time), "bytes": int(size), "keys": int(keys),
            }:  # fmt: skip
                self.conductor.installed(Part(operator, bin, time, size, keys))
            case {"event": "precopied", "number": int(number), "manifest": bytes(manifest)}:
                self.conductor.fetching.precopied(
                    number, read_manifest(self._plan, worker, manifest)
                )
            case {
                "event": "staged", "operator": str(operator), "number": int(number),
                "bytes": int(size),
            }:  # fmt: skip
                self.conductor.fetching.staged(number, operator, size)
            case {
                "event": "bin_unreadable", "operator": str(operator), "bin": int(bin),
                "number": int() | None as number, "time": int() | None as time,
                "reason": str(reason),
            }:  # fmt: skip
                self.conductor.bin_unreadable(operator, Bin(bin), number, time, reason)
            case {"event": "bins", "operator": str(operator), "bins": list(bins)}:
                for bin, size, heat in bins:
                    number = self._plan.groups.number(operator, bin)
                    self.conductor.sizes.note(operator, number, size)
                    self.conductor.sizes.warm(operator, number, heat)
            case {"event": "held" | "aligned" | "full" | "frozen" | "unwritten" | "sent"}:
                self.checkpoints.report(worker, event)
            case _:
                self._events += self._heard_of(worker, event)

    def _heard_of(self, worker: WorkerId, event: Event) -> list[Event]:
        """What is to be said of a report that nothing else follows from."""
        match event:
            case {"event": "replay_checked", "sink": str(sink), "tallies": list(tallies)}:
                return self.replays.report(worker, sink, tallies)
            case {"event": "layer_unreadable", "reason": str(reason)}:
                return [{"type": "layer_unreadable", "worker": int(worker), "reason": reason}]
        return []

    def take(self, sender: WorkerId, frame: list[bytes]) -> None:
        """Act on one frame of a worker. Raises MeanderError for one that has no place here."""
        match read(self._plan, sender, frame):
            case ProgressFrame() | HeardFrame() as update:
                self._progress.take(sender, update)
            case MemberFrame() as news:
                self._roster.take(sender, news)
                self.staff.gone(sender)
                self._events.append({"type": "left", "worker": int(sender)})
            case DataFrame():
                raise MeanderError(member_name(sender), "it sent data to the coordinator")
            case _:
                raise MeanderError(member_name(sender), "it said what only workers are told")

    def step(self) -> bool:
        """One turn; whether anything was done."""
        received = False
        for sender, frame in self._links.receive():
            self.take(sender, frame)
            received = True
        if self._progress.ready:
            self._begin_joining()
            self.decisions.send()
            self.reading.begin_new(self.staff.staying)
            self._forswear()
            self._conduct()
            self._finish_orders()
            self._dismiss()
            self._take_checkpoint()
        flushed = self._progress.flush()
        self.staff.announce()
        self._links.flush()
        return flushed or received

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        taken, self._events = [*self.conductor.events(), *self._events], []
        return taken

    @property
    def done(self) -> bool:
        """Whether the whole computation is over."""
        over = self._progress.settled() and self.conductor.idle and self._emptying.over
        return over and not self.checkpoints.pending

    @property
    def ready(self) -> bool:
        """Whether all have opened and said what they read, so that workers may come and go."""
        return self._progress.ready and self.reading.known

    @property
    def busy(self) -> bool:
        """Whether bins are moving, or about to, as the time of a command may be far off; or a
        checkpoint is being taken."""
        return self.checkpoints.under_way or any(map(self._due, self.conductor.rounds()))

    @property
    def forsworn(self) -> int | None:
        """T: no command will have a time before it. None once there will be none at all."""
        return self._forswearing.least

    def frontiers(self) -> dict[str, Antichain]:
        """The frontier at every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def holdings(self) -> dict[str, FrontierBlocker]:
        """What holds back the frontier at every probe and sink, by name."""
        found = {n: self._holders.of(self._progress, at) for n, at in self._plan.probes.items()}
        return {name: holding for name, holding in found.items() if holding is not None}

    def furthest(self) -> int | None:
        """The furthest time that any source has read."""
        return self._progress.furthest(self._plan.read_locations)

    def owners(self) -> list[WorkerId]:
        """The owner of every bin after all moves decided so far; after those that move together
        come those of each operator that moves alone."""
        control = self._progress.frontier(self._plan.migrator.inputs[0])
        least = min((t for t in control if isinstance(t, int)), default=None)
        return self._routing.owners(LATEST if least is None else least - 1)

    # -- accepting

    def _check(self, command: MoveBins, staff: Sequence[WorkerId] | None = None) -> None:
        if command.id in self.conductor.ids:
            raise used_before(command.id)
        if not (self._plan.keyed or command.staffing):
            raise Refused("this flow has no stateful operator, so there is nothing to move")
        command.check(self._plan.groups, self.staff.staying if staff is None else staff)
        self._forswearing.open_time()
        if command.time is not None:
            self._check_time(command, command.time)

    def _check_time(self, command: MoveBins, time: int) -> None:
        self._forswearing.expect(time)
        if (bin := self.conductor.taken(command, time)) is not None:
            raise Refused(f"bin {bin} already moves at {to_millis(time)} ms: name another time")

    # -- the steps of a turn

    def _begin_joining(self) -> None:
        """Decide that newcomers join, unless a checkpoint is being taken."""
        if not self.checkpoints.under_way:
            for worker in self._joining:
                joins = Joins(worker, self._forswearing.open_time())
                self.decisions.take(joins, partial(self._admit, worker))
            self._joining.clear()

    def _admit(self, worker: WorkerId) -> None:
        forsworn = self._forswearing.open_time()
        self._progress.flush()
        self.staff.admit(worker, self.checkpoints.frozen)
        self.checkpoints.greet(worker)
        self.replays.join(worker)
        for moves in introduction(self._routing, forsworn):
            self._tell(worker, self._plan.migrator.inputs[0], moves)
        self._events.append({"type": "joined", "worker": int(worker)})

    def _instruct(self, worker: WorkerId, instruction: Instruction) -> None:
        """Tell a worker something of no time; it is of no use once nothing more is decided."""
        if self.forsworn is not None:
            self._say(worker, self._plan.migrator.inputs[0], self.forsworn, instruction)

    def _tell_all(self, at: Location, decision: Moves | Revoke | ReassignPartition) -> None:
        for worker in self.staff.working:
            if self.staff.hears(worker, decision.time):
                self._tell(worker, at, decision)

    def _tell(
        self, worker: WorkerId, at: Location, decision: Moves | Revoke | ReassignPartition
    ) -> None:
        self.staff.tell(worker, decision.time)
        self._say(worker, at, decision.time, decision)

    def _say(self, worker: WorkerId, at: Location, time: int, payload: Payload) -> None:
        self._forswearing.check(time)
        edge = next(edge for edge in self._plan.graph.edges if edge.target == at)
        self._progress.changes.add(at, time, 1)
        self._links.send(worker, encode_data(edge.id, time, payload))

    def _finish_orders(self) -> None:
        for handing in self.reading.finish():
            source = self._plan.sources[handing.order.source].name
            self._events.append(events.partition_given(handing, source))

    def _take_checkpoint(self) -> None:
        """Go on with the one that is being taken, or begin it; see how far it has come."""
        time = self.forsworn if self.forsworn is not None else self._forswearing.last
        if self._progress.settled():
            self._emptying.end()
        wanted = self.checkpoints.wanted(self.forsworn is not None, self._emptying.waits)
        if wanted and not self.staff.moving and self._all_heard():
            self.checkpoints.begin(tuple(self.staff.working), self._demanded)
        if self.checkpoints.aligned:
            members, owners = tuple(self.staff.working), tuple(self.owners())
            anew = self.replays.anew(self.staff.until)
            cut = Cut(time, members, owners, anew=anew, ways=(*self._plan.ways.values(),))
            self.checkpoints.freeze(cut, self.frontiers().values())
        # Once the sources have ended marks may be of any time.
        self._events += self.checkpoints.step(time if self.forsworn is not None else LATEST)

    def _demanded(self) -> Capability | None:
        """Idle sources move on past what has been read, as for a command without a time."""
        return None if self.forsworn is None else self._forswearing.demand(self.forsworn)

    def _all_heard(self) -> bool:
        """Whether every worker has opened, and so knows who takes part."""
        return all(self._progress.heard(worker) for worker in self.staff.working)

    def _dismiss(self) -> None:
        """Let those go whose bins have moved."""
        # No checkpoint is begun while one who is dismissed has not gone: so nobody is before all
        # that it waits for is over, which may itself wait for a checkpoint.
        if self.forsworn is None or self.checkpoints.under_way:
            return
        running = {one.command.id for one in self.conductor.commands}
        for worker in self.staff.relieved(running | self.reading.running):
            self.staff.relieve(worker, self.forsworn, self._forswearing.demand(self.forsworn))
        for worker, until in self.staff.waiting.items():
            if self._emptying.left(worker, self._ended_before(until)):
                self.staff.dismiss(worker)
                self.decisions.take(LeaveDecision(worker, until), partial(self.staff.part, worker))

    def _ended_before(self, time: int) -> bool:
        """Whether all that is earlier has come to the ends of the flow."""
        ends = (self._progress.frontier(at) for at in self._plan.ends)
        return all(outer(one) >= time for frontier in ends for one in frontier)

    def _conduct(self) -> None:
        self.conductor.step(self.forsworn, self._forswearing.passed, self._over)
        if self.forsworn is not None:
            self._routing.settle(Antichain.of(self.forsworn))

    def _over(self, time: int) -> bool:
        """Whether every stateful operator is past a time, as far as is known here."""
        outputs = (self._plan.ports[keyed.name].outputs[0] for keyed in self._plan.keyed)
        frontiers = (outward(self._progress.frontier(output)) for output in outputs)
        return not any(frontier.less_equal(time) for frontier in frontiers)

    def _forswear(self) -> None:
        sent = [round for round in self.conductor.rounds() if round.sent]
        self._forswearing.advance(
            PendingChanges(
                furthest=self.furthest(),
                unsent=self.decisions.least,
                sent=[round.time for round in sent],
                demanded=[
                    *(round.time for round in sent if round.demand is not None),
                    *self.reading.times,
                ],
                leaving=list(self.staff.waiting.values()),
                waiting=bool(self._joining) or not self.conductor.idle,
                patience=self.conductor.patience(self._due),
            )
        )

    def _due(self, round: Round) -> bool:
        """Whether it is to be sent, or its time can be no other any more."""
        return not round.sent or self._forswearing.passed(round.time)
