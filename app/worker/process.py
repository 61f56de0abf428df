"""One worker in one life of its flow, from its registration to its end.

Guarantees that the process ends by itself within about `heartbeat_timeout` seconds when the
coordinator is gone, also within a call that takes longer (`lifeline`). It ends regularly in two
steps, as told by the coordinator: first everybody stops, then everybody closes its links, and ends,
or goes on in another life. One that leaves the flow says so as its last word on each link, and
closes them when all have heard it. Cost: one loop; turns with little to do keep a pace, as each
costs more than a record, and an idle worker sleeps until a frame or a reader rouses it, or its
operators ask.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import threading
import time
import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import NamedTuple

from meander.app.common.clock import SystemClock
from meander.app.common.concurrent import ConcurrentOpen, open_concurrently
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.messages import (
    FROM_PEER,
    TO_WORKER,
    AddPeer,
    Done,
    DropPeer,
    Durations,
    Exit,
    Failure,
    FromWorker,
    OperatorStats,
    PeerAdded,
    PeerLeft,
    Released,
    Report,
    Restart,
    SourceStats,
    StopExecution,
    Stopped,
    ToWorker,
    WorkerHeartbeat,
)
from meander.app.protocol.registration import join, own_host
from meander.app.recovery.restart import needed_history
from meander.app.worker.lifeline import Lifeline
from meander.app.worker.process_state import ProcessState
from meander.app.worker.remote_log import RemoteLog
from meander.connectors.kafka.dead_letter import KafkaDeadLetters
from meander.connectors.kafka.sink.sink import KafkaSink, batch_bytes
from meander.connectors.kafka.sink.transaction_buffer import Spool
from meander.connectors.kafka.sink.transactions import KafkaTransactions, transactional_id
from meander.connectors.links.links import CurveLinks, Keys, LinkBroken, Peer, member_name
from meander.connectors.topics import checkpoints
from meander.connectors.topics.state import KafkaStateTopic
from meander.connectors.topics.topics import Names, names
from meander.dataflow.api.nodes import SinkNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.reports import SnapshotStored, WorkerReport
from meander.dataflow.interfaces import SinkWriter, WorkerContext
from meander.dataflow.keepalive import Keepalive
from meander.dataflow.metrics.histogram import Histogram
from meander.dataflow.metrics.stall_log import Wait, Waits
from meander.dataflow.operators.error_policy import FunctionFailed, failure
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.store.spill import Shelf

log = LineLogger(__name__)

FAREWELL, WANTED = 3.0, 10.0
"""Seconds that a worker which has failed waits for the coordinator's word; and one that has stopped
where the lease is no longer: it may be wanted again once others have ended. One that has left the
flow waits for a lease, as the others may be busy when it speaks its last."""
SOON = 0.03
"""Seconds after which one that has stopped is likely to go on in another life, and tidies up."""
PACE = 0.002
"""Seconds from one short turn to the next: what comes meanwhile is handled together."""
GARBAGE = 100_000
"""Objects made and not freed after which cycles are looked for: by default 700, less than one batch
has, so that a tenth of a worker's time went into looking at what was soon freed anyway."""
NOTHING: Mapping[Hashable, Wait] = {}
CREDIT: Mapping[Hashable, Wait] = {
    "": Wait("in_flight_room", "the sinks deliver enough; the worker has read max_inflight bytes")
}


class _Opening(NamedTuple):
    """What is being opened while a worker waits to be let in."""

    opening: ConcurrentOpen
    state: Future[KafkaStateTopic]
    in_flight: Future[KafkaStateTopic]


