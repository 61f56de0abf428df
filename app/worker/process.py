"""The worker process in one execution, from its registration to its end.

Guarantees that a process without a driver ends within about `heartbeat_timeout` seconds, even in a
longer call (`lifeline`). The driver ends workers in two steps: all stop, then all
close their links and exit, or join the next execution. A leaving worker sends a final message on
each link, and closes its links once all have acknowledged it. Cost: one loop. Turns with little
work keep a minimal interval, because a turn costs more than a record. An idle worker sleeps until a
frame, a reader or an operator wakes it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from meander.app.common.clock import SystemClock
from meander.app.common.concurrent import ConcurrentOpen, open_concurrently
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.messages import (
    FROM_PEER,
    TO_WORKER,
    AddFiles,
    AddPeer,
    Done,
    DropPeer,
    Durations,
    Exit,
    Failure,
    FilesAdded,
    FromWorker,
    OperatorStats,
    PeerAdded,
    PeerLeft,
    PeerLeftAck,
    Report,
    Restart,
    SourceStats,
    StopExecution,
    Stopped,
    ToWorker,
    WorkerHeartbeat,
)
from meander.app.protocol.registration import join, own_host
from meander.app.recovery.restart import decided_before, last_joint_decision, needed_history
from meander.app.worker.event_loop import ThreadedEventLoop
from meander.app.worker.lifeline import Lifeline
from meander.app.worker.process_state import ProcessState
from meander.app.worker.remote_log import RemoteLog
from meander.app.worker.turn_times import TurnTimes
from meander.connectors.custom.source import partition_names
from meander.connectors.kafka.dead_letter import KafkaDeadLetters
from meander.connectors.kafka.origins import origins_of
from meander.connectors.kafka.sink.record_limits import max_batch_bytes
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.sink.transaction_buffer import TransactionBuffer
from meander.connectors.kafka.sink.transactions import KafkaTransactions, transactional_id
from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer, member_name
from meander.connectors.topics import checkpoints
from meander.connectors.topics.internal_topics import TopicNames, topic_names
from meander.connectors.topics.state import KafkaStateTopic
from meander.dataflow.api.nodes import SinkNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.reports import SnapshotStored, WorkerReport
from meander.dataflow.exactly_once.commit_history import logic_changes
from meander.dataflow.interfaces import SinkWriter, WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.metrics.stall_log import StallLog, Wait
from meander.dataflow.operators.error_policy import FunctionFailed, failure
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.runtime.worker_metrics import StateSize
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.store.spill import SpillStore

log = LineLogger(__name__)

AFTER_FAILURE = 3.0
"""Seconds that a failed worker waits for a message of the driver."""
AFTER_STOP = 10.0
"""The least seconds that a stopped worker waits: the next execution may reuse it.

A worker that has left waits for a lease, because the others may be busy at its final message."""
TIDY_AFTER = 0.03
"""Seconds after which a stopped worker collects garbage, because a restart is likely to follow."""
TURN = 0.002
"""Seconds from one short turn to the next, so that one turn handles many frames."""
GARBAGE = 100_000
"""Objects allocated and not freed between two collections of cycles.

The default is 700, less than one batch has: collections took a tenth of a worker's time."""
DEAD_LETTERS: Mapping[Hashable, Wait] = {
    "": Wait("dead_letters_room", "the broker accepts dead letters; they use half of max_waiting")
}
NOTHING: Mapping[Hashable, Wait] = {}
CREDIT: Mapping[Hashable, Wait] = {
    "": Wait("in_flight_room", "the sinks deliver enough; the worker has read max_inflight bytes")
}


class _Opening(NamedTuple):
    """A set of topics that open while the worker registers."""

    opening: ConcurrentOpen
    state: Future[KafkaStateTopic]
    in_flight: Future[KafkaStateTopic]


