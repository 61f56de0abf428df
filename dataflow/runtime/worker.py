"""A worker: one single-threaded loop over links, operators and progress (design 3).

A turn takes what the links brought, schedules every operator once, and flushes the turn's changes
of progress as one atomic update. Nothing in a turn blocks or takes long; what takes long is cut
into slices by the operators. Invariant: every message is in one place at any moment (a link or one
input), and every place is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from meander.dataflow.api.nodes import scope_of
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.credit import Credit
from meander.dataflow.checkpoint.alignment import Alignment
from meander.dataflow.checkpoint.in_flight_restore import InFlightRestore
from meander.dataflow.checkpoint.snapshot import SnapshotHandler
from meander.dataflow.checkpoint.state_restore import StateRestore
from meander.dataflow.checkpoint.writer import CheckpointWriter, SnapshotContents
from meander.dataflow.control.reports import (
    PartitionsRead,
    SnapshotFailed,
    SnapshotStored,
    WorkerReport,
)
from meander.dataflow.exactly_once.transaction_loop import TransactionLoop
from meander.dataflow.graph.graph import Edge, Location
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.operators.ports import InFlight, Message
from meander.dataflow.operators.source.partitions import Standing
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch
from meander.dataflow.runtime.frame_validation import read
from meander.dataflow.runtime.operator_factory import OperatorFactory, WorkerEnvironment
from meander.dataflow.runtime.worker_metrics import Meters, Work
from meander.dataflow.wire import (
    CheckpointFrame,
    CompleteFrame,
    DataFrame,
    MemberFrame,
    Payload,
    ProgressFrame,
    TakenFrame,
    encode_data,
    encode_progress,
    encode_taken,
)
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import Checkpoint, Notice, ReplayFrom
from meander.state.keys.ids import COORDINATOR, Bin, CheckpointId, WorkerId, member_name
from meander.state.layers.parts import cut
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

IDLE_SECONDS = 0.1
"""The longest nap of a worker that nothing wakes."""
LOADING_SECONDS = 0.001
"""The longest nap while layers are being read."""


def members_of(workers: int) -> Sequence[WorkerId]:
    """Who takes part in a computation: the workers and the coordinator."""
    return [*map(WorkerId, range(workers)), COORDINATOR]


class Worker:
    """One worker of one flow."""

    def __init__(self, plan: Plan, site: WorkerEnvironment, links: Links) -> None:
        self.me = site.me
        self._plan, self._links, self._site = plan, links, site
        self._progress = (
            Progress.joining(plan.graph, site.me, links)
            if site.joins
            else Progress(plan.graph, site.me, members_of(site.workers), links)
        )
        self._credit = Credit(plan.flow.link_credit)
        self._reports: list[WorkerReport] = []
        nodes = (plan.ports[node.name] for node in plan.nodes)
        operators = [plan.migrator, plan.handover, *nodes, plan.snapshots]
        self._meters = Meters(plan.graph, operators)
        report = self._reports.append
        self._assembly = OperatorFactory(plan, site, self._progress, self, self._meters, report)
        self._assembly.migrator.resume(self._assembly.start.moves)
        self._turns = [*zip(self._meters.names, self._assembly.operators, strict=True)]
        self._loading = self._load()
        self._resuming = InFlightRestore(
            site.me, plan, self._assembly.start, self._assembly.inputs, self._progress,
            site.in_flight, site.clock,
        )  # fmt: skip
        self._committing = self._commits()
        settling = Alignment(self._assembly.sources.values(), self._assembly.inflight, report)
        self._freezing = SnapshotHandler(
            site.me,
            links,
            settling,
            self._freeze,
            self._assembly.retention.keep,
            self._complete,
            self._cancelled,
            site.clock,
        )
        self._freezing.welcome(self._assembly.start.number)
        self._prepare()
        self._took = 0.0
        """Seconds that operators had of the last turn."""
        self._totals: dict[str, int | None] = {}
        """How many partitions the coordinator has been told of, by source."""
        for name, source in self._assembly.sources.items():
            self._tell_reads(name, [int(standing.partition) for standing in source.standing()])

    def step(self) -> bool:
        """One turn; whether anything was done."""
        received = self._receive()
        if not self._progress.welcome:
            self._links.flush()
            return received
        # Before all else: what is frozen does not wait for this turn's functions, nor does the word
        # that it is written.
        told = len(self._reports)
        worked = self._freezing.step(self._took)
        if len(self._reports) == told:
            began = self._site.clock.monotonic()
            worked |= self._schedule() if self._loading.done else self._load_some()
            self._took = self._site.clock.monotonic() - began
        worked |= self._committing.step()
        self._committing.hear(self._progress.overrides)
        self._give_back()
        flushed = self._progress.flush()
        self._links.flush()
        return received or flushed or worked

    def wait_seconds(self) -> float:
        """How long there is nothing to do, unless a frame or a reader wakes the loop."""
        if self.loading:
            return LOADING_SECONDS
        if self._freezing.busy:
            return LOADING_SECONDS
        naps = [operator.wait_seconds() for operator in self._assembly.operators]
        naps.append(self._committing.wait_seconds())
        return min((nap for nap in naps if nap is not None), default=IDLE_SECONDS)

    @property
    def done(self) -> bool:
        """Whether the whole computation is over and everything of this worker is outside."""
        return self._progress.is_quiescent() and self.idle

    @property
    def loading(self) -> bool:
        """Whether the states with which this worker begins are not all here yet."""
        return not self._loading.done

    @property
    def left(self) -> bool:
        """Whether this worker has left the flow: nothing comes for it any more."""
        return self._progress.ended

    @property
    def idle(self) -> bool:
        """Whether nothing of this worker is under way outside."""
        finished = all(operator.finished() for operator in self._assembly.operators)
        busy = self._freezing.busy or self._committing.busy
        return finished and not busy and self._site.dead.pending() == 0

    def reports(self) -> list[WorkerReport]:
        """The reports for the coordinator since the last call."""
        self._tell_replays()
        for name, source in self._assembly.sources.items():
            if source.total != self._totals[name]:
                self._tell_reads(name, [])
        taken = self._reports[:]
        self._reports.clear()
        return taken

    def _tell_replays(self) -> None:
        for sink in self._assembly.once:
            if (found := sink.replay.report()) is not None:
                self._reports.append(found)

    def _tell_reads(self, name: str, begun: list[int]) -> None:
        total = self._totals[name] = self._assembly.sources[name].total
        self._reports.append(PartitionsRead(name, begun, total))

    @property
    def counters(self) -> Counter[str]:
        """Records read, unreadable, written, late_adjusted, future_ignored, dead_letters,
        skipped, since the start; by how many milliseconds late ones were raised, and moves of
        partitions on demand."""
        return self._assembly.counters

    @property
    def inflight(self) -> int:
        """Bytes read that the sinks have not passed."""
        return self._assembly.inflight.bytes

    @property
    def spilled(self) -> int:
        """Bytes of records that wait on disk."""
        return self._assembly.disk.used

    @property
    def full(self) -> bool:
        """Whether reading has to stop, as too much is in flight."""
        return self._assembly.inflight.full

    def restoring(self) -> tuple[int, int]:
        """Bytes read of the states and of the records in flight with which this worker has begun,
        and of how many."""
        states, flying = self._loading, self._resuming
        return states.read + flying.read, states.total + flying.total

    def starved(self) -> list[tuple[str, str, WorkerId]]:
        """Where records are kept back, as what was sent before has not been taken: from which
        operator, to which, on which worker."""
        names, edges = self._plan.names, self._plan.graph.edges
        return [
            (names[edge.source], names[edge.target], owner)
            for router in self._assembly.routers
            for owner in router.kept
            for edge in edges
            if edge.source == router.output and self.blocked(edge, owner)
        ]

    def work(self) -> dict[str, Work]:
        """What each operator has done so far, by name."""
        return self._meters.work()

    def standing(self) -> dict[str, list[Standing]]:
        """How the partitions read here stand, by source."""
        return {name: source.standing() for name, source in self._assembly.sources.items()}

    def delays(self) -> dict[str, Histogram]:
        """How long chunks took from the reader until all sinks had passed them, by source."""
        return {name: source.delays for name, source in self._assembly.sources.items()}

    def links(self) -> tuple[dict[WorkerId, int], dict[WorkerId, int]]:
        """For each other worker, the bytes sent to it whose credit it has not given back, and those
        taken from it whose credit has not been given back: the rest is on the way or waits."""
        peers = [peer for peer in self._progress.peers if peer != COORDINATOR]
        used, kept = self._credit.used, self._credit.kept
        return {peer: used(peer) for peer in peers}, {peer: kept(peer) for peer in peers}

    def frontiers(self) -> dict[str, Antichain]:
        """The frontier at every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def state(self) -> dict[str, dict[bytes, bytes]]:
        """All keyed state on this worker, encoded: {operator: {key: state}}."""
        operators = [outlet.keyed for outlet in self._assembly.outlets]
        return {
            keyed.name: {
                key: value
                for bin in keyed.store.bins()
                if bin not in keyed.arrivals.staged
                for key, value in keyed.store.scan(Bin(bin))
            }
            for keyed in operators
        }

    def close(self) -> None:
        """Close what the operators hold open."""
        self._assembly.close()
        self._committing.close()

    def take(self, sender: WorkerId, frame: Frame) -> None:
        """Act on one frame of a peer. Raises MeanderError for one that has no place here."""
        match read(self._plan, sender, frame):
            case TakenFrame(edge, size):
                self._credit.regain(edge, sender, size)
            case DataFrame(edge, time, payload, number):
                if sender != COORDINATOR and self._progress.welcome:
                    self._freezing.meets(number)
                through = self._plan.graph.edges[edge]
                if not self._assembly.inputs[through.target].frontier.less_equal(time):
                    raise MeanderError(
                        member_name(self.me),
                        f"{member_name(sender)} sent a message of time {time}"
                        " behind the frontier (I1)",
                    )
                self._put(through, sender, time, payload, _size(frame) if through.credit else None)
                self._freezing.takes(sender, number, through.target, time, payload)
            case CheckpointFrame() as word:
                self._freezing.hear(sender, word)
            case update:
                if isinstance(update, MemberFrame) and update.news == "welcome":
                    self._freezing.welcome(update.checkpoint)
                    # Those layers that it will get are in the checkpoints that there are.
                    self._assembly.retention.welcome(update.checkpoint)
                if isinstance(update, ProgressFrame):
                    self._committing.hear(update.rulings)
                if isinstance(update, MemberFrame) and update.news == "joins":
                    # Ahead of the opening, from which on it sees frontiers that need these rulings.
                    self._greet(*update.members)
                self._progress.receive(sender, update)

    def _greet(self, newcomer: WorkerId) -> None:
        """It has heard of no ruling, and may be the first to commit what needs some."""
        if rulings := self._committing.heard:
            self._links.send(newcomer, encode_progress((), 0, rulings))

    def _commits(self) -> TransactionLoop:
        site, start = self._site, self._assembly.start
        return TransactionLoop(
            site.me, site.execution, self._assembly.once, self._assembly.outboxes,
            site.transactions, site.clock, self._plan.flow.transaction_interval, start.resumes,
            self._reports.append,
        )  # fmt: skip

    def _load(self) -> StateRestore:
        start, site = self._assembly.start, self._site
        keyed = [outlet.keyed for outlet in self._assembly.outlets]
        owned = [one for one in start.manifests if self._owns(one.operator, one.bin)]
        lacking = [one for one in start.cut.lacking if self._owns(one.operator, one.bin)]
        bundles = [
            one._replace(bins=tuple(bin for bin in one.bins if self._owns(one.operator, bin)))
            for one in start.cut.bundles
        ]
        return StateRestore(
            start.at, keyed, owned, lacking, [one for one in bundles if one.bins], site.topic,
            site.in_flight, site.clock,
        )  # fmt: skip

    def _owns(self, operator: str, bin: Bin) -> bool:
        number = self._plan.groups.number(operator, bin)
        return self._assembly.start.owners[number] == self.me

    def _prepare(self) -> None:
        """Hold what states, timers and calls that are to come may owe."""
        notices, loaded = self._notices(), {manifest.operator for manifest in self._loading.left}
        for outlet, node in zip(self._assembly.outlets, self._plan.keyed, strict=True):
            if outlet.keyed.name in loaded or outlet.keyed.name in notices:
                outlet.keyed.resume(scope_of(node).bottom)
        if self._loading.done:
            self._begin()

    def _load_some(self) -> bool:
        worked = self._loading.step()
        if self._loading.done:
            self._begin()
        return worked

    def _begin(self) -> None:
        """All states are here."""
        notices, at = self._notices(), self._assembly.start.at
        for outlet in self._assembly.outlets:
            if at.number:
                outlet.keyed.begins(at)
            outlet.keyed.begin(notices.get(outlet.keyed.name, ()))

    def _notices(self) -> dict[str, list[tuple[Time, bytes]]]:
        """What keys of this worker have asked for before, by operator."""
        space, found = self._plan.flow.space, dict[str, list[tuple[Time, bytes]]]()
        for operator, time, key in self._assembly.start.cut.notices:
            if self._owns(operator, Bin(space.bin_of(key))):
                found.setdefault(operator, []).append((time, key))
        return found

    # -- checkpoints

    def _freeze(self, number: int) -> CheckpointWriter:
        """Everything on this worker as it is between two steps."""
        plan, assembly, site = self._plan, self._assembly, self._site
        self._committing.freeze(number)
        underway = [
            some
            for node in reversed(plan.nodes)
            for some in (assembly.nodes[node.name].underway(), self._queued(node.name))
        ]
        ports = self._assembly.inputs
        behind = [one for at, port in ports.items() for one in _records(at, port.behind)]
        assembly.retention.freeze(number)
        loading = [(one.operator, one.bin) for one in self._loading.left]
        assembly.migrator.freeze(CheckpointId(site.execution, number), loading)
        keyed = [outlet.keyed for outlet in assembly.outlets]
        # Before all is loaded, calls that were asked for wait to be asked for anew.
        notices = (
            [Notice(one.name, *notice) for one in keyed for notice in one.notices]
            if self._loading.done
            else [Notice(name, *one) for name, some in self._notices().items() for one in some]
        )
        held = SnapshotContents(
            underway,
            behind,
            [delivery for one in keyed for delivery in one.arrivals.deliveries],
            [(name, one) for name, source in assembly.sources.items() for one in source.parcels()],
            notices,
            self._resuming.unread,
            self._loading.left,
            self._loading.lacking,
            self._loading.bundles,
            [ReplayFrom(sink.name, sink.anew) for sink in assembly.once],
        )
        return CheckpointWriter(
            self.me, plan, site.execution, number, held, assembly.outlets, site.in_flight,
            partial(self._tell_part, self._committing.held), self._tell_failed,
        )  # fmt: skip

    def _complete(self, word: CompleteFrame) -> None:
        """A checkpoint exists."""
        number = word.checkpoint
        self._committing.complete(number, word.passed, dict(word.held))
        for outlet in self._assembly.outlets:
            outlet.keyed.settle(CheckpointId(self._site.execution, number))

    def _cancelled(self, number: int) -> None:
        """A checkpoint has been given up."""
        for outlet in self._assembly.outlets:
            outlet.keyed.store.cancel(CheckpointId(self._site.execution, number))

    def _queued(self, node: str) -> list[InFlight]:
        """The records that wait for an operator."""
        inputs = self._plan.ports[node].inputs
        return [one for at in inputs for one in _records(at, self._assembly.inputs[at].waiting)]

    def _tell_part(self, held: list[tuple[int, int]], part: Checkpoint) -> None:
        *slices, last = cut(part.to_bytes())
        self._reports += [SnapshotStored(part.number, one, [], last=False) for one in slices]
        self._reports.append(SnapshotStored(part.number, last, held, last=True))

    def _tell_failed(self, number: int, reason: str) -> None:
        self._reports.append(SnapshotFailed(number, reason))

    def _schedule(self) -> bool:
        """Let every operator do a little work; whether any did."""
        worked, busy = self._resuming.step(), 0.0
        now, pulse = self._site.clock.monotonic(), self._site.pulse
        for place, (name, operator) in enumerate(self._turns):
            pulse.operator, pulse.since = name, now
            did = operator.schedule()
            then, now = now, self._site.clock.monotonic()
            if did:
                worked = True
                busy += now - then
                self._meters.turn(place, then, now)
        pulse.operator = ""
        self._assembly.pace.turn(busy)
        return worked

    def _receive(self) -> bool:
        received = False
        for sender, frame in self._links.receive():
            self.take(sender, frame)
            received = True
        return received

    def _give_back(self) -> None:
        for peer, edge, size in self._credit.owed():
            if peer == self.me:
                self._credit.regain(edge, peer, size)
            else:
                self._links.send(peer, encode_taken(edge, size))

    # -- the ways between operators

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        """Take a payload to an edge's target on a worker."""
        self._meters.sent(edge, payload)
        if to != self.me:
            frame = encode_data(edge.id, time, payload, self._freezing.sends(to))
            if edge.credit:
                self._credit.use(edge.id, to, _size(frame))
            self._links.send(to, frame)
            return
        used = None
        if edge.credit and edge.id in self._plan.crossing:
            assert isinstance(payload, Batch)
            used = payload.weight
            self._credit.use(edge.id, to, used)
        self._put(edge, to, time, payload, used)

    def _put(
        self, edge: Edge, sender: WorkerId, time: Time, payload: Payload, used: int | None
    ) -> None:
        """Let a payload wait for its operator; `used` of its sender's credit comes back when that
        has taken it."""
        assert self._plan.takes(edge.target, payload), "records with keys, or without (I3)"
        self._meters.received(edge, payload)
        took = None if used is None else partial(self._credit.took, edge.id, sender, used)
        message = Message(time, payload, took, self._site.clock.monotonic())
        self._assembly.inputs[edge.target].put(message)

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        """Whether an edge's target on a worker has not taken enough of what was sent before: within
        an exchange what its credit covers, else all."""
        if not edge.credit:
            return False
        if edge.id in self._plan.crossing:
            return not self._credit.left(edge.id, to)
        return not self._assembly.inputs[edge.target].empty


def _records(at: Location, waiting: Sequence[Message]) -> list[InFlight]:
    """What of the messages that wait at an input are records."""
    return [
        InFlight.held(at, message.time, message.payload)
        for message in waiting
        if isinstance(message.payload, Batch)
    ]


def _size(frame: Frame) -> int:
    return sum(map(len, frame))
