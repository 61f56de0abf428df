"""The driver of a flow: launches its workers, conducts them, and ends them.

Guarantees that however a flow ends, its workers have ended, and the status topic says why. The loop
never blocks, so that forswearing waits for nothing else the driver does; Spark is called from other
threads. Cost: up to 200 turns a second while frames come, more only while bins move; an idle flow
takes 50.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pyspark import SparkContext

from meander.app.common.clock import SystemClock
from meander.app.common.concurrent import side_by_side
from meander.app.common.signals import Signals
from meander.app.config.options import Options
from meander.app.driver import topics as driver_topics
from meander.app.driver import wait_reasons
from meander.app.driver.commands import CommandHandler, Unended
from meander.app.driver.lease import RetryUnreachable, beat_seconds, beside, claimed
from meander.app.driver.topics import DriverTopics
from meander.app.driver.workers.spark_launcher import SparkTask, capacity, expect_slots
from meander.app.driver.workers.survivors import Survivors
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.flow.preflight import PreparedFlow, environ, prepare
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.messages import Report
from meander.app.protocol.registration import RegistrationServer
from meander.app.recovery.checkpoint_index import Writing
from meander.app.recovery.decision_log import Journal
from meander.app.recovery.orphan_cleanup import Sweep
from meander.app.recovery.restart import (
    Newest,
    begin,
    end_others,
    left_behind,
    newest_checkpoint,
    take_up,
)
from meander.app.status.lag import Lag
from meander.app.status.metrics import serving
from meander.app.status.observer import Observer
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.kafka.client import Unreachable
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.links.links import CurveLinks, Keys, LinkBroken, member_name
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.status import StatusReader
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.coordinator.coordinator import Controller
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.errors import WorkerLost
from meander.dataflow.exactly_once.marker_retention import MarkerRetention, without_markers
from meander.dataflow.metrics.stall_log import Wait, Waits
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import (
    BinMoved,
    Completed,
    Event,
    Joined,
    Left,
    PartitionAdded,
    ReplayChecked,
)
from meander.state.keys.ids import COORDINATOR, WorkerId

T = TypeVar("T")

log = LineLogger(__name__)

STOP_WITHIN = 2.0
"""Seconds that workers get to close what they have open."""
LOOK = 0.002
"""Seconds between two looks at everything but progress, while that comes without a pause."""
PACE = 0.005
"""Seconds from one turn to the next while nobody waits for a bin: progress is heard of together."""
EXPLAIN = 0.25
"""Seconds between two looks at what is waited for."""
FAILURES = 3
"""Lives in a row that end before they have taken a checkpoint, before the flow is taken not to come
further."""
IDLE = 0.02
"""Seconds between two looks at the control topic when nothing else happens."""


SPARK = Wait("spark", "its JVM runs and its master has answered")


@dataclass(frozen=True, slots=True)
class FlowResult:
    """How a flow has ended, when it ended without an error."""

    counters: dict[str, int]
    migrations: list[Completed]
    seconds: float
    """From the moment that all workers ran."""
    signal: int | None
    """Which signal ended it; None for a bounded run at its end."""


def run(
    module: Path,
    options: Options,
    spark: Callable[[], SparkContext],
    show: Show = lambda _: None,
    signals: Signals | None = None,
) -> FlowResult:
    """Run a flow's module to its end, or to a signal.

    `spark` is called once the flow has been checked; it is left as it is. Raises
    MeanderError for whatever ends the flow otherwise, SetupError where it cannot start.
    """
    prepared = prepare(module, options)
    with contextlib.ExitStack() as opened:
        board = opened.enter_context(serving(options.metrics_port))
        prepared, told = opened.enter_context(claimed(prepared, show, board))
        if board.address:
            log.info("metrics_served", address=board.address)
        unended = _unended(prepared)
        end_others(prepared)
        earlier = left_behind(prepared.plan, options.kafka, prepared.names)
        found = newest_checkpoint(prepared, options.begin_from, earlier)
        journal = DecisionTopic(options.kafka, prepared.names.decisions)
        opened.enter_context(contextlib.closing(journal))
        context = _await_spark(spark, prepared, told, signals)
        result = _live(prepared, found, _Driver(context, told, journal, unended, signals))
        told.finished(result.counters)
        return result


def _unended(prepared: PreparedFlow) -> Unended:
    """What drivers before have left of commands."""
    settings, topic = prepared.options.kafka, prepared.names.status
    unended = Unended()
    with contextlib.closing(StatusReader(settings, topic, prepared.flow)) as reader:
        for told in reader.recent():
            unended.note(told.event)
    return unended


class _LifeLost(Exception):
    """A flow of so many workers has lost one of them, and some have outlived that; `unseen` says
    whether no result can have left before its first checkpoint."""

    def __init__(
        self, cause: MeanderError, workers: int, survivors: Survivors, unseen: bool
    ) -> None:
        super().__init__(str(cause))
        self.cause, self.workers, self.survivors = cause, workers, survivors
        self.unseen = unseen


@dataclass(frozen=True, slots=True)
class _Driver:
    """What one has through all lives of its flow."""

    spark: SparkContext
    told: FlowStatus
    journal: DecisionTopic
    """Written before a life goes on, and a producer that is new takes up to half a second."""
    unended: Unended
    signals: Signals | None


def _live(prepared: PreparedFlow, found: Newest | None, driver: _Driver) -> FlowResult:
    """Life after life: where a worker is lost the flow goes on from its newest checkpoint, and
    without one from its start if no result has left; unless several lives in a row have begun with
    the same."""
    failures, survivors = 0, None
    with contextlib.ExitStack() as past:
        while True:
            try:
                return _conduct(prepared, found, driver, survivors)
            except _LifeLost as lost:
                past.close()
                survivors = lost.survivors
                past.callback(survivors.close)
                said = f"{lost.cause.concerns}: {lost.cause.cause}"
                log.warning("execution_failed", reason=said)
                every = beat_seconds(prepared.options)
                kafka = RetryUnreachable(driver.told, survivors.beat, every, driver.signals)
                kafka.answer(driver.told.expect_ours)
                # What it tells of a savepoint must not come behind the choice.
                kafka.answer(driver.journal.settle)
                newest = _newest_after(lost, prepared, kafka)
                if newest is None:
                    if not lost.unseen:
                        raise lost.cause from lost
                    # What they have of states belongs to no checkpoint.
                    survivors.close()
                if not isinstance(lost.cause, Unreachable):
                    failures = failures + 1 if _offset(newest) == _offset(found) else 1
                if failures > FAILURES:
                    raise _in_a_row(lost) from lost
                found, prepared = newest, prepared.anew(lost.workers)
                number = 0 if newest is None else newest.checkpoint.number
                driver.told.recovers(prepared, number, said)


def _offset(found: Newest | None) -> int | None:
    return None if found is None else found.offset


def _in_a_row(lost: _LifeLost) -> MeanderError:
    return MeanderError(
        lost.cause.concerns,
        f"{lost.cause.cause}, as {FAILURES} others did in a row before they had taken a checkpoint",
        "see what they have in common, such as a record that no worker survives, and run the flow"
        " again",
    )


def _newest_after(
    lost: _LifeLost, prepared: PreparedFlow, kafka: RetryUnreachable
) -> Newest | None:
    """What to go on from; where that cannot be told, it is the loss that has ended the flow."""
    try:
        return kafka.answer(lambda: newest_checkpoint(prepared))
    except MeanderError as error:
        log.warning("checkpoints_unreadable", reason=str(error))
        raise lost.cause from lost


def _await_spark(
    spark: Callable[[], SparkContext],
    prepared: PreparedFlow,
    told: FlowStatus,
    signals: Signals | None,
) -> SparkContext:
    """Spark takes its time to start, and meanwhile no other driver may take the flow."""
    waits = Waits(SystemClock())

    def look() -> None:
        waits.look("Spark", {"": SPARK})

    context = beside(spark, told, look, beat_seconds(prepared.options), signals)
    waits.look("Spark", {})
    return context


def _conduct(
    prepared: PreparedFlow, found: Newest | None, driver: _Driver, survivors: Survivors | None
) -> FlowResult:
    options, signals = prepared.options, driver.signals
    with contextlib.ExitStack() as opened:
        links = CurveLinks(COORDINATOR, Keys.fresh(), options.host, 2 * options.heartbeat_timeout)
        closing = opened.enter_context(contextlib.ExitStack())
        closing.callback(links.close)
        server = RegistrationServer(options.host, links, options.heartbeat_timeout)
        door = opened.enter_context(contextlib.closing(server))
        crew = _crew(prepared, found, driver.spark, links, door, survivors)

        def begun() -> tuple[DriverTopics, RestorePlan]:
            if survivors is not None:
                survivors.close()
            with side_by_side() as starting:
                ended = starting.ask(lambda: end_others(prepared))
                topics = opened.enter_context(driver_topics.opened(prepared))
                ended.result()
            return topics, begin(prepared, found, driver.journal, driver.told.expect_ours)

        coordinator: Coordinator | None = None
        try:
            # Before all else, as Spark takes its time; the door opens once this life has begun.
            crew.launch()
            every = beat_seconds(options)
            topics, start = beside(begun, driver.told, lambda: None, every, signals)
            if signals is not None:
                opened.enter_context(signals.deferred(links.wakeup.set))
            coordinator = Coordinator(prepared, links, crew, topics, driver, found, start)
            opened.callback(coordinator.close)
            unended = driver.unended
            begins = take_up(prepared, topics.control, driver.journal, unended.place)
            unended.place = begins
            for event in unended.end(begins):
                driver.told.tell(event)
            number = coordinator.conduct(signals)
        except MeanderError as error:
            workers = len(crew.hands)
            crew.stop(STOP_WITHIN)
            cause = crew.cause(error)
            # At a start an outage is told of; between lives it is waited for.
            again = survivors is not None and isinstance(cause, Unreachable)
            if again or isinstance(cause, WorkerLost | LinkBroken):
                closing.pop_all()
                once = prepared.plan.flow.delivery == "exactly_once"
                unseen = once or coordinator is None or not coordinator.began
                raise _LifeLost(cause, workers, crew.part(), unseen) from error
            crew.end()
            raise cause from error
        except BaseException:
            crew.dismiss(STOP_WITHIN)
            raise
        crew.dismiss(STOP_WITHIN)
        return coordinator.result(number)


def _crew(
    prepared: PreparedFlow, found: Newest | None, spark: SparkContext, links: CurveLinks,
    door: RegistrationServer, survivors: Survivors | None,
) -> WorkerPool:  # fmt: skip
    options, checkpoint = prepared.options, _offset(found)
    members = [] if found is None else sorted(found.checkpoint.cut.members)
    master, slots = str(spark.master), capacity(spark)
    if (known := _slots(spark)) is not None:
        expect_slots(master, known, options.workers)

    def task_of(worker: WorkerId) -> SparkTask:
        arguments = _arguments(prepared, checkpoint, worker, door)
        if survivors is not None and not arguments.joins:
            task = survivors.call(members, arguments, links.wakeup.set)
            if task is not None:
                return task
        return SparkTask(
            spark,
            f"{prepared.flow}-{prepared.driver}-{prepared.execution}-{worker}",
            member_name(worker),
            arguments.to_bytes(),
            links.wakeup.set,
        )

    workers = map(WorkerId, range(options.workers))
    described = f"master {master} has {slots} in all"
    return WorkerPool(
        links, door, task_of, workers, options.heartbeat_timeout, options.startup_timeout, described
    )


def _slots(spark: SparkContext) -> int | None:
    """How many workers there can be, where that is known."""
    return capacity(spark) if str(spark.master).startswith("local") else None


def _arguments(
    prepared: PreparedFlow, checkpoint: int | None, worker: WorkerId, door: RegistrationServer
) -> Arguments:
    options, ticket = prepared.options, door.expect(worker)
    return Arguments(
        flow=prepared.flow,
        execution=prepared.execution,
        worker=worker,
        joins=door.open,
        workers=options.workers,
        token=ticket.token,
        door=ticket.address,
        door_key=ticket.public,
        entry=prepared.source.entry,
        files=prepared.source.files,
        environ=environ(),
        checkpoint=checkpoint,
        kafka=options.kafka,
        prefix=options.prefix,
        until_end=options.until_end,
        start=options.start,
        topics=dict(topic.split(" ") for topic in prepared.topics if topic),
        skip_lost=options.skip_lost,
        heartbeat_timeout=options.heartbeat_timeout,
        startup_timeout=options.startup_timeout,
        log_level=options.log_level,
        outside=dict(prepared.outside),
    )


class Coordinator:
    """The loop."""

    def __init__(
        self,
        prepared: PreparedFlow,
        links: CurveLinks,
        crew: WorkerPool,
        topics: DriverTopics,
        driver: _Driver,
        found: Newest | None,
        start: RestorePlan,
    ) -> None:
        self._slots, self._start, self._unended = _slots(driver.spark), start, driver.unended
        self._written, self._found = topics.written, found
        self._marks, self._trimmed = topics.marks, topics.checkpoints
        before = None if found is None else found.checkpoint
        kafka, life = prepared.options.kafka, prepared.execution
        self._sweep = Sweep(kafka, prepared.names, life, before, topics.lying)
        self._prepared, self._links, self._crew = prepared, links, crew
        self._control, self._decisions, self._told = topics.control, driver.journal, driver.told
        self._topics = {node.name: node.spec.topic for node in prepared.plan.sources
                        if isinstance(node.spec, KafkaSource)}  # fmt: skip
        self._lag = Lag(prepared.options.kafka, prepared.group, [*self._topics.values()])
        self._observer = Observer(SystemClock())
        self._waits, self._explain_at = Waits(SystemClock()), 0.0
        self._rescaler: Rescaler | None = None
        self._every = beat_seconds(prepared.options)
        self._beat_at = self._look_at = 0.0
        self._began: float | None = None
        self._migrations: list[Completed] = []
        self._bins: dict[WorkerId, int] | None = None

    def conduct(self, signals: Signals | None) -> int | None:
        """Run until a bounded run has ended, or a command stops it (None), or a signal has come
        (its number)."""
        journal = Journal(self._decisions, self._prepared.execution)
        # Before anybody can report to it.
        plan, checkpoints = self._prepared.plan, self._checkpoints(journal)
        self._controller = Controller(
            plan, self._start, self._links, SystemClock(), journal, checkpoints,
            self._prepared.options.allow_nondeterminism,
        )  # fmt: skip
        while not self._crew.connected:
            self._housekeeping()
            if signals is not None and signals.received:
                return signals.received
            # Who comes to the door does not rouse it, and comes twice.
            self._links.wait(PACE)
        rescaler = Rescaler(self._controller, self._crew, SystemClock(), self._slots)
        self._rescaler = rescaler
        commands = CommandHandler(
            self._prepared.plan, self._control, journal, self._controller, rescaler, self._unended
        )
        while not (self._controller.done and self._crew.done):
            if signals is not None and signals.received:
                return signals.received
            worked = self._turn()
            # While frames pour in, forswearing goes before all else.
            if not worked or self._controller.busy or time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK
                self._housekeeping()
                for event in (*commands.take(), *commands.happened()):
                    self._note(event)
            if commands.stopped:
                return None
            if not worked:
                self._links.wait(0.001 if self._controller.busy else IDLE)
            elif not self._controller.busy:
                time.sleep(PACE)
        return None

    def _turn(self) -> bool:
        """One of the engine's; whether there was anything to do. Who was away learns before it that
        the flow is another's, so that nothing is retired that is that one's."""
        if time.monotonic() >= self._beat_at:
            self._housekeeping()
        return self._controller.step()

    def _checkpoints(self, journal: Journal) -> CheckpointCoordinator:
        plan, found = self._prepared.plan, self._found
        there = {} if found is None else found.kept
        topic, once = self._written, plan.flow.delivery == "exactly_once"
        writing = Writing(
            topic.write, topic.forget, self._trimmed.forget, journal, there, self._start.resumes
        )
        return CheckpointCoordinator(
            plan, self._prepared.execution, None if found is None else found.checkpoint,
            self._links, SystemClock(), writing.write, writing.retire,
            MarkerRetention(self._marks.ask, self._marks.forget) if once else without_markers(),
            () if found is None else [*found.savepoints.values()],
            0 if found is None else found.last,
            () if found is None else [*found.earlier.values()],
        )  # fmt: skip

    @property
    def began(self) -> bool:
        """Whether all workers have run."""
        return self._began is not None

    def close(self) -> None:
        """Ask nothing more."""
        self._lag.close()
        self._sweep.close()

    def result(self, number: int | None) -> FlowResult:
        """What came out of it."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return FlowResult(self._crew.heard().counters, self._migrations, seconds, number)

    def _note(self, event: Event) -> None:
        self._unended.note(event)
        if isinstance(event, Completed):
            self._migrations.append(event)
        if isinstance(event, ReplayChecked):
            _log_replay(event)
        if isinstance(event, BinMoved | Joined | Left):
            self._bins = None
        if isinstance(event, PartitionAdded) and event.source in self._topics:
            self._lag.add(self._topics[event.source], event.partition)
        self._told.tell(event)

    def _housekeeping(self) -> None:
        self._crew.attend(self._report)
        now = time.monotonic()
        if self._began is None and self._crew.working:
            self._began = now
            self._told.started()
            # Before, workers are reading the same topics, and the flow waits for them.
            self._sweep.begin()
        if now >= self._explain_at:
            self._explain_at = now + EXPLAIN
            self._explain()
        if now >= self._beat_at:
            self._beat_at = now + self._every
            self._lag.look()
            self._beat()
        self._decisions.pump()
        self._written.pump()
        self._told.pump()

    def _report(self, worker: WorkerId, report: Report) -> None:
        for one in report.reports:
            self._controller.report(worker, one)

    def _explain(self) -> None:
        """Have the log say what is waited for."""
        self._waits.look("workers", self._crew.waits())
        if self._rescaler is not None:
            self._waits.look("rescales", self._rescaler.waits())
        if self._began is not None:
            at, furthest = self._controller.frontier_blockers(), self._controller.furthest()
            blockers = self._observer.frontier_blockers(at, furthest, self._crew.heard())
            self._waits.look("frontiers", wait_reasons.frontiers(blockers))
            self._waits.look("calls", wait_reasons.calls(self._crew.calls()))
            self._waits.look(
                "migrations", wait_reasons.migrations(self._controller.migrations.rounds())
            )
            self._explain_changes()

    def _explain_changes(self) -> None:
        """The same of workers that come and go, and of partitions that change hands."""
        controller, sources = self._controller, [one.name for one in self._prepared.plan.sources]
        unsent, under_way = controller.decisions.unsent, controller.assignment.under_way
        look = self._waits.look
        unread = controller.assignment.unassigned(controller.workers.active)
        look("partitions", wait_reasons.partitions(under_way, sources, unsent, unread))
        look("comings", wait_reasons.comings(unsent))
        look("goings", wait_reasons.goings(controller.workers.leaving, unsent))
        look("partings", wait_reasons.partings(self._crew.hands))

    def _beat(self) -> None:
        if self._began is None:
            self._told.starting(self._crew.registered)
            return
        if self._bins is None:
            owners = Counter(self._controller.owners())
            self._bins = {worker: owners[worker] for worker in self._crew.hands}
        heard = self._crew.heard()
        figures = self._observer.look(self._controller, heard, self._lag, self._bins)
        self._told.alive(replace(figures, calls=self._crew.calls()))


def _log_replay(event: ReplayChecked) -> None:
    if event.wrong:
        said = "; ".join(event.wrong)
        log.warning("replay_differed", sink=event.sink, reason=said)
    else:
        log.info("replay_agreed", sink=event.sink, results=event.results)
