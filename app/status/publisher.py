"""The flow status writes the events of a flow to its status topic, and shows them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import msgspec
from msgspec import structs

from meander.app.loading.preflight import PreparedFlow
from meander.app.protocol.messages import WorkerHeartbeat
from meander.app.recovery.claiming import expect_ours
from meander.app.status.aggregates import latencies, partitions, queues
from meander.app.status.metrics import MetricsCollector
from meander.app.status.observer import StatusSnapshot
from meander.app.status.overview import OPEN, note
from meander.app.status.worker_stats import WorkerStats
from meander.connectors.topics.status import StatusTopic
from meander.dataflow.metrics.counters import added
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Migration,
    PartitionLag,
    Recovering,
    Started,
)

M = TypeVar("M", bound=msgspec.Struct)

log = LineLogger(__name__)

LAST_EVENT_SECONDS = 0.5
"""The seconds that the last event gets to become durable."""

MAX_MIGRATIONS = 80
"""The most migrations in a heartbeat: some 20 kB."""

MAX_CALLS = 10
"""The most long calls in a heartbeat."""

ROOM = 3 * 1024
"""The bytes of a heartbeat for each list of lags, rates, frontiers, links and durations."""

Show = Callable[[Event], None]
"""Shows each event that goes to the status topic."""


class FlowStatus:
    """A flow status that writes the events of one flow."""

    def __init__(
        self, prepared: PreparedFlow, status: StatusTopic, show: Show, board: MetricsCollector
    ) -> None:
        self._prepared, self._status, self._show = prepared, status, show
        self._board = board
        self._migrations: dict[str, Migration] = {}
        self._event_counts: Counter[str] = Counter()
        self._earlier = WorkerHeartbeat()
        """The sum over the workers of earlier executions of this driver."""
        self._heard = WorkerStats()
        self._heartbeat_at = time.monotonic()

    def write(self, event: Event) -> None:
        """Write and show an event. The call never blocks."""
        note(self._migrations, event)
        self._event_counts[event.type] += 1
        self._board.note(event)
        self._status.write(event)
        self._show(event)

    def expect_ours(self) -> None:
        """Raise SetupError where another driver has claimed the flow."""
        expect_ours(self._prepared, self._status)

    def pump(self) -> None:
        """Send written events."""
        self._status.pump()

    def starting(self, registered: int = 0) -> None:
        """Write the heartbeat of a driver before all workers run, with the registered ones."""
        self.alive(StatusSnapshot(self._prepared.options.workers, registered))

    def alive(self, figures: StatusSnapshot) -> None:
        """Write the heartbeat of the driver. Raise SetupError where a heartbeat was so late that
        another driver has claimed the flow."""
        self._heard = figures.heard.after(self._earlier)
        figures = replace(figures, heard=self._heard)
        options = self._prepared.options
        last, self._heartbeat_at = self._heartbeat_at, time.monotonic()
        if max(self._heartbeat_at - last, self._status.silence()) >= options.heartbeat_timeout:
            self.expect_ours()
        moving = [
            structs.replace(one, **figures.estimates.get(one.id, {}))
            for one in self._migrations.values()
            if one.state in OPEN
        ]
        self._migrations = {one.id: one for one in moving}
        self._board.show(figures, len(moving), self._event_counts)
        lags = fitting(
            [
                PartitionLag(topic=topic, partition=partition, records=records)
                for (topic, partition), records in sorted(
                    figures.lags.items(), key=lambda lag: (-lag[1], lag[0])
                )
            ]
        )
        throughput, blockers = fitting(figures.throughput), fitting(figures.frontier_blockers)
        calls = list(figures.calls[:MAX_CALLS])
        heard = figures.heard
        of_links, of_partitions, of_time = queues(heard), partitions(heard), latencies(heard)
        links, fronts, times = fitting(of_links), fitting(of_partitions), fitting(of_time)
        self.write(
            Heartbeat(
                driver=self._prepared.driver, execution=self._prepared.execution,
                workers=figures.workers, registered=figures.registered,
                heartbeat_timeout=options.heartbeat_timeout, lag=sum(figures.lags.values()),
                counters=figures.heard.counters,
                frontiers=dict(figures.frontiers), worker_ids=list(map(int, figures.bins)),
                bins=list(figures.bins.values()),
                inflight=[heartbeat.inflight for heartbeat in figures.heard.working.values()],
                spilled=[heartbeat.spilled for heartbeat in figures.heard.working.values()],
                executors=[str(figures.heard.executors.get(worker, "")) for worker in figures.bins],
                moving=moving[:MAX_MIGRATIONS], omitted=max(0, len(moving) - MAX_MIGRATIONS),
                lags=lags, lags_omitted=len(figures.lags) - len(lags),
                throughput=throughput, throughput_omitted=len(figures.throughput) - len(throughput),
                frontier_blockers=blockers,
                frontier_blockers_omitted=len(figures.frontier_blockers) - len(blockers),
                calls=calls, calls_omitted=len(figures.calls) - len(calls),
                queues=links, queues_omitted=len(of_links) - len(links),
                partitions=fronts, partitions_omitted=len(of_partitions) - len(fronts),
                latencies=times, latencies_omitted=len(of_time) - len(times),
                metrics=self._board.address, restoring=figures.restoring, rescale=figures.rescale,
                without_bins=list(map(int, figures.without_bins)),
                migrations_completed=self._event_counts["completed"],
                bins_moved=self._event_counts["bin_moved"],
            )
        )  # fmt: skip

    def started(self) -> None:
        """Write that all workers run."""
        self.write(
            Started(
                driver=self._prepared.driver, execution=self._prepared.execution,
                workers=self._prepared.options.workers,
            )
        )  # fmt: skip

    def execution_lost(self) -> None:
        """Keep the counters of an execution that has ended, before the next heartbeat."""
        self._earlier = self._heard.total
        self._heard = WorkerStats(left=self._earlier)

    def write_recovering(
        self, prepared: PreparedFlow, checkpoint: int, reason: str, renumbered: dict[int, int]
    ) -> None:
        """Write that the flow has lost a worker, and starts from a checkpoint."""
        self._prepared, self._migrations = prepared, {}
        self.write(
            Recovering(
                driver=prepared.driver, execution=prepared.execution,
                checkpoint=checkpoint, reason=reason, renumbered=renumbered,
            )
        )  # fmt: skip

    def counters(self, counters: Mapping[str, int]) -> dict[str, int]:
        """Return the counters of the present execution with those of earlier ones added."""
        return dict(added(self._earlier.counters, counters))

    def finished(self, counters: dict[str, int]) -> None:
        """Write that the flow has ended."""
        self._end(
            Finished(
                driver=self._prepared.driver,
                execution=self._prepared.execution,
                counters=counters,
            )
        )

    def failed(self, error: BaseException) -> None:
        """Write that the flow has failed."""
        reason = str(error) if isinstance(error, MeanderError) else type(error).__name__
        self._end(
            Failed(driver=self._prepared.driver, execution=self._prepared.execution, reason=reason)
        )

    def _end(self, event: Event) -> None:
        """Write the last event. A broker that does not confirm it changes nothing for the flow."""
        self.write(event)
        try:
            self._status.flush(LAST_EVENT_SECONDS)
        except MeanderError as error:
            log.warning("last_event_unconfirmed", reason=str(error))


def fitting(parts: Sequence[M]) -> list[M]:
    """As many of the first as there is room for in a heartbeat.

    >>> part = PartitionLag(topic="t", partition=0, records=1)
    >>> len(fitting([part])), len(fitting([part] * 1000))
    (1, 76)
    """
    sizes = accumulate(len(msgspec.json.encode(part)) + 1 for part in parts)
    return [part for part, size in zip(parts, sizes, strict=True) if size <= ROOM]
