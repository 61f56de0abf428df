"""A worker: one single-threaded loop over links, operators and progress (design 3).

A turn receives frames from the links, schedules every operator once, and flushes the turn's changes
of progress as one atomic update. No step of a turn blocks or takes long; operators cut long work
into slices. Invariant: every message is in one place at any moment, on a link or at one input, and
every place is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from meander.dataflow.api.nodes import scope_of
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.credit import Credit
from meander.dataflow.checkpoint.alignment import Alignment
from meander.dataflow.checkpoint.checkpoint_writer import CheckpointWriter, SnapshotContents
from meander.dataflow.checkpoint.in_flight_restore import InFlightRestore
from meander.dataflow.checkpoint.snapshot import SnapshotHandler
from meander.dataflow.checkpoint.state_restore import StateRestore
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
from meander.dataflow.operators.source.partitions import PartitionStatus
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.runtime.frame_validation import read
from meander.dataflow.runtime.operator_factory import OperatorFactory, WorkerEnvironment
from meander.dataflow.runtime.worker_metrics import OperatorWork, StateSize, WorkerMetrics
from meander.dataflow.wire import (
    CheckpointFrame,
    CompleteFrame,
    CreditFrame,
    DataFrame,
    MemberFrame,
    Payload,
    ProgressFrame,
    encode_credit,
    encode_data,
    encode_progress,
)
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.arrangements import OperatorFrontier
from meander.state.checkpoint.checkpoint import Checkpoint, Notification, ReplayFrom
from meander.state.keys.ids import COORDINATOR, CheckpointId, WorkerId, member_name
from meander.state.layers.parts import split
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME, MIN_TIME, Time

IDLE_SECONDS = 0.1
"""The longest wait of an idle worker."""
LOADING_SECONDS = 0.001
"""The longest wait while layers are being read."""


def members_of(workers: int) -> Sequence[WorkerId]:
    """Return the members of a computation: the workers and the coordinator."""
    return [*map(WorkerId, range(workers)), COORDINATOR]


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A view of the parts of a worker, for inspection."""

    operators: OperatorFactory
    progress: Progress
    transactions: TransactionLoop
    snapshots: SnapshotHandler


