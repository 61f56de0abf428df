"""One execution of a flow, from the launch of its workers to their end.

Guarantees that each worker has ended when `run_execution` ends, except the survivors that an
`ExecutionLost` names. Spark and Kafka are called from other threads while the driver sends
heartbeats. Cost: about one second for new workers; survivors start faster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from meander.app.common.concurrent import open_concurrently
from meander.app.common.signals import Signals
from meander.app.driver import execution_topics as driver_topics
from meander.app.driver.commands import EXECUTION_ENDED, OpenCommands
from meander.app.driver.execution_topics import DriverTopics
from meander.app.driver.lease import heartbeat_seconds, run_with_heartbeat
from meander.app.driver.loop import DriverLoop, FlowResult
from meander.app.driver.policies.runner import PolicyRunner
from meander.app.driver.workers.new_files import NewFiles
from meander.app.driver.workers.placement import executors, expect_free_slots, is_local
from meander.app.driver.workers.spark_launcher import SparkTask, capacity, expect_slots
from meander.app.driver.workers.survivors import Survivors
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.loading.preflight import PreparedFlow, environ
from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.registration import RegistrationServer
from meander.app.recovery.restart import (
    StartCheckpoint,
    fence_older_executions,
    resume_commands,
    start_execution,
)
from meander.app.recovery.sink_ends import SinkEnds
from meander.app.status.publisher import FlowStatus
from meander.connectors.kafka.client import Unreachable
from meander.connectors.kafka.sink.record_limits import TopicSettings
from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, member_name
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.dataflow.checkpoint.restore_plan import (
    RestorePlan,
    plan_in_force,
    remaining_members,
    resources_of,
)
from meander.dataflow.control.decisions import JointDecision
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.coordinator.worker_change import Change
from meander.dataflow.errors import WorkerLost
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId

STOP_WITHIN = 2.0
"""Seconds for workers to close their topics."""


@dataclass(frozen=True, slots=True)
class DriverResources:
    """A set of resources that the driver keeps across executions."""

    spark: SparkContext
    status: FlowStatus
    decisions: DecisionTopic
    """Kept open, because each start writes to it and a new producer takes up to half a second."""
    commands: OpenCommands
    policies: PolicyRunner
    dead_letters: DeadLetterCount
    signals: Signals | None
    sink_ends: SinkEnds | None
    """The ends of the sink topics before the first execution of a flow without a checkpoint; None
    where they tell nothing."""
    began: float
    """The second in which the run began, by `time.monotonic`."""


class ExecutionLost(Exception):
    """A failure of an execution that has lost a worker while others may have survived."""

    def __init__(
        self, cause: MeanderError, workers: Sequence[WorkerId], survivors: Survivors,
        nothing_committed: bool, limits: TopicSettings, change: Change | None,
    ) -> None:  # fmt: skip
        """`nothing_committed` says that no result can have left before the first checkpoint.
        `limits` holds the stricter limits of topics, and `change` is the change of workers that was
        in progress."""
        super().__init__(str(cause))
        self.cause, self.workers, self.survivors = cause, workers, survivors
        self.nothing_committed, self.limits, self._change = nothing_committed, limits, change

    def without_discarded(self, joint: JointDecision | None) -> None:
        """Leave out the workers that the plan in force does not have, given the last joint
        decision: those that leave by it, or have joined for a plan that was not decided."""
        if self._change is not None and (plan := self._change.plan) is not None:
            decided = joint is not None and joint.id == self._change.id
            discarded = {*plan.leaving} if decided else {*plan.joining}
            self.workers = [one for one in self.workers if one not in discarded]

    @property
    def renumbered(self) -> dict[int, int]:
        """The new ids of workers that get another one in the next execution.

        >>> lost = ExecutionLost.__new__(ExecutionLost)
        >>> lost.workers = [WorkerId(0), WorkerId(1), WorkerId(9)]
        >>> lost.renumbered
        {9: 2}
        """
        return {int(old): new for new, old in enumerate(self.workers) if old != new}


def run_execution(
    prepared: PreparedFlow,
    found: StartCheckpoint | None,
    driver: DriverResources,
    survivors: Survivors | None,
) -> FlowResult:
    """Run one execution to the end of the flow, or to a signal; return the result.

    Starts from the checkpoint `found`, with `survivors` of the last execution. Raises ExecutionLost
    where a worker is lost, and MeanderError for any other failure.
    """
    options, signals = prepared.options, driver.signals
    with contextlib.ExitStack() as opened:
        links = CurveLinks(
            COORDINATOR, CurveKeys.generate(), options.host, 2 * options.heartbeat_timeout
        )
        closing_links = opened.enter_context(contextlib.ExitStack())
        closing_links.callback(links.close)
        server = RegistrationServer(options.host, links, options.heartbeat_timeout)
        opened.enter_context(contextlib.closing(server))
        pool = _worker_pool(prepared, found, driver.spark, links, server, survivors)
        loop: DriverLoop | None = None
        try:
            # First, because Spark takes time; no worker registers before the execution has started.
            pool.launch()
            topics, plan = _start(prepared, found, driver, survivors, opened)
            if signals is not None:
                opened.enter_context(signals.deferred(links.wakeup.set))
            loop = DriverLoop(
                prepared, links, pool, topics, driver.status, driver.decisions, driver.commands,
                driver.policies, driver.dead_letters, found, plan, _slots(driver.spark),
            )  # fmt: skip
            opened.callback(loop.close)
            _resume_commands(prepared, topics, driver)
            signal = loop.run(signals)
        except MeanderError as error:
            workers = sorted(pool.handles)
            pool.stop(STOP_WITHIN)
            cause = pool.cause(error)
            if not _is_survivable(cause, survivors):
                pool.end()
                raise cause from error
            closing_links.pop_all()  # survivors stay on these links
            exactly_once = prepared.plan.flow.delivery == "exactly_once"
            nothing_committed = exactly_once or loop is None or not loop.started
            raise ExecutionLost(
                cause, workers, pool.detach_survivors(), nothing_committed, pool.limits,
                None if loop is None else loop.change,
            ) from error  # fmt: skip
        except BaseException:
            pool.close(STOP_WITHIN)
            raise
        pool.close(STOP_WITHIN)
        return loop.result(signal, time.monotonic() - driver.began)


def _start(
    prepared: PreparedFlow,
    found: StartCheckpoint | None,
    driver: DriverResources,
    survivors: Survivors | None,
    opened: contextlib.ExitStack,
) -> tuple[DriverTopics, RestorePlan]:
    """Fence older executions, open all topics and start this execution, with heartbeats."""

    def start() -> tuple[DriverTopics, RestorePlan]:
        if survivors is not None:
            survivors.close()
        with open_concurrently() as starting:
            fenced = starting.ask(lambda: fence_older_executions(prepared))
            topics = opened.enter_context(driver_topics.opened(prepared))
            fenced.result()
        return topics, start_execution(prepared, found, driver.decisions, driver.status.expect_ours)

    every = heartbeat_seconds(prepared.options)
    return run_with_heartbeat(start, driver.status, lambda: None, every, driver.signals)


def _resume_commands(prepared: PreparedFlow, topics: DriverTopics, driver: DriverResources) -> None:
    """Continue with the commands that are not done; end those that earlier executions started."""
    commands = driver.commands
    done = resume_commands(
        prepared, topics.control, driver.decisions, commands.done, commands.answered
    )
    commands.advance(done)
    for event in commands.end(EXECUTION_ENDED):
        driver.status.write(event)


def _is_survivable(cause: MeanderError, survivors: Survivors | None) -> bool:
    """Return whether another execution may follow a failure.

    The first execution of a driver reports an outage of Kafka; a later one waits for its end.
    """
    outage = survivors is not None and isinstance(cause, Unreachable)
    return outage or isinstance(cause, WorkerLost | LinkBroken)


def _worker_pool(
    prepared: PreparedFlow,
    found: StartCheckpoint | None,
    spark: SparkContext,
    links: CurveLinks,
    server: RegistrationServer,
    survivors: Survivors | None,
) -> WorkerPool:
    options, checkpoint = prepared.options, None if found is None else found.offset
    members = _members(prepared, found, options.workers)
    master, slots = str(spark.master), capacity(spark)

    def task_of(worker: WorkerId, resources: Resources) -> SparkTask:
        arguments = _arguments(prepared, checkpoint, worker, server, resources)
        if survivors is not None and not arguments.joins:
            task = survivors.reuse(members, arguments, links.wakeup.set)
            if task is not None:
                return task
        return SparkTask(
            spark,
            f"{prepared.flow}-{prepared.driver}-{prepared.execution}-{worker}",
            member_name(worker),
            arguments.to_bytes(),
            links.wakeup.set,
            resources,
            falls_back=not arguments.joins,
        )

    def expect_places(placed: Mapping[WorkerId, Resources]) -> None:
        occupants = {member_name(worker): place for worker, place in pool.places.items()}
        wanted = {member_name(worker): its for worker, its in placed.items()}
        expect_free_slots(wanted, executors(spark), occupants)

    wanted = resources_of(prepared.joint, options.workers)
    workers = {
        worker: wanted.get(worker, ANYWHERE) for worker in map(WorkerId, range(options.workers))
    }
    expect_slots(master, _slots(spark), len(workers), sum(its.cores for its in workers.values()))
    described = f"master {master} has {slots} in all"
    pool = WorkerPool(
        links, server, task_of, workers, options.heartbeat_timeout, options.startup_timeout,
        described, NewFiles(links, prepared.code), expect_places,
    )  # fmt: skip
    return pool


def _members(prepared: PreparedFlow, found: StartCheckpoint | None, workers: int) -> list[WorkerId]:
    """Return the former workers in the order of the new ones that take their places."""
    if found is None:
        return []
    decided = plan_in_force(prepared.joint, prepared.plan, found.checkpoint)
    if decided is None:
        return [*remaining_members(found.checkpoint.cut, workers)]
    return sorted(decided.members)


def _slots(spark: SparkContext) -> int | None:
    """Return the number of workers that fit on the master, where that is known."""
    return capacity(spark) if is_local(spark) else None


def _arguments(
    prepared: PreparedFlow,
    checkpoint: int | None,
    worker: WorkerId,
    server: RegistrationServer,
    resources: Resources,
) -> Arguments:
    options, token = prepared.options, server.expect(worker)
    return Arguments(
        flow=prepared.flow,
        execution=prepared.execution,
        worker=worker,
        joins=server.connected,
        workers=options.workers,
        token=token.token,
        server=token.address,
        server_key=token.public,
        entry=prepared.source.entry,
        files=prepared.source.files,
        environ=environ(),
        checkpoint=checkpoint,
        kafka=options.kafka,
        prefix=options.prefix,
        until_end=options.until_end,
        fire_timers=options.fire_timers,
        start=options.start,
        start_offsets={name: [*offsets] for name, offsets in prepared.start_offsets.items()},
        topics=dict(topic.split(" ") for topic in prepared.topics if topic),
        sources=tuple(one.name for one in prepared.plan.sources),
        skip_lost=options.skip_lost,
        heartbeat_timeout=options.heartbeat_timeout,
        startup_timeout=options.startup_timeout,
        log_level=options.log_level,
        outside=dict(prepared.outside),
        # After a failure, Spark may run a worker elsewhere where its host is gone.
        resources=resources if server.connected else resources.at(ANYWHERE),
    )