class WorkerProcess:
    """A process that runs one worker in one execution."""

    def __init__(self, arguments: Arguments, state: ProcessState) -> None:
        self._arguments, self._state = arguments, state
        self._me = WorkerId(arguments.worker)
        self._heartbeat_every = min(1.0, arguments.heartbeat_timeout / 5)
        self._received_at = self._heartbeat_at = time.monotonic()
        self._working = False
        self._silence = driver_waits(arguments.heartbeat_timeout)
        self._stop = self._exit = self._left = self._over = False
        self._restart: Restart | None = None
        self._worker: Worker | None = None
        self._waits = StallLog(SystemClock())
        self._times = TurnTimes()
        self._keepalive = Keepalive(self._keep_alive)

    def run(self) -> Arguments | None:
        """Register, work and end; return the arguments for the next execution, if there is one.

        Raises MeanderError where the driver cannot receive it any more.
        """
        keys, arguments = CurveKeys.generate(), self._arguments
        host = own_host(arguments.server)
        self._links = CurveLinks(self._me, keys, host, 2 * arguments.heartbeat_timeout)
        self._log = RemoteLog(self._links.wakeup, arguments.log_level, arguments.workers)
        try:
            with self._log.installed():
                with open_concurrently() as opening:
                    topics = self._start_opening(opening)
                    token, timeout = self._arguments.launch_token, self._arguments.startup_timeout
                    join(token, keys, self._links, timeout)
                    self._attempt(topics)
                self._await_exit()
        finally:
            self._links.close(linger=1.0)
        return None if self._restart is None else self._arguments.restarted(self._restart)

    def _attempt(self, topics: _Opening) -> None:
        """Work until the driver stops this worker; send it any failure."""
        try:
            with self._open(topics) as worker:
                self._work(worker)
        except failure() as error:  # a user's function may raise anything
            if isinstance(error, LinkBroken) and error.peer == COORDINATOR:
                raise
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        log.debug("worker_failed", exc_info=error)
        self._links.detach()
        self._send(Failure.at(member_name(self._me), error, trace_of(error)))

    @contextlib.contextmanager
    def _open(self, topics: _Opening) -> Iterator[Worker]:
        """Yield the worker with all its topics, stores and readers."""
        arguments, opening = self._arguments, topics.opening
        internal = topic_names(arguments.prefix, arguments.flow)
        plan, database = self._state.plan, self._state.database
        waiting = self._state.memory.waiting
        context = arguments.context(self._links.wakeup, waiting, self._keepalive)
        transacting = opening.ask(lambda: self._transactions(plan, context, internal))
        starting = opening.ask(lambda: _restore_plan(plan, arguments, internal))
        names = partition_names(plan.sources, context.topics)
        origins = origins_of(plan, context.topics, names)
        dead = opening.open(lambda: KafkaDeadLetters.open(context, internal.dead, origins)).result()
        transactions = transacting.result()
        environment = WorkerEnvironment(
            me=self._me,
            workers=arguments.workers,
            clock=SystemClock(),
            topic=topics.state.result(),
            dead=dead,
            open_store=database.store,
            open_spill_store=lambda name: SpillStore(database, name),
            open_reader=lambda node, rests, readers: node.spec.open(
                replace(context, start_offsets=arguments.start_offsets.get(node.name, ())),
                dead,
                rests,
                readers,
            ),
            open_writer=lambda node: _writer(plan, node, context, transactions),
            execution=ExecutionId(arguments.execution),
            joins=arguments.joins,
            fires_timers=lambda: arguments.fire_timers or not arguments.until_end,
            start=starting.result(),
            in_flight=topics.in_flight.result(),
            open_event_loop=lambda: ThreadedEventLoop(self._links.wakeup),
            keepalive=self._keepalive,
            transactions=transactions,
            memory=arguments.resources.memory,
        )
        with contextlib.closing(Worker(plan, environment, self._links)) as worker:
            yield worker

    def _start_opening(self, opening: ConcurrentOpen) -> _Opening:
        arguments, wakeup = self._arguments, self._links.wakeup
        topics = topic_names(arguments.prefix, arguments.flow)
        state, in_flight = (
            opening.open(partial(KafkaStateTopic, arguments.kafka, topic, self._me, wakeup))
            for topic in (topics.state, topics.in_flight)
        )
        return _Opening(opening, state, in_flight)

    def _transactions(
        self, plan: Plan, context: WorkerContext, topics: TopicNames
    ) -> KafkaTransactions | None:
        if plan.flow.delivery == "at_least_once":
            return None
        id = transactional_id(context.topic_prefix, context.flow, self._me)
        disk = MemoryLimit(f"transactions of {id!r}", plan.flow.max_spill, "max_spill")
        return KafkaTransactions(
            context.settings, id, topics.commit_markers, context.wakeup, context.max_waiting,
            partial(TransactionBuffer, disk, self._state.folder),
            max_batch_bytes(context.sink_topics, context.sink_topics),
        )  # fmt: skip

    def _work(self, worker: Worker) -> None:
        self._received_at = self._keepalive.since = time.monotonic()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()
        self._heartbeat_at, self._worker, self._working = 0.0, worker, True
        try:
            self._turns(worker)
        finally:
            self._working = False

    def _turns(self, worker: Worker) -> None:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        sent_done = False
        while True:
            self._receive()
            if self._stop:
                return
            started = self._keepalive.since = time.monotonic()
            worked = worker.step()
            full, starved = worker.full, worker.starved()
            self._times.note(started, time.monotonic(), worked, waits=full or bool(starved))
            self._waits.update("credit", CREDIT if full else NOTHING)
            self._waits.update("dead letters", NOTHING if worker.accepts else DEAD_LETTERS)
            self._waits.update("links", credit_waits(starved))
            for reports in in_frames(worker.reports()):
                self._send(Report(reports))
            self._keep_contact(worker)
            if worker.done and not sent_done:
                sent_done = True
                self._send(Done(counters=dict(worker.counters)))
            if worker.left and worker.idle:
                self._leave(worker)
                return
            if not worked:
                self._links.wait(min(worker.wait_seconds(), self._heartbeat_every))
            elif (rest := started + TURN - time.monotonic()) > 0:
                time.sleep(rest)

    def _leave(self, worker: Worker) -> None:
        """Send the final message on every link."""
        self._left = True
        for peer in self._links.peers:
            if peer != COORDINATOR:
                self._links.send_message(peer, PeerLeft().to_bytes())
        self._send(heartbeat_of(worker, self._times))
        self._send(Done(counters=dict(worker.counters)))

    def _keep_alive(self) -> None:
        """Keep contact with the driver in a turn that user functions make long."""
        self._keepalive.due, self._keepalive.since = False, time.monotonic()
        if self._worker is not None and time.monotonic() >= self._heartbeat_at:
            self._receive()
            self._keep_contact(self._worker)

    def _keep_contact(self, worker: Worker) -> None:
        for line in self._log.lines():
            self._send(line)
        now = time.monotonic()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_every
            self._send(heartbeat_of(worker, self._times))
        if now - self._received_at > self._arguments.heartbeat_timeout:
            self._receive()  # messages may have come during a long function call
        silent = now - self._received_at
        waits = self._silence if silent > 2 * self._heartbeat_every else NOTHING
        self._waits.update("driver", waits)
        if silent > self._arguments.heartbeat_timeout:
            raise LinkBroken(
                COORDINATOR, f"nothing was heard for {self._arguments.heartbeat_timeout:g} s"
            )

    def _receive(self) -> None:
        for sender, data in self._links.receive_messages():
            if sender != COORDINATOR:
                self._receive_from_peer(sender, data)
                continue
            self._received_at = time.monotonic()
            match _read(data):
                case StopExecution():
                    self._stop = True
                    # From here on a peer may close its link before this worker gets its own `Exit`.
                    self._links.detach()
                case Exit():
                    self._exit = True
                case Restart() as restart:
                    self._exit, self._restart = True, restart
                case AddPeer(peer=info):
                    peer = Peer(WorkerId(info.worker), info.address, info.public)
                    self._links.admit([peer])
                    self._links.connect([peer], joining=True)
                    self._send(PeerAdded(worker=info.worker))
                case AddFiles(number=number, files=files):
                    self._state.add_files(files)
                    self._send(FilesAdded(number=number))
                case DropPeer(worker=worker):
                    self._links.release(WorkerId(worker))
                case WorkerHeartbeat():
                    pass

    def _receive_from_peer(self, sender: WorkerId, data: bytes) -> None:
        """Acknowledge the final message of a peer, the only message that peers send this way."""
        try:
            FROM_PEER.read(data)
        except ValueError as error:
            cause = "it sent a message that only the driver may send"
            raise MeanderError(member_name(sender), cause) from error
        self._links.release(sender)
        self._send(PeerLeftAck(worker=sender))

    def _await_exit(self) -> None:
        """Report that all topics are closed, and wait until no member needs the links."""
        self._received_at = time.monotonic()
        sent = tidy = False
        while not self._exit and time.monotonic() < self._received_at + self._patience:
            for line in self._log.lines():
                self._send(line)
            if sent and not tidy:
                tidy = True
                self._tidy()
            if self._stop and not sent:
                sent = True
                self._send(Stopped())
            self._links.wait(0.1 if tidy else TIDY_AFTER)
            self._receive()
        self._over = True

    def _tidy(self) -> None:
        """Collect the objects of this execution, which it had excluded from all collections.

        The other workers end meanwhile, so no member waits for this.
        """
        self._worker = None
        gc.unfreeze()
        gc.collect()

    @property
    def _patience(self) -> float:
        """The seconds without a message of the driver after which the worker ends."""
        if self._stop:
            return max(self._arguments.heartbeat_timeout, AFTER_STOP)
        return self._arguments.heartbeat_timeout if self._left else AFTER_FAILURE

    def _send(self, message: FromWorker) -> None:
        self._links.send_message(COORDINATOR, message.to_bytes())

    def _watch(self) -> None:
        """Report that the process lives, and end it where the loop itself cannot.

        That is so for a loop in a long call, where the driver is gone or has removed this worker,
        and for a loop that hangs outside all operators.
        """
        every, alone, hung = self._heartbeat_every, 0.0, 0.0
        with Lifeline(self._arguments.launch_token, self._arguments.heartbeat_timeout) as line:
            while not self._over:
                since, received_at = self._keepalive.since, self._received_at
                blocked = self._working and time.monotonic() - since > every
                answered = line.report(self._keepalive.operator if blocked else "", every)
                self._keepalive.due = True
                # Both count heartbeats, because time may pass while this thread does not run.
                alone = 0.0 if answered or self._received_at > received_at else alone + every
                stands = self._working and self._keepalive.since == since
                hung = hung + every if stands and not self._keepalive.operator else 0.0
                most = 1.5 * (self._patience if self._stop else self._arguments.heartbeat_timeout)
                if hung > most:
                    faulthandler.dump_traceback()  # for the log of Spark's executor
                if hung > most or alone > most:
                    os._exit(1)