class WorkerProcess:
    """A worker."""

    def __init__(self, arguments: Arguments, kept: ProcessState) -> None:
        self._arguments, self._kept = arguments, kept
        self._me = WorkerId(arguments.worker)
        self._beat_every = min(1.0, arguments.heartbeat_timeout / 5)
        self._heard = self._beat_at = time.monotonic()
        self._working = False
        self._silence = coordinator_waits(arguments.heartbeat_timeout)
        self._stop = self._bye = self._left = self._over = False
        self._again: Restart | None = None
        self._worker: Worker | None = None
        self._waits = Waits(SystemClock())
        self._pulse = Keepalive(self._alive)

    def run(self) -> Arguments | None:
        """Register, work, end; with what it goes on, where another has been lost. Raises
        MeanderError when the coordinator cannot be told any more."""
        keys = Keys.fresh()
        host = own_host(self._arguments.server)
        self._links = CurveLinks(self._me, keys, host, 2 * self._arguments.heartbeat_timeout)
        self._log = RemoteLog(self._links.wakeup, self._arguments.log_level)
        try:
            with self._log.installed():
                with open_concurrently() as opening:
                    begun = self._begin_to_open(opening)
                    join(
                        self._arguments.launch_token,
                        keys,
                        self._links,
                        self._arguments.startup_timeout,
                    )
                    self._attempt(begun)
                self._take_leave()
        finally:
            self._links.close(linger=1.0)
        return None if self._again is None else self._arguments.restarted(self._again)

    def _attempt(self, begun: _Opening) -> None:
        """Work until told to stop; what goes wrong is told to the coordinator."""
        try:
            with self._open(begun) as worker:
                self._work(worker)
        except failure() as error:  # a user's function may raise anything
            if isinstance(error, LinkBroken) and error.peer == COORDINATOR:
                raise
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        log.debug("worker_failed", exc_info=error)
        self._links.part()
        self._tell(Failure.at(member_name(self._me), error, trace_of(error)))

    @contextlib.contextmanager
    def _open(self, begun: _Opening) -> Iterator[Worker]:
        """The engine with all its ends."""
        arguments, opening = self._arguments, begun.opening
        topics = names(arguments.prefix, arguments.flow)
        plan, database = self._kept.plan, self._kept.database
        context = arguments.context(self._links.wakeup, plan.flow.max_waiting, self._pulse)
        transacting = opening.ask(lambda: self._transactions(plan, context, topics))
        starting = opening.ask(lambda: _start(plan, arguments, topics))
        dead = opening.open(lambda: KafkaDeadLetters.open(context, topics.dead)).result()
        transactions = transacting.result()
        site = WorkerEnvironment(
            me=self._me,
            workers=arguments.workers,
            clock=SystemClock(),
            topic=begun.state.result(),
            dead=dead,
            open_store=database.store,
            open_shelf=lambda name: Shelf(database, name),
            open_reader=lambda node, rests: node.spec.open(context, dead, rests),
            open_writer=lambda node: _writer(plan, node, context, transactions),
            execution=ExecutionId(arguments.execution),
            joins=arguments.joins,
            start=starting.result(),
            in_flight=begun.in_flight.result(),
            pulse=self._pulse,
            transactions=transactions,
        )
        with contextlib.closing(Worker(plan, site, self._links)) as worker:
            yield worker

    def _begin_to_open(self, opening: ConcurrentOpen) -> _Opening:
        arguments, wakeup = self._arguments, self._links.wakeup
        topics = names(arguments.prefix, arguments.flow)
        state, in_flight = (
            opening.open(partial(KafkaStateTopic, arguments.kafka, topic, self._me, wakeup))
            for topic in (topics.state, topics.in_flight)
        )
        return _Opening(opening, state, in_flight)

    def _transactions(
        self, plan: Plan, context: WorkerContext, topics: Names
    ) -> KafkaTransactions | None:
        if plan.flow.delivery == "at_least_once":
            return None
        id = transactional_id(context.topic_prefix, context.flow, self._me)
        disk = MemoryLimit(f"transactions of {id!r}", plan.flow.max_spill, "max_spill")
        return KafkaTransactions(
            context.settings, id, topics.marks, context.wakeup, context.max_waiting,
            partial(Spool, disk, self._kept.folder), batch_bytes(context.outside, context.outside),
        )  # fmt: skip

    def _work(self, worker: Worker) -> None:
        self._heard = self._pulse.since = time.monotonic()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()
        self._beat_at, self._worker, self._working = 0.0, worker, True
        try:
            self._turns(worker)
        finally:
            self._working = False

    def _turns(self, worker: Worker) -> None:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        told_done = False
        while True:
            self._hear()
            if self._stop:
                return
            began = self._pulse.since = time.monotonic()
            worked = worker.step()
            self._waits.look("credit", CREDIT if worker.full else NOTHING)
            self._waits.look("links", credit_waits(worker.starved()))
            for reports in in_frames(worker.reports()):
                self._tell(Report(reports))
            self._keep_contact(worker)
            if worker.done and not told_done:
                told_done = True
                self._tell(Done(counters=dict(worker.counters)))
            if worker.left and worker.idle:
                self._leave(worker)
                return
            if not worked:
                self._links.wait(min(worker.wait_seconds(), self._beat_every))
            elif (rest := began + PACE - time.monotonic()) > 0:
                time.sleep(rest)

    def _leave(self, worker: Worker) -> None:
        """Have the last word on every link."""
        self._left = True
        for peer in self._links.peers:
            if peer != COORDINATOR:
                self._links.tell(peer, PeerLeft().to_bytes())
        self._tell(heartbeat_of(worker))
        self._tell(Done(counters=dict(worker.counters)))

    def _alive(self) -> None:
        """Keep contact in the middle of a turn that user functions make long."""
        self._pulse.due, self._pulse.since = False, time.monotonic()
        if self._worker is not None and time.monotonic() >= self._beat_at:
            self._hear()
            self._keep_contact(self._worker)

    def _keep_contact(self, worker: Worker) -> None:
        for line in self._log.lines():
            self._tell(line)
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self._beat_every
            self._tell(heartbeat_of(worker))
        if now - self._heard > self._arguments.heartbeat_timeout:
            self._hear()  # what came while a function took its time
        silent = now - self._heard
        self._waits.look("coordinator", self._silence if silent > 2 * self._beat_every else NOTHING)
        if silent > self._arguments.heartbeat_timeout:
            raise LinkBroken(
                COORDINATOR, f"nothing was heard for {self._arguments.heartbeat_timeout:g} s"
            )

    def _hear(self) -> None:
        for sender, data in self._links.told():
            if sender != COORDINATOR:
                self._hear_peer(sender, data)
                continue
            self._heard = time.monotonic()
            match _read(data):
                case StopExecution():
                    self._stop = True
                    # From here on a peer may close before our own word to go comes.
                    self._links.part()
                case Exit():
                    self._bye = True
                case Restart() as again:
                    self._bye, self._again = True, again
                case AddPeer(peer=peer):
                    newcomer = Peer(WorkerId(peer.worker), peer.address, peer.public)
                    self._links.admit([newcomer])
                    self._links.connect([newcomer], joining=True)
                    self._tell(PeerAdded(worker=peer.worker))
                case DropPeer(worker=worker):
                    self._links.loosen(WorkerId(worker))
                case WorkerHeartbeat():
                    pass

    def _hear_peer(self, sender: WorkerId, data: bytes) -> None:
        """A worker has one thing to say to another: that it has left, and this is all."""
        try:
            FROM_PEER.read(data)
        except ValueError as error:
            cause = "it gave an order, which is not its place"
            raise MeanderError(member_name(sender), cause) from error
        self._links.loosen(sender)
        self._tell(Released(worker=sender))

    def _take_leave(self) -> None:
        """Say that all is closed, and wait until nobody needs this end of the links."""
        self._heard = time.monotonic()
        told = tidy = False
        while not self._bye and time.monotonic() < self._heard + self._farewell:
            for line in self._log.lines():
                self._tell(line)
            if told and not tidy:
                tidy = True
                self._tidy()
            if self._stop and not told:
                told = True
                self._tell(Stopped())
            self._links.wait(0.1 if tidy else SOON)
            self._hear()
        self._over = True

    def _tidy(self) -> None:
        """Each life takes what there is out of all collections, so what it leaves too; while the
        others are waited for nothing waits for this."""
        self._worker = None
        gc.unfreeze()
        gc.collect()

    @property
    def _farewell(self) -> float:
        """Seconds without a word that are the coordinator's last."""
        if self._stop:
            return max(self._arguments.heartbeat_timeout, WANTED)
        return self._arguments.heartbeat_timeout if self._left else FAREWELL

    def _tell(self, message: FromWorker) -> None:
        self._links.tell(COORDINATOR, message.to_bytes())

    def _watch(self) -> None:
        """Say that the process lives, and end it where the loop itself cannot: it is busy or hangs,
        and the coordinator is gone or has given this worker up; or it hangs in no operator."""
        every, alone, stood = self._beat_every, 0.0, 0.0
        with Lifeline(self._arguments.launch_token, self._arguments.heartbeat_timeout) as line:
            while not self._over:
                since, heard = self._pulse.since, self._heard
                kept = self._working and time.monotonic() - since > every
                answered = line.speak(self._pulse.operator if kept else "", every)
                self._pulse.due = True
                # Both in beats: of what passes while this thread does not run nothing is known.
                alone = 0.0 if answered or self._heard > heard else alone + every
                between = self._working and not self._pulse.operator and self._pulse.since == since
                stood = stood + every if between else 0.0
                most = 1.5 * (self._farewell if self._stop else self._arguments.heartbeat_timeout)
                if stood > most:
                    faulthandler.dump_traceback()  # for the log of Spark's executor
                if stood > most or alone > most:
                    os._exit(1)


