"""The simulator: clock, network, state topic and schedule from one seed.

Guarantees that a run is a function of its seed. It may delay any frame, any worker's turn and any
answer of the state topic against any other. Each link keeps its order, but its data, progress and
reports are independent. The simulator runs the real engine: store, wire format and layers included.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, Self, TypeVar

from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.redefinitions import redefinitions
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.record_writer import RecordWriter
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.command import MoveBins, Reconfigure, SwitchLogic
from meander.dataflow.control.decisions import Decision, LogicDecision
from meander.dataflow.control.reports import BinSizes, WorkerReport
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.events import EngineEvent
from meander.dataflow.exactly_once.commit_history import (
    History,
    Written,
    joint_decisions,
    logic_changes,
)
from meander.dataflow.interfaces import Clock, Frame, Links
from meander.dataflow.metrics.counters import added
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import ListSource
from meander.dataflow.simulation.transactions import Ledger
from meander.dataflow.wire import check_size, is_ordered
from meander.schemas.control import CommandError
from meander.schemas.errors import MeanderError
from meander.schemas.status import CommandRejected
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.orphans import Orphans
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation, RecordMissing, Ticket

NOW_MS = 4_000_000_000_000
"""The start of the simulated wall clock: later than all data, so that no record is a future
record."""

T = TypeVar("T")

NO_EXECUTION = ExecutionId(0)

MAX_ACTIONS = 400_000
"""The scheduling decisions after which a run counts as endless (I7)."""


class SimClock:
    """A clock that advances only by calls."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._start, self._seconds = now_ms, 0.0

    def now_ms(self) -> int:
        """Return the simulated wall clock."""
        return self._start + int(self._seconds * 1000)

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self._seconds

    def undisturbed(self) -> float:
        """Return the simulated seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self._seconds += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or backwards, without an advance of time."""
        self._start += round(seconds * 1000)


LinkKey = tuple[WorkerId, WorkerId, Literal["data", "progress", "reports"]]
"""The sender, the receiver, and the kind of frames."""


class SimNetwork:
    """A network of all links between all members."""

    def __init__(self) -> None:
        self.frames: dict[LinkKey, deque[Frame]] = {}
        self.inboxes: dict[WorkerId, list[tuple[WorkerId, Frame]]] = {}
        self.reports: dict[LinkKey, deque[WorkerReport]] = {}
        """The reports on their way to the coordinator, those of lost workers included."""
        self.reported: list[tuple[WorkerId, WorkerReport]] = []
        """The arrived reports that the coordinator has not read."""

    def busy(self) -> list[LinkKey]:
        """Return the links that hold frames or reports, in a stable order."""
        lanes = chain(self.frames.items(), self.reports.items())
        return sorted([link for link, queue in lanes if queue])

    def deliver(self, link: LinkKey, count: int) -> None:
        """Deliver the first `count` frames or reports of a link."""
        sender, receiver, carried = link
        if carried == "reports":
            _bring(sender, self.reports[link], self.reported, count)
        else:
            _bring(sender, self.frames[link], self.inboxes.setdefault(receiver, []), count)

    def report(self, worker: WorkerId, reports: Iterable[WorkerReport]) -> None:
        """Send a worker's reports to the coordinator."""
        self.reports.setdefault((worker, COORDINATOR, "reports"), deque()).extend(reports)

    @property
    def reporting(self) -> bool:
        """Return whether a report is unread. Bin sizes do not count, as the reports about many bins
        never end."""
        queued = (report for queue in self.reports.values() for report in queue)
        arrived = (report for _, report in self.reported)
        return any(not isinstance(report, BinSizes) for report in chain(arrived, queued))


def _bring(sender: WorkerId, queue: deque[T], inbox: list[tuple[WorkerId, T]], count: int) -> None:
    inbox.extend((sender, queue.popleft()) for _ in range(min(count, len(queue))))


