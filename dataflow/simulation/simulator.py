"""The simulator: clock, network, state topic and schedule from one seed.

Guarantees that a run is a function of its seed. It may delay any frame, any worker's turn and any
answer of the state topic against any other. Each link keeps its order, and its data, progress and
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
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.recording import Recording
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.command import MoveBins, Refused
from meander.dataflow.control.decisions import Decision
from meander.dataflow.control.reports import BinSizes, WorkerReport
from meander.dataflow.control.timestamp_overrides import NO_PAST, OverrideHistory
from meander.dataflow.coordinator.coordinator import Controller
from meander.dataflow.coordinator.events import EngineEvent
from meander.dataflow.exactly_once.commit_history import History, Written
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import ListSource
from meander.dataflow.simulation.transactions import Ledger
from meander.dataflow.wire import check_size, of_progress
from meander.schemas.errors import MeanderError
from meander.schemas.status import CommandRejected
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.orphans import Orphans
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation, RecordMissing, Ticket

NOW_MS = 4_000_000_000_000
"""The simulated wall clock's start: later than all data, so that no record is a future record."""

T = TypeVar("T")

_UNBORN = ExecutionId(0)

MOST_ACTIONS = 400_000
"""The scheduling decisions after which a run counts as endless (I7)."""


class SimClock:
    """A clock that moves only on request."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._start, self._seconds = now_ms, 0.0

    def now_ms(self) -> int:
        """Return the simulated wall clock."""
        return self._start + int(self._seconds * 1000)

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Advance the time by some seconds."""
        self._seconds += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or backwards, while no time passes."""
        self._start += round(seconds * 1000)


Lane = tuple[WorkerId, WorkerId, Literal["data", "progress", "reports"]]
"""The sender, the receiver, and the kind of frames."""


class SimNetwork:
    """A network that holds all links between all members."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, deque[Frame]] = {}
        self.inboxes: dict[WorkerId, list[tuple[WorkerId, Frame]]] = {}
        self.reports: dict[Lane, deque[WorkerReport]] = {}
        """Reports on their way to the coordinator, also those of lost workers."""
        self.reported: list[tuple[WorkerId, WorkerReport]] = []
        """Reports that the coordinator has not read."""

    def busy(self) -> list[Lane]:
        """Return the lanes that hold frames or reports, in a stable order."""
        lanes = chain(self.lanes.items(), self.reports.items())
        return sorted([lane for lane, queue in lanes if queue])

    def deliver(self, lane: Lane, count: int) -> None:
        """Deliver the first `count` frames or reports of a lane."""
        sender, receiver, carried = lane
        if carried == "reports":
            _bring(sender, self.reports[lane], self.reported, count)
        else:
            _bring(sender, self.lanes[lane], self.inboxes.setdefault(receiver, []), count)

    def report(self, worker: WorkerId, reports: Iterable[WorkerReport]) -> None:
        """Send a worker's reports to the coordinator."""
        self.reports.setdefault((worker, COORDINATOR, "reports"), deque()).extend(reports)

    @property
    def reporting(self) -> bool:
        """Return whether the coordinator has not read some reports. Bin sizes do not count, as many
        bins always have some on their way."""
        queued = (report for queue in self.reports.values() for report in queue)
        heard = (report for _, report in self.reported)
        return any(not isinstance(report, BinSizes) for report in chain(heard, queued))


def _bring(sender: WorkerId, queue: deque[T], inbox: list[tuple[WorkerId, T]], count: int) -> None:
    inbox.extend((sender, queue.popleft()) for _ in range(min(count, len(queue))))