def _restore_plan(plan: Plan, arguments: Arguments, topics: TopicNames) -> RestorePlan:
    """Return the restore plan of the execution. A joining worker restores no states."""
    execution = ExecutionId(arguments.execution)
    before = decided_before(arguments.kafka, topics, execution)
    if arguments.joins:
        history = needed_history(plan, arguments.kafka, topics, execution, before)
        return RestorePlan.of(plan, arguments.workers, history=history)
    decided = [*before]
    history = needed_history(plan, arguments.kafka, topics, execution, decided)
    found: Checkpoint | None = None
    if arguments.checkpoint is not None:
        with checkpoints.open_checkpoints(arguments.kafka, topics) as reader:
            found = reader.at(arguments.checkpoint)
    joint = last_joint_decision(decided)
    restored = RestorePlan.of(plan, arguments.workers, found, history, joint)
    return restored.with_logic(plan, logic_changes(decided))


def _writer(
    plan: Plan, node: SinkNode, context: WorkerContext, transactions: KafkaTransactions | None
) -> SinkWriter:
    if transactions is None:
        return node.spec.open(context)
    assert isinstance(node.spec, KafkaSink), "the preflight has checked that"
    make = transactions.outbox if node.name in plan.outboxes else transactions.writer
    return make(node.spec, context)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error: of the user's function, or of an unexpected error."""
    if isinstance(error, FunctionFailed):
        return error.trace
    return "" if isinstance(error, MeanderError) else traceback.format_exc()