class SimLinks:
    """A view of the network for one member."""

    def __init__(self, network: SimNetwork, me: WorkerId) -> None:
        self._network, self._me = network, me

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Send a frame. Raises MeanderError where it is longer than a real link takes."""
        check_size(peer, frame)
        link: LinkKey = (self._me, peer, "progress" if is_ordered(frame) else "data")
        self._network.frames.setdefault(link, deque()).append(frame)

    def flush(self) -> None:
        """Do nothing, as the schedule may delay each frame against another."""

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        """Return the delivered frames."""
        return self._network.inboxes.pop(self._me, [])


class SimTopic:
    """A state topic of all workers in memory. Its answers take some turns."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._records: list[tuple[bytes, bytes | None]] = []
        self._keys: set[bytes] = set()
        self._pending: dict[Ticket, RecordLocation | list[bytes] | RecordMissing] = {}
        self._tickets = 0

    def append(self, key: bytes, payload: bytes) -> Ticket:
        """Keep a record. Raises MeanderError for a key that was used before."""
        if key in self._keys:
            raise MeanderError(f"state record {key!r}", "its key was used before")
        self._keys.add(key)
        self._records.append((key, payload))
        return self._answer(RecordLocation(key, 0, len(self._records) - 1, len(payload)))

    def appended(self, ticket: Ticket) -> RecordLocation | None:
        """Return the location of a record some turns later, and None before."""
        result = self._when_ready(ticket)
        assert result is None or isinstance(result, RecordLocation)
        return result

    def here(self, places: Sequence[RecordLocation]) -> list[bytes]:
        """Return records at once. Raises RecordMissing where one is not at its location."""
        return [self._read(place) for place in places]

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        """Request records, and return the ticket."""
        try:
            return self._answer(self.here(locations))
        except RecordMissing as missing:
            return self._answer(missing)

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Return the records some turns later, and None before. Raises RecordMissing where one is
        not at its location."""
        result = self._when_ready(ticket)
        if isinstance(result, RecordMissing):
            raise result
        assert result is None or isinstance(result, list)
        return result

    def abandon(self, ticket: Ticket) -> None:
        """Drop a ticket, and delete its record if it appended one."""
        result = self._pending.pop(ticket)
        if isinstance(result, RecordLocation):
            self.delete([result])

    def delete(self, locations: Sequence[RecordLocation]) -> None:
        """Delete records and compact at once."""
        for location in locations:
            self._records[location.offset] = location.key, None

    def sweep(self, orphans: Orphans) -> None:
        """Delete orphans."""
        self.delete(
            [
                RecordLocation(key, 0, offset, len(payload))
                for offset, (key, payload) in enumerate(self._records)
                if payload is not None and orphans.includes(key)
            ]
        )

    @property
    def keys(self) -> set[bytes]:
        """Return the keys of the records that lie here."""
        return {key for key, payload in self._records if payload is not None}

    def close(self) -> None:
        """Do nothing, as no resource is open."""

    def _read(self, place: RecordLocation) -> bytes:
        if place.offset >= len(self._records):
            raise RecordMissing(f"state record {place.key!r}", "its partition ends before it")
        key, payload = self._records[place.offset]
        if payload is None:
            raise RecordMissing(f"state record {key!r}", "compaction has removed it")
        if key != place.key:
            raise RecordMissing(f"state record {place.key!r}", f"{key!r} lies at its place")
        return payload

    def _answer(self, result: RecordLocation | list[bytes] | RecordMissing) -> Ticket:
        self._tickets += 1
        self._pending[Ticket(self._tickets)] = result
        return Ticket(self._tickets)

    def _when_ready(self, ticket: Ticket) -> RecordLocation | list[bytes] | RecordMissing | None:
        return self._pending.pop(ticket) if self._rng.random() < 0.5 else None


@dataclass(slots=True)
class DurableWorld:
    """A durable world that outlives the executions of a flow: its topics."""

    state: SimTopic
    in_flight: SimTopic
    ledger: Ledger
    """The committed results."""
    decisions: list[Written] = field(default_factory=list)
    """All decisions of coordinators, of which the first `durable_decisions` are durable."""
    durable_decisions: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    unconfirmed: list[Checkpoint] = field(default_factory=list)
    """Checkpoints whose write has started, durable or not."""
    restored: Checkpoint | None = None
    """The checkpoint from which the current execution started."""
    previous: Sequence[Checkpoint] = ()
    """The retained checkpoints before that one."""
    execution: ExecutionId = NO_EXECUTION
    """The current execution."""
    start: RestorePlan = field(init=False)
    """The restore plan of the current execution."""

    @classmethod
    def empty(cls, rng: random.Random) -> Self:
        """Return a world without earlier executions."""
        return cls(SimTopic(rng), SimTopic(rng), Ledger(random.Random(rng.random())))

    def start_execution(self, plan: Plan, workers: int, override_history: OverrideHistory) -> None:
        """Fence the previous execution, and start another one from the newest checkpoint.
        `override_history` holds overrides that the ledger does not know."""
        self.execution = ExecutionId(self.execution + 1)
        self.ledger.start_execution(self.execution)
        # Some of the previous execution's pending writes are durable.
        del self.decisions[self.ledger.rng.randint(self.durable_decisions, len(self.decisions)) :]
        self.checkpoints += [one for one in self.unconfirmed if self.ledger.rng.random() < 0.5]
        self.unconfirmed.clear()
        self.restored = self.checkpoints[-1] if self.checkpoints else None
        self.previous = self.checkpoints[-plan.flow.checkpoints.retained : -1]
        restorable = [] if self.restored is None else [*self.previous, self.restored]
        for one in filter(lambda one: one.parts, [*restorable, *self.savepoints]):
            data = replace(one, parts=()).to_bytes()
            assert self._read(one.header(data)) == one, "the topic holds all retained checkpoints"
        joint = joint_decisions(self.decisions)
        last = joint[-1] if joint else None
        begins = RestorePlan.of(plan, workers, self.restored, joint=last).start_decision
        self.decisions.append((self.execution, begins))
        self.durable_decisions = len(self.decisions)
        history = History(plan.flow.space, self.decisions, self.ledger.markers, override_history)
        restored = RestorePlan.of(plan, workers, self.restored, history, last)
        changes = [*logic_changes(self.decisions)]
        if redefined := redefinitions(plan, changes, restored.time):
            self.decisions.append((self.execution, LogicDecision(tuple(redefined))))
            self.durable_decisions = len(self.decisions)
        restored = restored.with_logic(plan, [*changes, *redefined])
        self.start = restored.with_reconfigurations(joint)
        orphans = Orphans.of([*restorable, *self.savepoints])
        for topic in (self.state, self.in_flight):
            topic.sweep(orphans)

    @property
    def savepoints(self) -> list[Checkpoint]:
        """Return the checkpoints with a name."""
        return [one for one in self.checkpoints if one.savepoint]

    def _read(self, record: bytes) -> Checkpoint:
        return Checkpoint.from_bytes(record, self.in_flight.here)

    def write_decision(self, execution: ExecutionId, decision: Decision) -> Callable[[], bool]:
        """Start to write a decision of an execution. The returned function tells whether the
        decision is durable, some turns later."""
        self.decisions.append((execution, decision))
        number = len(self.decisions)

        def durable() -> bool:
            if number <= self.durable_decisions:
                return True
            if execution == self.execution and self.ledger.rng.random() < 0.5:
                self.durable_decisions = number
            return number <= self.durable_decisions

        return durable

    def checkpoint_coordinator(
        self, plan: Plan, links: Links, clock: Clock, durable: Callable[[], bool]
    ) -> CheckpointCoordinator:
        """Return the checkpoint coordinator of this execution. `durable` tells when a checkpoint is
        durable."""
        execution = self.execution

        def append(record: bytes) -> Callable[[], int | None]:
            self.ledger.expect_current(execution)
            one = self._read(record)
            self.unconfirmed.append(one)

            def placed() -> int | None:
                self.ledger.expect_current(execution)
                if one in self.unconfirmed and durable():
                    self.unconfirmed.remove(one)
                    self.checkpoints.append(one)
                return None if one in self.unconfirmed else len(self.checkpoints)

            return placed

        def keep(checkpoint: Checkpoint) -> Callable[[], Checkpoint | None]:
            self.ledger.expect_current(execution)
            recording = RecordWriter(checkpoint, self.in_flight, append)

            def durably() -> Checkpoint | None:
                found = recording.recorded()
                return None if found is None else found.checkpoint

            return durably

        def forget(
            places: Sequence[RecordLocation], chunks: Sequence[RecordLocation], _: Collection[int]
        ) -> None:
            self.in_flight.delete(places)
            self.state.delete(chunks)

        return CheckpointCoordinator(
            plan, self.execution, self.restored, links, clock, keep, forget,
            self.ledger.marker_retention(), self.savepoints, previous=self.previous,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Join:
    """A command that adds a worker with the next number."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A command that removes a worker."""

    id: str
    worker: int