class Worker:
    """A worker that runs one instance of each operator of one flow."""

    def __init__(self, plan: Plan, environment: WorkerEnvironment, links: Links) -> None:
        self.me = environment.me
        self._plan, self._links, self._environment = plan, links, environment
        self._progress = (
            Progress.joining(plan.graph, environment.me, links)
            if environment.joins
            else Progress(plan.graph, environment.me, members_of(environment.workers), links)
        )
        self._progress.may_leave = lambda: self.idle
        self._credit = Credit(plan.flow.link_credit)
        self._reports: list[WorkerReport] = []
        nodes = (plan.ports[node.name] for node in plan.nodes)
        operators = [plan.migrator, plan.partition_migrator, *nodes, plan.snapshots]
        self._meters = WorkerMetrics(plan.graph, operators)
        report = self._reports.append
        self._operators = OperatorFactory(
            plan, environment, self._progress, self, self._meters, report
        )
        self._operators.migrator.resume(self._operators.start.moves)
        self._turns = [*zip(self._meters.names, self._operators.operators, strict=True)]
        self._state_restore = self._new_state_restore()
        self._in_flight_restore = InFlightRestore(
            environment.me, plan, self._operators.start, self._operators.inputs, self._progress,
            environment.in_flight, environment.clock,
        )  # fmt: skip
        self._transactions = self._transaction_loop()
        alignment = Alignment(self._operators.sources.values(), self._operators.inflight, report)
        self._snapshots = SnapshotHandler(
            environment.me,
            links,
            alignment,
            self._freeze,
            self._operators.retention.retain,
            self._complete,
            self._cancelled,
            environment.clock,
        )
        self._snapshots.welcome(self._operators.start.number)
        self._hold_restored_times()
        self._busy_seconds = 0.0
        """The seconds that operators took in the last turn."""
        self.accepts = True
        """Whether dead letters had room at the last look, so that operators run."""
        self._totals: dict[str, int | None] = {}
        """The number of partitions that the coordinator knows, by source."""
        for name, source in self._operators.sources.items():
            self._report_reads(name, [int(standing.partition) for standing in source.statuses()])

    @property
    def parts(self) -> WorkerParts:
        """Return the parts of this worker, for inspection."""
        return WorkerParts(self._operators, self._progress, self._transactions, self._snapshots)

    def step(self) -> bool:
        """Run one turn; return whether it did anything. Operators rest while dead letters lack
        room."""
        received = self._receive()
        if not self._progress.welcome:
            self._links.flush()
            return received
        # The snapshot comes first: neither frozen contents nor a report about them wait for the
        # functions of this turn.
        reported = len(self._reports)
        worked = self._snapshots.step(self._busy_seconds)
        if len(self._reports) == reported and self._look_for_room():
            started = self._environment.clock.monotonic()
            worked |= self._schedule() if self._state_restore.done else self._load_some()
            self._busy_seconds = self._environment.clock.monotonic() - started
        worked |= self._transactions.step()
        self._transactions.add_overrides(self._progress.overrides)
        self._return_credit()
        flushed = self._progress.flush()
        self._links.flush()
        return received or flushed or worked

    def wait_seconds(self) -> float:
        """Return how long the loop may wait unless a frame or a reader wakes it."""
        if self.loading:
            return LOADING_SECONDS
        if self._snapshots.busy or not self.accepts:
            return LOADING_SECONDS
        naps = [operator.wait_seconds() for operator in self._operators.operators]
        naps.append(self._transactions.wait_seconds())
        return min((nap for nap in naps if nap is not None), default=IDLE_SECONDS)

    @property
    def done(self) -> bool:
        """Whether the whole computation is over and all results of this worker are written."""
        return self._progress.is_quiescent() and self.idle

    @property
    def loading(self) -> bool:
        """Whether some initial states of this worker are not loaded yet."""
        return not self._state_restore.done

    @property
    def calling(self) -> bool:
        """Whether a function is to be called again on a record, or a coroutine runs."""
        again = any(retries.pending for retries in self._operators.retries)
        return again or any(one.pending for one in self._operators.async_maps)

    @property
    def left(self) -> bool:
        """Whether this worker has left the flow and receives nothing more."""
        return self._progress.ended

    @property
    def idle(self) -> bool:
        """Whether this worker has no output under way."""
        finished = all(operator.finished() for operator in self._operators.operators)
        busy = self._snapshots.busy or self._transactions.busy
        dead = self._environment.dead
        return finished and not busy and dead.delivered() == dead.added

    def reports(self) -> list[WorkerReport]:
        """Return the reports for the coordinator since the last call, as JSON-able dicts."""
        self._report_replays()
        for name, source in self._operators.sources.items():
            if source.total != self._totals[name]:
                self._report_reads(name, [])
        reports = self._reports[:]
        self._reports.clear()
        return reports

    def _report_replays(self) -> None:
        for sink in self._operators.ordered_sinks:
            if (found := sink.replay.report()) is not None:
                self._reports.append(found)

    def _report_reads(self, name: str, partitions: list[int]) -> None:
        total = self._totals[name] = self._operators.sources[name].total
        self._reports.append(PartitionsRead(name, partitions, total))

    @property
    def counters(self) -> Counter[str]:
        """Counts since the start, such as read, unreadable, written, late_adjusted, future_ignored,
        dead_letters and skipped records.

        Others count the milliseconds by which late records were raised, and idle advances.
        """
        return self._operators.counters

    @property
    def inflight(self) -> int:
        """The bytes read that the sinks have not passed."""
        return self._operators.inflight.bytes

    @property
    def spilled(self) -> int:
        """The bytes of waiting records on disk."""
        return self._operators.disk.used

    @property
    def full(self) -> bool:
        """Whether reading has stopped because too many bytes are in flight."""
        return self._operators.inflight.full

    def restoring(self) -> tuple[int, int]:
        """Return the bytes read of initial states and in-flight records, and their total."""
        states, flying = self._state_restore, self._in_flight_restore
        return states.read + flying.read, states.total + flying.total

    def starved(self) -> list[tuple[str, str, WorkerId]]:
        """Return where an exchange holds records because a receiver has returned no credit: from
        which operator, to which, on which worker."""
        names, edges = self._plan.names, self._plan.graph.edges
        return [
            (names[edge.source], names[edge.target], owner)
            for exchange in self._operators.exchanges
            for owner in exchange.blocked_owners
            for edge in edges
            if edge.source == exchange.output and self.blocked(edge, owner)
        ]

    def work(self) -> dict[str, OperatorWork]:
        """Return the work of each operator so far, by name."""
        return self._meters.work()

    def state_sizes(self) -> dict[str, StateSize]:
        """Return the size of the keyed state here, by operator."""
        operators = [outgoing.keyed for outgoing in self._operators.outgoing]
        return {
            one.name: StateSize(one.store.keys, one.bin_layers.bytes, one.store.forgotten)
            for one in operators
        }

    def standing(self) -> dict[str, list[PartitionStatus]]:
        """Return the state of the partitions read here, by source."""
        return {name: source.statuses() for name, source in self._operators.sources.items()}

    def delays(self) -> dict[str, Histogram]:
        """Return the histogram, by source, of times from reading a chunk until all sinks passed
        it."""
        return {name: source.delays for name, source in self._operators.sources.items()}

    def links(self) -> tuple[dict[WorkerId, int], dict[WorkerId, int]]:
        """Return the bytes sent to each worker without returned credit, and those received without
        it.

        The difference of both ends is on the way, or waits.
        """
        peers = [peer for peer in self._progress.peers if peer != COORDINATOR]
        used, received = self._credit.used, self._credit.unreturned
        return {peer: used(peer) for peer in peers}, {peer: received(peer) for peer in peers}

    def frontiers(self) -> dict[str, Antichain]:
        """Return the frontier at every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def state(self, now: int = MIN_TIME) -> dict[str, dict[bytes, bytes]]:
        """Return all keyed state on this worker, encoded: {operator: {key: state}}. Omit states
        that have expired at a time."""
        operators = [outgoing.keyed for outgoing in self._operators.outgoing]
        return {
            keyed.name: {
                key: value
                for bin in keyed.store.bins()
                if bin not in keyed.incoming.prefetched
                for key, value in keyed.states(bin, now)
            }
            for keyed in operators
        }

    @property
    def furthest(self) -> int:
        """The greatest time of the records that the sources here have sent."""
        sources = self._operators.sources.values()
        return max((source.furthest for source in sources), default=MIN_TIME)

    def close(self) -> None:
        """Close all operators."""
        self._operators.close()
        self._transactions.close()

    def receive(self, sender: WorkerId, frame: Frame) -> None:
        """Handle one frame of a peer. Raise `MeanderError` for a frame that this worker may not
        receive."""
        match read(self._plan, sender, frame):
            case CreditFrame(edge, size):
                self._credit.restore(edge, sender, size)
            case DataFrame(edge, time, payload, number):
                if sender != COORDINATOR and self._progress.welcome:
                    self._snapshots.reach(number)
                through = self._plan.graph.edges[edge]
                if not self._operators.inputs[through.target].frontier.less_equal(time):
                    raise MeanderError(
                        member_name(self.me),
                        f"{member_name(sender)} sent a message of time {time}"
                        " behind the frontier (I1)",
                    )
                self._put(through, sender, time, payload, _size(frame) if through.credit else None)
                self._snapshots.note_received(sender, number, through.target, time, payload)
            case CheckpointFrame() as message:
                self._snapshots.receive(sender, message)
            case update:
                if isinstance(update, MemberFrame) and update.news == "welcome":
                    self._snapshots.welcome(update.checkpoint)
                    # Bins that will move to this worker may be referenced by these checkpoints.
                    self._operators.retention.start_after(update.checkpoint)
                if isinstance(update, ProgressFrame):
                    self._transactions.add_overrides(update.overrides)
                if isinstance(update, MemberFrame) and update.news == "joins":
                    # Sent before the opening: from then on the joining worker sees frontiers that
                    # depend on these overrides.
                    self._send_overrides(*update.members)
                self._progress.receive(sender, update)

    def _send_overrides(self, joining: WorkerId) -> None:
        """Send a joining worker the uncommitted overrides: it may be the first to commit results
        that need them."""
        if overrides := self._transactions.uncommitted_overrides:
            self._links.send(joining, encode_progress((), 0, overrides))

    def _transaction_loop(self) -> TransactionLoop:
        environment, start = self._environment, self._operators.start
        return TransactionLoop(
            environment.me, environment.execution, self._operators.ordered_sinks,
            self._operators.sink_dead_letters, self._operators.outboxes, environment.transactions,
            environment.clock, self._plan.flow.transaction_interval, start.resumes,
            self._reports.append,
        )  # fmt: skip

    def _new_state_restore(self) -> StateRestore:
        start, environment, owns = self._operators.start, self._environment, self._operators.owns
        keyed = [outgoing.keyed for outgoing in self._operators.outgoing]
        owned = [one for one in start.manifests if owns(one.operator, one.bin)]
        deltas = [one for one in start.cut.deltas if owns(one.operator, one.bin)]
        bundles = [
            one._replace(bins=tuple(bin for bin in one.bins if owns(one.operator, bin)))
            for one in start.cut.bundles
        ]
        return StateRestore(
            start.at, keyed, owned, deltas, [one for one in bundles if one.bins], environment.topic,
            environment.in_flight, environment.clock,
        )  # fmt: skip

    def _hold_restored_times(self) -> None:
        """Hold the times of the timers and notifications that the states to load may contain."""
        notifications, loaded = (
            self._notifications(),
            {manifest.operator for manifest in self._state_restore.left},
        )
        for outgoing, node in zip(self._operators.outgoing, self._plan.stateful, strict=True):
            if outgoing.keyed.name in loaded or outgoing.keyed.name in notifications:
                outgoing.keyed.hold_times_from(scope_of(node).bottom)
        if self._state_restore.done:
            self._start_operators()

    def _load_some(self) -> bool:
        worked = self._state_restore.step()
        if self._state_restore.done:
            self._start_operators()
        return worked

    def _start_operators(self) -> None:
        """Start the operators once all states are loaded."""
        notifications, at = self._notifications(), self._operators.start.at
        for outgoing in self._operators.outgoing:
            if at.number:
                outgoing.keyed.note_restored(at)
            outgoing.keyed.start(notifications.get(outgoing.keyed.name, ()))

    def _notifications(self) -> dict[str, list[tuple[Time, bytes]]]:
        """Return the notifications that keys of this worker requested before the restart, by
        operator."""
        found = dict[str, list[tuple[Time, bytes]]]()
        for operator, time, key in self._operators.start.cut.notifications:
            if self._operators.owns(operator, self._plan.bin_of(operator, key)):
                found.setdefault(operator, []).append((time, key))
        return found

    # -- checkpoints

    def _freeze(self, number: int) -> CheckpointWriter:
        """Freeze everything on this worker as it is between two steps."""
        plan, operators, environment = self._plan, self._operators, self._environment
        self._transactions.freeze(number)
        in_flight = [
            some
            for node in reversed(plan.nodes)
            for some in (operators.nodes[node.name].in_flight(), self._queued(node.name))
        ]
        ports = self._operators.inputs
        behind = [one for at, port in ports.items() for one in _records(at, port.held_new)]
        operators.retention.record_snapshot(number)
        loading = [(one.operator, one.bin) for one in self._state_restore.left]
        operators.migrator.freeze(CheckpointId(environment.execution, number), loading)
        keyed = [outgoing.keyed for outgoing in operators.outgoing]
        # Until all states are loaded, requested notifications are only in the checkpoint.
        notifications = (
            [
                Notification(one.name, *notification)
                for one in keyed
                for notification in one.notifications
            ]
            if self._state_restore.done
            else [
                Notification(name, *one)
                for name, some in self._notifications().items()
                for one in some
            ]
        )
        contents = SnapshotContents(
            in_flight,
            behind,
            [delivery for one in keyed for delivery in one.incoming.handoffs],
            [
                (name, one)
                for name, source in operators.sources.items()
                for one in source.partition_handoffs()
            ],
            notifications,
            self._in_flight_restore.unread,
            self._state_restore.left,
            self._state_restore.deltas,
            self._state_restore.bundles,
            [ReplayFrom(sink.name, sink.replay_from) for sink in operators.ordered_sinks],
            [
                OperatorFrontier(one.name, min(map(outer_time, one.frontier), default=END_TIME))
                for one in keyed
            ],
            [unread for one in keyed for unread in one.unread],
            partial(self._delivered_dead_letters, environment.dead.added),
        )
        return CheckpointWriter(
            self.me, plan, environment.execution, number, contents, operators.outgoing,
            environment.in_flight, partial(self._report_part, self._transactions.held_back),
            self._report_failed,
        )  # fmt: skip

    def _delivered_dead_letters(self, ticket: int) -> bool:
        """Return whether all dead letters up to a ticket are durable."""
        return self._environment.dead.delivered() >= ticket

    def _complete(self, frame: CompleteFrame) -> None:
        """Handle a completed checkpoint."""
        number = frame.checkpoint
        self._transactions.complete(number, frame.passed, dict(frame.held_back))
        for outgoing in self._operators.outgoing:
            outgoing.keyed.complete_checkpoint(CheckpointId(self._environment.execution, number))

    def _cancelled(self, number: int) -> None:
        """Handle a cancelled checkpoint."""
        for outgoing in self._operators.outgoing:
            outgoing.keyed.store.cancel_checkpoint(
                CheckpointId(self._environment.execution, number)
            )

    def _queued(self, node: str) -> list[InFlight]:
        """Return the records that wait for an operator."""
        inputs = self._plan.ports[node].inputs
        return [one for at in inputs for one in _records(at, self._operators.inputs[at].waiting)]

    def _report_part(self, held_back: list[tuple[int, int]], part: Checkpoint) -> None:
        *slices, last = split(part.to_bytes())
        self._reports += [SnapshotStored(part.number, one, [], last=False) for one in slices]
        self._reports.append(SnapshotStored(part.number, last, held_back, last=True))

    def _report_failed(self, number: int, reason: str) -> None:
        self._reports.append(SnapshotFailed(number, reason))

    def _look_for_room(self) -> bool:
        """Return whether dead letters have room, and send those that wait."""
        self.accepts = self._environment.dead.has_room()
        return self.accepts

    def _schedule(self) -> bool:
        """Let every operator do a little work; return whether any did."""
        worked, busy = self._in_flight_restore.step(), 0.0
        now, keepalive = self._environment.clock.monotonic(), self._environment.keepalive
        for place, (name, operator) in enumerate(self._turns):
            keepalive.operator, keepalive.since = name, now
            did = operator.schedule()
            then, now = now, self._environment.clock.monotonic()
            if did:
                worked = True
                busy += now - then
                self._meters.turn(place, then, now)
        keepalive.operator = ""
        self._operators.throttle.end_turn(busy)
        return worked

    def _receive(self) -> bool:
        received = False
        for sender, frame in self._links.receive():
            self.receive(sender, frame)
            received = True
        return received

    def _return_credit(self) -> None:
        for peer, edge, size in self._credit.pop_due():
            if peer == self.me:
                self._credit.restore(edge, peer, size)
            else:
                self._links.send(peer, encode_credit(edge, size))

    # -- channels between operators

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        """Deliver a payload to the target of an edge on a worker."""
        self._meters.sent(edge, payload)
        if to != self.me:
            frame = encode_data(edge.id, time, payload, self._snapshots.note_sent(to))
            if edge.credit:
                self._credit.use(edge.id, to, _size(frame))
            self._links.send(to, frame)
            return
        used = None
        if edge.credit and edge.id in self._plan.remote_payloads:
            assert isinstance(payload, Batch)
            used = payload.weight
            self._credit.use(edge.id, to, used)
        self._put(edge, to, time, payload, used)

    def _put(
        self, edge: Edge, sender: WorkerId, time: Time, payload: Payload, used: int | None
    ) -> None:
        """Put a payload at an input; the sender's credit of `used` bytes returns once it is
        received."""
        assert self._plan.accepts(edge.target, payload), "records with keys, or without (I3)"
        self._meters.received(edge, payload)
        release_credit = (
            None if used is None else partial(self._credit.note_consumed, edge.id, sender, used)
        )
        message = Message(time, payload, release_credit, self._environment.clock.monotonic())
        self._operators.inputs[edge.target].put(message)

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        """Return whether the target of an edge has not received enough of earlier messages.

        Within an exchange its credit decides; elsewhere all messages must have been received.
        """
        if not edge.credit:
            return False
        if edge.id in self._plan.remote_payloads:
            return not self._credit.has_credit(edge.id, to)
        return not self._operators.inputs[edge.target].empty


def _records(at: Location, waiting: Sequence[Message]) -> list[InFlight]:
    """Return the records among messages that wait at an input."""
    return [
        InFlight.isolated(at, message.time, message.payload)
        for message in waiting
        if isinstance(message.payload, Batch)
    ]


def _size(frame: Frame) -> int:
    return sum(map(len, frame))
