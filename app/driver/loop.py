"""The loop of the driver in one execution.

It steps the coordinator, attends to workers, commands and topics, and reports the flow's state.
Guarantees that the loop never blocks, so closed times wait for nothing else that the driver does.
Cost: up to 200 turns per second while frames come, and more only while bins move. An idle flow
takes 50.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from meander.app.common.clock import SystemClock
from meander.app.common.signals import Signals
from meander.app.driver import wait_reasons
from meander.app.driver.commands import CommandHandler, OpenCommands
from meander.app.driver.execution_topics import DriverTopics
from meander.app.driver.final_checkpoint import FinalCheckpoint
from meander.app.driver.lease import heartbeat_seconds
from meander.app.driver.new_topics import NewTopics
from meander.app.driver.plan_recorder import PlanRecorder
from meander.app.driver.policies.metrics_window import MetricsWindow
from meander.app.driver.policies.plan_control import FlowPlanControl, outcome
from meander.app.driver.policies.runner import PolicyRunner
from meander.app.driver.rescale_progress import WaitsByKind, rescale_progress
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.loading.preflight import PreparedFlow
from meander.app.protocol.messages import Report
from meander.app.recovery.checkpoint_index import CheckpointRecorder
from meander.app.recovery.decision_log import DecisionLog
from meander.app.recovery.orphan_cleanup import OrphanCleanup
from meander.app.recovery.restart import StartCheckpoint
from meander.app.status.lag import Lag
from meander.app.status.observer import Observer
from meander.app.status.overview import share_command
from meander.app.status.publisher import FlowStatus
from meander.connectors.kafka.client import Unreachable
from meander.connectors.kafka.source.source import source_topics
from meander.connectors.links.links import CurveLinks
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.coordinator.worker_change import Change
from meander.dataflow.exactly_once.marker_retention import MarkerRetention, without_markers
from meander.dataflow.metrics.stall_log import StallLog, Wait
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
from meander.state.keys.ids import WorkerId

log = LineLogger(__name__)

POLL = 0.002
"""Seconds between two polls of everything but progress, while frames come without a pause."""
TURN = 0.005
"""Seconds from one turn to the next while no bin moves, so that one turn handles many frames."""
IDLE = 0.02
"""Seconds between two turns while no frame comes."""
BUSY = 0.001
"""The same while a bin moves."""
END_COMMANDS_SECONDS = 2.0
"""Seconds for the decision that all commands are done, at the end of the flow."""
EXPLAIN = 0.25
"""Seconds between two updates of the stall log."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """A result of a flow that ended without an error."""

    counters: dict[str, int]
    migrations: list[Completed]
    seconds: float
    """Seconds since the start of the run, with all its executions, as its counters are."""
    signal: int | None
    """The signal that ended the flow; None where a bounded run or a command ended it."""
    flow: str
    """The name of the flow."""
    dead_letters: int
    """The dead letters of all executions of this run, unreadable records included."""


class DriverLoop:
    """A loop that drives one execution once its workers have been launched."""

    def __init__(
        self,
        prepared: PreparedFlow,
        links: CurveLinks,
        pool: WorkerPool,
        topics: DriverTopics,
        status: FlowStatus,
        decisions: DecisionTopic,
        commands: OpenCommands,
        policies: PolicyRunner,
        dead_letters: DeadLetterCount,
        found: StartCheckpoint | None,
        plan: RestorePlan,
        slots: int | None,
    ) -> None:
        options, execution = prepared.options, prepared.execution
        self._prepared, self._links, self._pool = prepared, links, pool
        self._topics, self._decisions = topics, decisions
        self._status, self._commands, self._slots = status, commands, slots
        self._decision_log = DecisionLog(decisions, execution)
        # Here, because workers may report to it before all are connected.
        self._controller = Coordinator(
            prepared.plan, plan, links, SystemClock(), self._decision_log,
            self._checkpoint_coordinator(found, plan.resumes), options.allow_nondeterminism,
        )  # fmt: skip
        self._final_checkpoint = FinalCheckpoint(options, self._controller, SystemClock())
        self._plans = PlanRecorder(topics.plans, topics.known_plans, SystemClock())
        self._rescaler: Rescaler | None = None
        before = None if found is None else found.checkpoint
        self._orphan_cleanup = OrphanCleanup(
            options.kafka, prepared.names, execution, before, topics.ends
        )
        self._source_topics = source_topics(prepared.plan.sources)
        self._lag = Lag(options.kafka, prepared.group, [*self._source_topics.values()])
        self._new_topics = NewTopics(options.kafka, prepared.plan)
        self._policies, self._dead_letters = policies, dead_letters
        dead_letters.start_execution()
        self._plan_control: FlowPlanControl | None = None
        self._window = MetricsWindow(prepared.plan, self._source_topics, SystemClock())
        self._observer = Observer(SystemClock())
        self._waits = StallLog(SystemClock())
        self._current_waits: WaitsByKind = {}
        self._every = heartbeat_seconds(options)
        self._heartbeat_at = self._poll_at = self._explain_at = 0.0
        self._started = False
        self._migrations: list[Completed] = []
        self._bins: dict[WorkerId, int] | None = None
        self._without_bins: list[WorkerId] = []

    def run(self, signals: Signals | None) -> int | None:
        """Run until the flow ends; return the number of the signal that ended it.

        Returns None where a bounded run has reached its end, or a command has stopped it. Raises
        MeanderError where a worker is lost.
        """
        if (signal := self._await_connections(signals)) is not None:
            return signal
        cooldown = self._prepared.options.plan_cooldown
        self._rescaler = Rescaler(
            self._controller, self._pool, SystemClock(), self._slots, cooldown
        )
        commands = CommandHandler(
            self._prepared.plan, self._topics.control, self._decision_log, self._controller,
            self._rescaler, self._commands, self._prepared.code, lambda: self._pool.has_all_files,
        )  # fmt: skip
        self._plan_control = control = FlowPlanControl(
            self._controller, self._rescaler, self._slots, self._prepared.options.kafka,
            self._prepared.names.control,
        )  # fmt: skip
        self._policies.attach(control, self._window)
        signal = self._drive(commands, signals)
        self._count_dead_letters()
        self._end_commands(commands)
        return signal

    def _drive(self, commands: CommandHandler, signals: Signals | None) -> int | None:
        """Take turns until the flow ends; return the number of the signal that ended it."""
        while not (self._controller.done and self._pool.done):
            if (
                signals is not None and signals.received
                and self._final_checkpoint.may_end(signals.received)
            ):  # fmt: skip
                return signals.received
            worked = self._step()
            # While frames come without a pause, closing times has priority.
            if not worked or self._controller.busy or time.monotonic() >= self._poll_at:
                self._attend()
                self._handle_commands(commands)
            if commands.stopped:
                return None
            self._pause(worked)
        return None

    @property
    def started(self) -> bool:
        """Whether all workers have run."""
        return self._started

    @property
    def change(self) -> Change | None:
        """The change of workers in progress."""
        return None if self._rescaler is None else self._rescaler.in_progress

    def close(self) -> None:
        """Stop the threads of this loop."""
        if self._plan_control is not None:
            self._plan_control.close()
        self._orphan_cleanup.close()

    def result(self, signal: int | None, seconds: float) -> FlowResult:
        """Return the result of the flow, given the signal that ended it and the seconds since the
        start of the run."""
        counters = self._pool.stats().counters
        return FlowResult(
            counters, self._migrations, seconds, signal, self._prepared.flow,
            self._dead_letters.total,
        )  # fmt: skip

    # -- turns

    def _await_connections(self, signals: Signals | None) -> int | None:
        """Attend to workers until all links are open; return a signal that comes before."""
        while not self._pool.connected:
            self._attend()
            if signals is not None and signals.received:
                return signals.received
            # A registration does not wake the links, and needs two requests.
            self._links.wait(TURN)
        return None

    def _step(self) -> bool:
        """Step the coordinator once; return whether it had work.

        A driver that was suspended first checks its claim, so it deletes nothing of a new owner.
        """
        if time.monotonic() >= self._heartbeat_at:
            self._attend()
        return self._controller.step()

    def _handle_commands(self, commands: CommandHandler) -> None:
        for event in (*commands.poll(), *commands.events()):
            self._note(event)

    def _end_commands(self, commands: CommandHandler) -> None:
        """Report the end of all commands that have not ended."""
        try:
            for event in commands.end(lambda: self._decisions.flush(END_COMMANDS_SECONDS)):
                self._note(event)
            self._topics.plans.flush(END_COMMANDS_SECONDS)
        except Unreachable as error:
            # The next execution reports them, or takes them up again.
            log.warning("commands_not_ended", reason=str(error))

    def _pause(self, worked: bool) -> None:
        if not worked:
            self._links.wait(BUSY if self._controller.busy else IDLE)
        elif not self._controller.busy:
            time.sleep(TURN)

    def _attend(self) -> None:
        """Attend to workers and topics, and report the state of the flow where it is time."""
        self._poll_at = time.monotonic() + POLL
        self._pool.attend(self._report)
        self._note_start()
        now = time.monotonic()
        if now >= self._explain_at:
            self._explain_at = now + EXPLAIN
            self._explain()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._every
            self._lag.look()
            self._new_topics.look()
            self._send_heartbeat()
            self._step_policies()
            self._count_dead_letters()
        self._decisions.pump()
        self._topics.checkpoints.pump()
        self._topics.plans.pump()
        self._status.pump()

    def _step_policies(self) -> None:
        """Let the policies of the flow see its figures, and propose another plan."""
        if self._plan_control is None or not self.started:
            return
        sizes = self._controller.migrations.sizes
        self._policies.step(lambda: self._window.sample(self._pool.stats(), self._lag, sizes))
        self._plan_control.pump()

    def _count_dead_letters(self) -> None:
        """Count the dead letters. Raises MeanderError where the flow has more than its limit."""
        counters = self._pool.stats().counters
        count = counters.get("dead_letters", 0) + counters.get("unreadable", 0)
        self._dead_letters.note(count, time.monotonic())

    def _note_start(self) -> None:
        """Report the start once all workers run."""
        if not self._started and self._pool.working:
            self._started = True
            self._status.started()
            # Earlier, the cleanup would compete with workers that read the same topics.
            self._orphan_cleanup.start()
            if without := self._controller.without_bins():
                log.warning(
                    "workers_without_bins",
                    workers=",".join(map(str, without)),
                    remedy=share_command(self._prepared.flow, len(self._pool.handles)),
                )

    # -- events

    def _report(self, worker: WorkerId, report: Report) -> None:
        for one in report.reports:
            self._controller.report(worker, one)

    def _note(self, event: Event) -> None:
        self._commands.note(event)
        self._plans.note(event)
        self._final_checkpoint.note(event)
        if (ended := outcome(event)) is not None:
            self._policies.ended(*ended)
        if isinstance(event, Completed):
            self._migrations.append(event)
        if isinstance(event, ReplayChecked):
            _log_replay(event)
        if isinstance(event, BinMoved | Joined | Left):
            self._bins = None
        if isinstance(event, PartitionAdded) and event.source in self._source_topics:
            self._lag.add(self._source_topics[event.source], event.partition)
        self._status.write(event)

    def _checkpoint_coordinator(
        self, found: StartCheckpoint | None, has_checkpoint: bool
    ) -> CheckpointCoordinator:
        plan, topics = self._prepared.plan, self._topics
        exactly_once = plan.flow.delivery == "exactly_once"
        recorder = CheckpointRecorder(
            topics.checkpoints.write, topics.checkpoints.delete,
            topics.truncated_checkpoints.truncate, self._decision_log,
            {} if found is None else found.retained, has_checkpoint,
        )  # fmt: skip
        markers = topics.truncated_markers
        return CheckpointCoordinator(
            plan, self._prepared.execution, None if found is None else found.checkpoint,
            self._links, SystemClock(), recorder.write, recorder.release,
            MarkerRetention(markers.request_end, markers.truncate)
            if exactly_once else without_markers(),
            () if found is None else [*found.savepoints.values()],
            0 if found is None else found.last,
            () if found is None else [*found.earlier.values()],
        )  # fmt: skip

    # -- state of the flow

    def _explain(self) -> None:
        """Update the stall log with all waits."""
        self._current_waits = {**self._waits_of_workers(), **self._waits_of_flow()}
        for kind, waits in self._current_waits.items():
            self._waits.update(kind, waits)

    def _waits_of_workers(self) -> dict[str, Mapping[Hashable, Wait]]:
        """Return the waits for workers that start, and of commands in the queue."""
        found: dict[str, Mapping[Hashable, Wait]] = {"workers": self._pool.wait_reasons()}
        if self._rescaler is not None:
            found["rescales"] = self._rescaler.wait_reasons()
        return found

    def _waits_of_flow(self) -> dict[str, Mapping[Hashable, Wait]]:
        """Return the waits of a running flow: frontiers, moves, joining and leaving workers."""
        if not self.started:
            return {}
        coordinator, sources = self._controller, [one.name for one in self._prepared.plan.sources]
        unsent, under_way = coordinator.decisions.unsent, coordinator.assignment.under_way
        unread = coordinator.assignment.unassigned(coordinator.workers.active)
        blockers = self._observer.frontier_blockers(
            coordinator.frontier_blockers(), coordinator.furthest(), self._pool.stats()
        )
        return {
            "frontiers": wait_reasons.frontiers(blockers),
            "calls": wait_reasons.calls(self._pool.long_calls()),
            "migrations": wait_reasons.migrations(coordinator.migrations.rounds()),
            "partitions": wait_reasons.partitions(under_way, sources, unsent, unread),
            "joins": wait_reasons.joins(unsent),
            "leaves": wait_reasons.leaves(coordinator.workers.leaving, unsent),
            "exits": wait_reasons.exits(self._pool.handles),
        }

    def _send_heartbeat(self) -> None:
        if not self.started:
            self._status.starting(self._pool.registered)
            return
        if self._bins is None:
            owners = Counter(self._controller.owners())
            self._bins = {worker: owners[worker] for worker in self._pool.handles}
            self._without_bins = self._controller.without_bins()
        stats = self._pool.stats()
        snapshot = self._observer.look(self._controller, stats, self._lag, self._bins)
        rescale = None if self._rescaler is None else rescale_progress(
            self._rescaler, self._controller.migrations, self._controller.closed_before,
            self._current_waits, snapshot.frontier_blockers, SystemClock().now_ms(),
        )  # fmt: skip
        self._status.alive(
            replace(
                snapshot, calls=self._pool.long_calls(), rescale=rescale,
                without_bins=self._without_bins,
            )
        )  # fmt: skip


def _log_replay(event: ReplayChecked) -> None:
    if event.wrong:
        log.warning("replay_differed", sink=event.sink, reason="; ".join(event.wrong))
    else:
        log.info("replay_agreed", sink=event.sink, results=event.results)