@dataclass(frozen=True, slots=True)
class MovePartition:
    """A command that assigns a partition to a worker. `source` is the name of its source."""

    id: str
    source: str
    partition: int
    worker: int


@dataclass(frozen=True, slots=True)
class AbortMoves:
    """A command that aborts a command that moves bins."""

    id: str
    command: str


@dataclass(frozen=True, slots=True)
class AddPartition:
    """A command that adds a partition to the topic of a source, given by name. Its records are
    (milliseconds since 1970, value)."""

    source: str
    records: Sequence[tuple[int, object]] = ()


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """A command that takes a checkpoint, by default with the flow's policy."""

    policy: Policy | None = None
    savepoint: str = ""
    """The name of the savepoint, or ''."""


Command = (
    MoveBins
    | SwitchLogic
    | Reconfigure
    | AbortMoves
    | Join
    | Leave
    | MovePartition
    | AddPartition
    | TakeCheckpoint
)
Build = Callable[[WorkerId, "SimLinks", SimClock, "SimTopic", bool], Worker]
"""Builds one worker with its links, clock and state topic. The last argument tells whether the
worker joins a running flow."""


@dataclass(slots=True)
class Simulation:
    """A simulation that runs a coordinator and its workers under one adversarial schedule."""

    plan: Plan
    rng: random.Random
    clock: SimClock
    coordinator: Coordinator
    workers: list[Worker]
    network: SimNetwork
    commands: list[Command]
    start_worker: Callable[[WorkerId], Worker]
    events: list[EngineEvent] = field(default_factory=list)
    actions: int = 0
    next_worker: int = field(init=False)
    counters: Counter[str] = field(default_factory=Counter)
    """The counters of workers that have left."""
    pauses: dict[WorkerId, int] = field(default_factory=dict)
    """The number of the scheduling decision before which a member takes no turn."""
    slowed: dict[tuple[WorkerId, WorkerId], int] = field(default_factory=dict)
    """The number of the scheduling decision before which a link delivers no frame."""
    actions_before: int = 0
    """The number of scheduling decisions before the current run: see `MAX_ACTIONS`."""
    decisions: list[Decision] = field(default_factory=list)
    """All decisions of the coordinator."""

    def __post_init__(self) -> None:
        self.next_worker = len(self.workers)

    @property
    def calm(self) -> bool:
        """Return whether no fault delays a member or link, no bin, member or report is in transit,
        and no function is to be called again."""
        held = (*self.pauses.values(), *self.slowed.values())
        coordinator, reporting = self.coordinator, self.network.reporting
        changing = coordinator.logics.waiting or not coordinator.reconfigurations.idle
        moving = (
            coordinator.busy or not coordinator.migrations.awaits_times
            or coordinator.workers.leaving or coordinator.assignment.changing
            or (changing and not coordinator.reconfigurations.awaits_time)
            or any(worker.loading or worker.calling for worker in self.workers)
        )  # fmt: skip
        return max(held, default=0) <= self.actions and not (moving or reporting)

    @property
    def done(self) -> bool:
        """Return whether all members are done, and the coordinator has read all reports."""
        if self.commands or not self.coordinator.done or self.network.reporting:
            return False
        return all(w.done for w in self.workers)

    def act(self) -> None:
        """Take one scheduling decision."""
        self.actions += 1
        assert self.actions - self.actions_before < MAX_ACTIONS, (
            "the flow does not come to its end (I7)"
        )
        busy = self.network.busy()
        if self.slowed:
            busy = [link for link in busy if self.slowed.get(link[:2], 0) < self.actions]
        choice = self.rng.random()
        if busy and choice < 0.45:
            self.network.deliver(self.rng.choice(busy), self.rng.randint(1, 4))
        elif choice < 0.8:
            worker = self.rng.choice(self.workers)
            if self._may_run(worker.me):
                self._step_worker(worker)
        elif choice < 0.92:
            if self._may_run(COORDINATOR):
                self._step_coordinator()
        elif choice < 0.95 and self.commands and self.coordinator.ready:
            self.submit(self.commands.pop(0))
        else:
            self.clock.advance(self.rng.random() * 0.004)

    def turn(self) -> bool:
        """Deliver all frames and give each member one turn, without a random choice. Return whether
        a worker has worked or a frame waits."""
        for link in self.network.busy():
            self.network.deliver(link, 1 << 30)
        worked = [self._step_worker(worker) for worker in [*self.workers]]
        self._step_coordinator()
        return any(worked) or bool(self.network.busy())

    def submit(self, command: Command) -> None:
        """Submit a command. A rejection becomes an event."""
        try:
            self._submit(command)
        except CommandError as error:
            id = "" if isinstance(command, Join | AddPartition | TakeCheckpoint) else command.id
            self.events.append(CommandRejected(id, 0, str(error)))
        self.collect()

    def _submit(self, command: Command) -> None:
        match command:
            case MoveBins():
                self.coordinator.submit(command)
            case SwitchLogic():
                self.coordinator.change_logic(command)
            case Reconfigure():
                self.coordinator.reconfigure(command)
            case TakeCheckpoint(policy, savepoint):
                self.coordinator.checkpoint(policy=policy, savepoint=savepoint)
            case AbortMoves(id, other):
                self.coordinator.abort(other, by=id)
            case Leave(id, worker):
                self.coordinator.leave(id, [WorkerId(worker)])
            case MovePartition(id, source, partition, worker):
                self.coordinator.move_partition(id, source, partition, WorkerId(worker))
            case AddPartition(source, records):
                (grown,) = (one.spec for one in self.plan.sources if one.name == source)
                assert isinstance(grown, ListSource), f"source {source!r} is no list"
                grown.add_partition(records)
            case Join():
                number = WorkerId(self.next_worker)
                self.coordinator.join(number)
                self.next_worker += 1
                self.workers.append(self.start_worker(number))

    def _may_run(self, member: WorkerId) -> bool:
        return self.pauses.get(member, 0) < self.actions

    def _step_coordinator(self) -> None:
        self.coordinator.step()
        reported, self.network.reported = self.network.reported, []
        for worker, report in reported:
            self.coordinator.report(worker, report)
        self.collect()

    def _step_worker(self, worker: Worker) -> bool:
        worked = worker.step()
        self.network.report(worker.me, worker.reports())
        if worker.left and worker.idle:
            self._remove_worker(worker)
        return worked

    def _remove_worker(self, worker: Worker) -> None:
        assert not any(worker.state().values()), "a worker leaves without states (I2)"
        worker.close()
        self.counters = added(self.counters, worker.counters)
        self.workers.remove(worker)

    def collect(self) -> None:
        """Collect new events of the coordinator."""
        self.events += self.coordinator.events()


def simulate(
    plan: Plan,
    workers: int,
    rng: random.Random,
    build: Build,
    world: DurableWorld,
    commands: Sequence[Command] = (),
    override_history: OverrideHistory = NO_OVERRIDES,
    clock: SimClock | None = None,
) -> Simulation:
    """Build a simulation of a plan, which starts from the newest checkpoint in the world."""
    clock, network = clock or SimClock(), SimNetwork()
    world.start_execution(plan, workers, override_history)
    execution = world.execution
    written: list[Decision] = []

    def write(decision: Decision) -> Callable[[], bool]:
        written.append(decision)
        return world.write_decision(execution, decision)

    links = SimLinks(network, COORDINATOR)
    checkpoints = world.checkpoint_coordinator(plan, links, clock, lambda: rng.random() < 0.5)
    coordinator = Coordinator(plan, world.start, links, clock, write, checkpoints)
    members = map(WorkerId, range(workers))

    def start_worker(me: WorkerId, joins: bool = True) -> Worker:
        return build(me, SimLinks(network, me), clock, world.state, joins)

    built = [start_worker(me, joins=False) for me in members]
    return Simulation(
        plan, rng, clock, coordinator, built, network, list(commands), start_worker,
        decisions=written,
    )  # fmt: skip