def _start(plan: Plan, arguments: Arguments, topics: Names) -> RestorePlan:
    """What the flow starts from; who joins it later has no need of states."""
    life = ExecutionId(arguments.execution)
    history = needed_history(plan, arguments.kafka, topics, life)
    if arguments.checkpoint is None or arguments.joins:
        return RestorePlan.of(plan, arguments.workers, history=history)
    with checkpoints.reading(arguments.kafka, topics) as there:
        found = there.at(arguments.checkpoint)
    return RestorePlan.of(plan, arguments.workers, found, history)


def _writer(
    plan: Plan, node: SinkNode, context: WorkerContext, transactions: KafkaTransactions | None
) -> SinkWriter:
    if transactions is None:
        return node.spec.open(context)
    assert isinstance(node.spec, KafkaSink), "the driver has seen to that"
    way = transactions.outbox if node.name in plan.outboxes else transactions.writer
    return way(node.spec, context)


def trace_of(error: BaseException) -> str:
    """Where to look for what a worker ends with, beside the sentence that says it: in the user's
    function, or in Meander's own code where nobody expected it."""
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


def heartbeat_of(worker: Worker) -> WorkerHeartbeat:
    """How a worker stands."""
    delays = worker.delays()
    sent, taken = worker.links()
    restored, restoring = worker.restoring()
    return WorkerHeartbeat(
        counters=dict(worker.counters),
        inflight=worker.inflight,
        spilled=worker.spilled,
        restored=restored,
        restoring=restoring,
        operators={
            name: OperatorStats(
                received=work.received,
                sent=work.sent,
                busy=work.busy,
                took=_durations(work.durations),
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


def coordinator_waits(heartbeat_timeout: float) -> dict[Hashable, Wait]:
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
        raise LinkBroken(COORDINATOR, "it said what is not understood here") from error