class SimLinks:
    """The links that one member has to the network."""

    def __init__(self, network: SimNetwork, me: WorkerId) -> None:
        self._network, self._me = network, me

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Send a frame. Raises MeanderError where it is longer than a real link takes."""
        check_size(peer, frame)
        lane: Lane = (self._me, peer, "progress" if of_progress(frame) else "data")
        self._network.lanes.setdefault(lane, deque()).append(frame)

    def flush(self) -> None:
        """Do nothing, as each frame travels alone and may be delayed against another."""

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        """Return the delivered frames."""
        return self._network.inboxes.pop(self._me, [])


class SimTopic:
    """A state topic that all workers share. Its answers take some turns."""

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
        answer = self._when_ready(ticket)
        assert answer is None or isinstance(answer, RecordLocation)
        return answer

    def here(self, places: Sequence[RecordLocation]) -> list[bytes]:
        """Return records at once. Raises RecordMissing where one is not at its location."""
        return [self._read(place) for place in places]

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        """Request records, and return the ticket."""
        try:
            return self._answer(self.here(locations))
        except RecordMissing as gone:
            return self._answer(gone)

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        """Return the records some turns later, and None before. Raises RecordMissing where one is
        not at its location."""
        answer = self._when_ready(ticket)
        if isinstance(answer, RecordMissing):
            raise answer
        assert answer is None or isinstance(answer, list)
        return answer

    def abandon(self, ticket: Ticket) -> None:
        """Drop a ticket, and delete its record if it appended one."""
        answer = self._pending.pop(ticket)
        if isinstance(answer, RecordLocation):
            self.delete([answer])

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

    def _answer(self, answer: RecordLocation | list[bytes] | RecordMissing) -> Ticket:
        self._tickets += 1
        self._pending[Ticket(self._tickets)] = answer
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
    journal: list[Written] = field(default_factory=list)
    """All decisions of coordinators. The first `certain` ones are durable."""
    certain: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    unsure: list[Checkpoint] = field(default_factory=list)
    """Checkpoints that are being written, durable or not."""
    before: Checkpoint | None = None
    """The checkpoint that the current execution started from."""
    earlier: Sequence[Checkpoint] = ()
    """The retained checkpoints before that."""
    execution: ExecutionId = _UNBORN
    """The current execution."""
    start: RestorePlan = field(init=False)
    """The restore plan of the current execution."""

    @classmethod
    def empty(cls, rng: random.Random) -> Self:
        """Return a world without earlier executions."""
        return cls(SimTopic(rng), SimTopic(rng), Ledger(random.Random(rng.random())))

    def begin(self, plan: Plan, workers: int, past: OverrideHistory) -> None:
        """Start an execution from the newest checkpoint. The previous execution is fenced. `past`
        holds overrides that the ledger does not know."""
        self.execution = ExecutionId(self.execution + 1)
        self.ledger.begin(self.execution)
        # Some of the previous execution's pending writes are durable.
        del self.journal[self.ledger.rng.randint(self.certain, len(self.journal)) :]
        self.checkpoints += [one for one in self.unsure if self.ledger.rng.random() < 0.5]
        self.unsure.clear()
        self.before = self.checkpoints[-1] if self.checkpoints else None
        self.earlier = self.checkpoints[-plan.flow.checkpoints.retained : -1]
        there = [] if self.before is None else [*self.earlier, self.before]
        for one in filter(lambda one: one.parts, [*there, *self.savepoints]):
            data = replace(one, parts=()).to_bytes()
            assert self._read(one.header(data)) == one, "what is kept lies there"
        begins = RestorePlan.of(plan, workers, self.before).start_decision
        self.journal.append((self.execution, begins))
        self.certain = len(self.journal)
        history = History(plan.flow.space, self.journal, self.ledger.marks, past)
        self.start = RestorePlan.of(plan, workers, self.before, history)
        orphans = Orphans.of([*there, *self.savepoints])
        for topic in (self.state, self.in_flight):
            topic.sweep(orphans)

    @property
    def savepoints(self) -> list[Checkpoint]:
        """Return the checkpoints with a name."""
        return [one for one in self.checkpoints if one.savepoint]

    def _read(self, record: bytes) -> Checkpoint:
        return Checkpoint.from_bytes(record, self.in_flight.here)

    def write(self, life: ExecutionId, decision: Decision) -> Callable[[], bool]:
        """Start to write a decision of an execution. The returned function tells whether it is
        durable, some turns later."""
        self.journal.append((life, decision))
        number = len(self.journal)

        def durable() -> bool:
            if number <= self.certain:
                return True
            if life == self.execution and self.ledger.rng.random() < 0.5:
                self.certain = number
            return number <= self.certain

        return durable

    def taking(
        self, plan: Plan, links: Links, clock: SimClock, durable: Callable[[], bool]
    ) -> CheckpointCoordinator:
        """Return the checkpoint coordinator of this execution. `durable` decides when each
        checkpoint is durable."""
        life = self.execution

        def append(record: bytes) -> Callable[[], int | None]:
            self.ledger.expect(life)
            one = self._read(record)
            self.unsure.append(one)

            def placed() -> int | None:
                self.ledger.expect(life)
                if one in self.unsure and durable():
                    self.unsure.remove(one)
                    self.checkpoints.append(one)
                return None if one in self.unsure else len(self.checkpoints)

            return placed

        def keep(checkpoint: Checkpoint) -> Callable[[], Checkpoint | None]:
            self.ledger.expect(life)
            recording = Recording(checkpoint, self.in_flight, append)

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
            plan, self.execution, self.before, links, clock, keep, forget,
            self.ledger.trimming(), self.savepoints, previous=self.earlier,
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
class HandOver:
    """A command that gives a partition of a source to a worker. `source` is its name in the
    flow."""

    id: str
    source: str
    partition: int
    worker: int


@dataclass(frozen=True, slots=True)
class AbortMoves:
    """A command that ends a command that moves bins."""

    id: str
    command: str


@dataclass(frozen=True, slots=True)
class AddPartition:
    """A command that adds a partition to a source's topic. Its records are (milliseconds since
    1970, value), and `source` is its name in the flow."""

    source: str
    records: Sequence[tuple[int, object]] = ()


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """A command that takes a checkpoint, by the flow's policy where it names none."""

    policy: Policy | None = None
    savepoint: str = ""
    """The name of the savepoint, or ''."""