def in_frames(reports: Iterable[WorkerReport]) -> Iterator[list[WorkerReport]]:
    """Yield a worker's reports in lists that fit into a frame: each slice of a checkpoint alone.

    >>> from meander.dataflow.control.reports import Aligned, OutboxFull
    >>> slices = [SnapshotStored(1, b"", [], last) for last in (False, True)]
    >>> [len(some) for some in in_frames([Aligned(1), OutboxFull(), *slices])]
    [2, 1, 1]
    """
    for large, group in groupby(reports, lambda one: isinstance(one, SnapshotStored)):
        some = list(group)
        yield from ([one] for one in some) if large else [some]


def heartbeat_of(worker: Worker, times: TurnTimes) -> WorkerHeartbeat:
    """Return the heartbeat of a worker."""
    delays = worker.delays()
    sizes = defaultdict(lambda: StateSize(0, 0, 0), worker.state_sizes())
    sent, taken = worker.links()
    restored, restoring = worker.restoring()
    return WorkerHeartbeat(
        counters=dict(worker.counters),
        inflight=worker.inflight,
        spilled=worker.spilled,
        restored=restored,
        restoring=restoring,
        at=time.monotonic(),
        active=times.active,
        backpressure=times.backpressure,
        cpu=times.cpu,
        operators={
            name: OperatorStats(
                received=work.received,
                sent=work.sent,
                busy=work.busy,
                durations=_durations(work.durations),
                keys=sizes[name].keys,
                bytes=sizes[name].bytes,
                forgotten=sizes[name].forgotten,
            )
            for name, work in worker.work().items()
        },
        sources={
            name: SourceStats(
                partitions=[one.partition for one in lanes],
                times=[one.time for one in lanes],
                states=[one.state for one in lanes],
                delays=_durations(delays[name]),
            )
            for name, lanes in worker.standing().items()
        },
        sent={int(peer): size for peer, size in sent.items()},
        taken={int(peer): size for peer, size in taken.items()},
    )


def driver_waits(heartbeat_timeout: float) -> dict[Hashable, Wait]:
    """Return the wait of a worker for a silent coordinator."""
    return {
        "": Wait(
            "coordinator",
            f"a message of it comes, or the worker ends after {heartbeat_timeout:g} s of silence",
        )
    }


def credit_waits(starved: Iterable[tuple[str, str, WorkerId]]) -> dict[Hashable, Wait]:
    """Return the waits of a worker for credit, by operator, its target and the peer."""
    return {
        (source, target, peer): Wait(
            "credit",
            "the peer takes what the operator has sent; link_credit is used up",
            {"peer": peer, "operator": source, "to": target},
        )
        for source, target, peer in starved
    }


def _durations(histogram: Histogram) -> Durations:
    return Durations(counts=histogram.counts, seconds=histogram.seconds)


def _read(data: bytes) -> ToWorker:
    try:
        return TO_WORKER.read(data)
    except ValueError as error:
        raise LinkBroken(COORDINATOR, "it sent a message that a worker does not know") from error
