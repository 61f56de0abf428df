"""The driver of a flow: it claims the flow and runs one execution after another.

Guarantees that all workers have ended when the flow ends, and that the status topic states the
reason. Where a worker is lost, the next execution starts from the newest checkpoint with the
surviving workers, and without one from the start if no result has left. Cost: one claim, the start
of Spark, and what each execution costs (`app.driver.execution`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from meander.app.common.clock import SystemClock
from meander.app.common.signals import Signals
from meander.app.config.options import Options
from meander.app.driver.commands import OpenCommands
from meander.app.driver.execution import DriverResources, ExecutionLost, run_execution
from meander.app.driver.lease import (
    RetryUnreachable,
    heartbeat_seconds,
    hold_lease,
    run_with_heartbeat,
)
from meander.app.driver.loop import FlowResult
from meander.app.driver.policies.runner import policy_runner
from meander.app.driver.restarts import Restarts
from meander.app.loading.flow_code import LoadedFlow
from meander.app.loading.preflight import PreparedFlow, prepare
from meander.app.recovery.claiming import Waiting
from meander.app.recovery.restart import (
    StartCheckpoint,
    choose_checkpoint,
    fence_older_executions,
    full_history,
    last_joint_decision,
    last_sources,
    read_decisions,
)
from meander.app.recovery.sink_ends import has_moved, sink_ends
from meander.app.status.metrics_server import serving
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.kafka.client import Unreachable
from meander.connectors.kafka.source.source import start_offsets
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.status import StatusReader
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.dataflow.control.decisions import JointDecision
from meander.dataflow.metrics.counters import counted
from meander.dataflow.metrics.stall_log import StallLog, Wait
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import INITIAL_CUT

log = LineLogger(__name__)

SPARK = Wait("spark", "its JVM runs and its master has answered")


def run(
    module: Path | LoadedFlow,
    options: Options,
    spark: Callable[[], SparkContext],
    show: Show = lambda _: None,
    signals: Signals | None = None,
    waiting: Waiting = lambda _: None,
) -> FlowResult:
    """Run a flow, or that of a module, to its end or to a signal; return its result.

    `spark` is called once the flow has been checked, and is left as it is. `waiting` gets the
    seconds for which the driver still waits for the lease of another one. Raises SetupError where
    the flow cannot start, and MeanderError for any other failure.
    """
    began = time.monotonic()
    prepared = prepare(module, options, last_sources)
    with contextlib.ExitStack() as opened:
        metrics = opened.enter_context(
            serving(
                options.metrics_port, options.metrics_host, prepared.flow,
                options.heartbeat_timeout,
            )
        )  # fmt: skip
        prepared, status = opened.enter_context(hold_lease(prepared, show, metrics, waiting))
        if metrics.address:
            log.info("metrics_served", address=metrics.address)
        commands = _open_commands(prepared)
        fence_older_executions(prepared)
        history = full_history(prepared.plan, options.kafka, prepared.names)
        found = choose_checkpoint(prepared, options.begin_from, history)
        if found is not None:
            metrics.restored(found.checkpoint.millis)
        prepared = replace(
            prepared, joint=_last_joint_decision(prepared),
            start_offsets=_start_offsets(prepared, found),
        )  # fmt: skip
        ends = sink_ends(prepared) if found is None else None
        decisions = DecisionTopic(options.kafka, prepared.names.decisions)
        opened.enter_context(contextlib.closing(decisions))
        context = _await_spark(spark, prepared, status, signals)
        policies = policy_runner(prepared, SystemClock())
        dead_letters = DeadLetterCount(prepared.flow, prepared.plan.flow.dead_letters)
        driver = DriverResources(
            context, status, decisions, commands, policies, dead_letters, signals, ends, began
        )
        result = _run_executions(prepared, found, driver)
        result = replace(result, counters=status.counters(result.counters))
        status.finished(result.counters)
        return result


def _last_joint_decision(prepared: PreparedFlow) -> JointDecision | None:
    return last_joint_decision(read_decisions(prepared.options.kafka, prepared.names.decisions))


def _start_offsets(prepared: PreparedFlow, found: StartCheckpoint | None) -> dict[str, list[int]]:
    """Return where sources start. A flow that starts over has to read what came since."""
    if found is not None and found.checkpoint.cut != INITIAL_CUT:
        return {}
    options = prepared.options
    return start_offsets(options.kafka, prepared.plan.sources, options.start)


def _open_commands(prepared: PreparedFlow) -> OpenCommands:
    """Return the commands that earlier drivers have started and not ended."""
    settings, topic = prepared.options.kafka, prepared.names.status
    commands = OpenCommands()
    with contextlib.closing(StatusReader(settings, topic, prepared.flow)) as reader:
        for one in reader.recent():
            commands.note(one.event)
    return commands


def _await_spark(
    spark: Callable[[], SparkContext],
    prepared: PreparedFlow,
    status: FlowStatus,
    signals: Signals | None,
) -> SparkContext:
    """Start Spark, which takes seconds, with heartbeats so that no other driver takes the flow."""
    waits = StallLog(SystemClock())

    def poll() -> None:
        waits.update("Spark", {"": SPARK})

    context = run_with_heartbeat(spark, status, poll, heartbeat_seconds(prepared.options), signals)
    waits.update("Spark", {})
    return context


def _run_executions(
    prepared: PreparedFlow, found: StartCheckpoint | None, driver: DriverResources
) -> FlowResult:
    """Run one execution after another until the flow ends.

    Raises MeanderError where a failure cannot be recovered, or where the flow has failed too often
    without a new checkpoint.
    """
    options, clock, survivors = prepared.options, SystemClock(), None
    restarts = Restarts(options.restart_attempts, options.restart_backoff, options.restart_window)
    with contextlib.ExitStack() as ended:
        while True:
            try:
                return run_execution(prepared, found, driver, survivors)
            except ExecutionLost as lost:
                driver.status.execution_lost()
                ended.close()
                survivors = lost.survivors
                ended.callback(survivors.close)
                reason = f"{lost.cause.subject}: {lost.cause.cause}"
                log.warning("execution_failed", reason=reason)
                newest, joint = _newest_checkpoint(lost, prepared, driver)
                if newest is None:
                    # The states of survivors belong to no checkpoint.
                    survivors.close()
                # Limits of a topic only become stricter, so an end is certain.
                if not (lost.limits or isinstance(lost.cause, Unreachable)):
                    progressed = _offset(newest) != _offset(found)
                    pause = restarts.pause_after(clock.monotonic(), progressed=progressed)
                    if not options.restart_attempts:
                        raise lost.cause from lost
                    if pause is None:
                        raise _failed_too_often(lost, options) from lost
                    _wait(pause, lost, driver, options)
                lost.without_discarded(joint)
                found, workers = newest, len(lost.workers)
                prepared = prepared.next_execution(workers, lost.limits, joint)
                number = 0 if newest is None else newest.checkpoint.number
                if lost.renumbered:
                    log.info("workers_renumbered", workers=_renumbered(lost.renumbered))
                driver.status.write_recovering(prepared, number, reason, lost.renumbered)


def _newest_checkpoint(
    lost: ExecutionLost, prepared: PreparedFlow, driver: DriverResources
) -> tuple[StartCheckpoint | None, JointDecision | None]:
    """Return the checkpoint for the next execution, None where it starts without states; and the
    last joint decision.

    Raises the cause of the loss where no checkpoint can be read, or where the flow has none but
    results have left it.
    """
    every = heartbeat_seconds(prepared.options)
    kafka = RetryUnreachable(driver.status, lost.survivors.send_heartbeats, every, driver.signals)
    kafka.call(driver.status.expect_ours)
    # Otherwise the log could name a savepoint after the checkpoint was chosen.
    kafka.call(driver.decisions.flush)
    try:
        newest = kafka.call(lambda: choose_checkpoint(prepared))
        joint = kafka.call(lambda: _last_joint_decision(prepared))
        starts_over = newest is None and not lost.nothing_committed
        refused = starts_over and kafka.call(lambda: _results_left(prepared, driver))
    except MeanderError as error:
        log.warning("checkpoints_unreadable", reason=str(error))
        raise lost.cause from lost
    if refused:
        log.info("restart_refused", reason="there is no checkpoint, and results may have left")
        raise lost.cause from lost
    return newest, joint


def _results_left(prepared: PreparedFlow, driver: DriverResources) -> bool:
    """Return whether a result may have left since the first execution of this driver.

    A result that a lost worker has sent, and that arrives later, is written twice at most.
    """
    before, now = driver.sink_ends, sink_ends(prepared)
    return before is None or now is None or has_moved(before, now)


def _renumbered(ids: Mapping[int, int]) -> str:
    return ", ".join(f"{old} is now {new}" for old, new in ids.items())


def _offset(found: StartCheckpoint | None) -> int | None:
    return None if found is None else found.offset


def _wait(pause: float, lost: ExecutionLost, driver: DriverResources, options: Options) -> None:
    """Wait before a restart; survivors and other drivers hear of this driver meanwhile."""
    if not pause:
        return
    log.info("restart_paused", seconds=pause)
    run_with_heartbeat(
        partial(time.sleep, pause), driver.status, lost.survivors.send_heartbeats,
        heartbeat_seconds(options), driver.signals,
    )  # fmt: skip


def _failed_too_often(lost: ExecutionLost, options: Options) -> MeanderError:
    count = options.restart_attempts
    return MeanderError(
        lost.cause.subject,
        f"{lost.cause.cause}, and {counted(count, 'execution')} before it failed without a"
        f" new checkpoint within {options.restart_window:g} s",
        "find their common cause, such as a record that kills each worker, and run the flow again",
    )