Command = MoveBins | AbortMoves | Join | Leave | HandOver | AddPartition | TakeCheckpoint
Build = Callable[[WorkerId, "SimLinks", SimClock, "SimTopic", bool], Worker]
"""Builds one worker in its surroundings. The last argument tells whether it joins a running
flow."""


@dataclass(slots=True)
class Simulation:
    """A simulation that runs a coordinator and its workers under one adversarial schedule."""

    plan: Plan
    rng: random.Random
    clock: SimClock
    controller: Controller
    workers: list[Worker]
    network: SimNetwork
    commands: list[Command]
    hire: Callable[[WorkerId], Worker]
    events: list[EngineEvent] = field(default_factory=list)
    actions: int = 0
    hired: int = field(init=False)
    counters: Counter[str] = field(default_factory=Counter)
    """The counters of workers that have left."""
    pauses: dict[WorkerId, int] = field(default_factory=dict)
    """The number of the decision before which a member takes no turn."""
    slowed: dict[tuple[WorkerId, WorkerId], int] = field(default_factory=dict)
    """The number of the decision before which a link, by sender and receiver, delivers no frame."""
    began: int = 0
    """The number of decisions before the current run: see `MOST_ACTIONS`."""
    journal: list[Decision] = field(default_factory=list)
    """All decisions of the coordinator."""

    def __post_init__(self) -> None:
        self.hired = len(self.workers)

    @property
    def calm(self) -> bool:
        """Return whether no member or link is delayed, and no bins, members or reports are in
        transit."""
        held = (*self.pauses.values(), *self.slowed.values())
        controller, reporting = self.controller, self.network.reporting
        moving = (
            controller.busy or not controller.migrations.awaits_times
            or controller.workers.leaving or controller.assignment.changing
            or any(worker.loading for worker in self.workers)
        )  # fmt: skip
        return max(held, default=0) <= self.actions and not (moving or reporting)

    @property
    def done(self) -> bool:
        """Return whether all members are done, and the coordinator has read all reports."""
        if self.commands or not self.controller.done or self.network.reporting:
            return False
        return all(w.done for w in self.workers)

    def act(self) -> None:
        """Take one decision of the schedule."""
        self.actions += 1
        assert self.actions - self.began < MOST_ACTIONS, "the flow does not come to its end (I7)"
        busy = self.network.busy()
        if self.slowed:
            busy = [lane for lane in busy if self.slowed.get(lane[:2], 0) < self.actions]
        choice = self.rng.random()
        if busy and choice < 0.45:
            self.network.deliver(self.rng.choice(busy), self.rng.randint(1, 4))
        elif choice < 0.8:
            worker = self.rng.choice(self.workers)
            if self._goes_on(worker.me):
                self._turn(worker)
        elif choice < 0.92:
            if self._goes_on(COORDINATOR):
                self._conduct()
        elif choice < 0.95 and self.commands and self.controller.ready:
            self.submit(self.commands.pop(0))
        else:
            self.clock.advance(self.rng.random() * 0.004)

    def submit(self, command: Command) -> None:
        """Submit a command. A rejection becomes an event."""
        try:
            self._submit(command)
        except Refused as refusal:
            id = "" if isinstance(command, Join | AddPartition | TakeCheckpoint) else command.id
            self.events.append(CommandRejected(id, 0, str(refusal)))
        self.collect()

    def _submit(self, command: Command) -> None:
        match command:
            case MoveBins():
                self.controller.submit(command)
            case TakeCheckpoint(policy, savepoint):
                self.controller.checkpoint(policy=policy, savepoint=savepoint)
            case AbortMoves(id, other):
                self.controller.abort(other, by=id)
            case Leave(id, worker):
                self.controller.leave(id, [WorkerId(worker)])
            case HandOver(id, source, partition, worker):
                self.controller.hand_over(id, source, partition, WorkerId(worker))
            case AddPartition(source, records):
                (grown,) = (one.spec for one in self.plan.sources if one.name == source)
                assert isinstance(grown, ListSource), f"source {source!r} is no list"
                grown.grow(records)
            case Join():
                number = WorkerId(self.hired)
                self.controller.join(number)
                self.hired += 1
                self.workers.append(self.hire(number))

    def _goes_on(self, member: WorkerId) -> bool:
        return self.pauses.get(member, 0) < self.actions

    def _conduct(self) -> None:
        self.controller.step()
        reported, self.network.reported = self.network.reported, []
        for worker, report in reported:
            self.controller.report(worker, report)
        self.collect()

    def _turn(self, worker: Worker) -> None:
        worker.step()
        self.network.report(worker.me, worker.reports())
        if worker.left:
            self._let_go(worker)

    def _let_go(self, worker: Worker) -> None:
        assert worker.idle, "who leaves has nothing left to do"
        assert not any(worker.state().values()), "and keeps no state (I2)"
        worker.close()
        self.counters += worker.counters
        self.workers.remove(worker)

    def collect(self) -> None:
        """Collect new events of the coordinator."""
        self.events += self.controller.events()


def simulate(
    plan: Plan,
    workers: int,
    rng: random.Random,
    build: Build,
    world: DurableWorld,
    commands: Sequence[Command] = (),
    past: OverrideHistory = NO_PAST,
) -> Simulation:
    """Build a simulation of a plan. It starts from the newest checkpoint in the world, if any."""
    clock, network = SimClock(), SimNetwork()
    world.begin(plan, workers, past)
    life = world.execution
    written: list[Decision] = []

    def journal(decision: Decision) -> Callable[[], bool]:
        written.append(decision)
        return world.write(life, decision)

    links = SimLinks(network, COORDINATOR)
    checkpoints = world.taking(plan, links, clock, lambda: rng.random() < 0.5)
    controller = Controller(plan, world.start, links, clock, journal, checkpoints)
    members = map(WorkerId, range(workers))

    def hire(me: WorkerId, joins: bool = True) -> Worker:
        return build(me, SimLinks(network, me), clock, world.state, joins)

    built = [hire(me, joins=False) for me in members]
    return Simulation(
        plan, rng, clock, controller, built, network, list(commands), hire, journal=written
    )
