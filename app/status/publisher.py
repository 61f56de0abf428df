"""What the status topic, and whoever watches, is told of a running flow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec
from msgspec import structs

from meander.app.loading.preflight import PreparedFlow
from meander.app.recovery.claiming import expect_ours
from meander.app.status.aggregates import latencies, partitions, queues
from meander.app.status.metrics import MetricsCollector
from meander.app.status.observer import StatusSnapshot
from meander.app.status.overview import OPEN, note
from meander.connectors.topics.status import StatusTopic
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

LAST_WORD = 0.5
"""Seconds that the last event gets to become durable."""

MOST_MOVING = 80
"""Migrations told of with each heartbeat: some 20 kB."""

MOST_CALLS = 10
"""Calls that keep a worker's loop told of with each heartbeat."""

ROOM = 3 * 1024
"""Bytes of a heartbeat for each list of lags, rates, frontiers, links and durations."""

Show = Callable[[Event], None]
"""Takes every event as it goes to the status topic."""


class FlowStatus:
    """What the status topic, and whoever watches, is told of the flow."""

    def __init__(
        self, prepared: PreparedFlow, status: StatusTopic, show: Show, board: MetricsCollector
    ) -> None:
        self._prepared, self._status, self._show = prepared, status, show
        self._board = board
        self._migrations: dict[str, Migration] = {}
        self._told: Counter[str] = Counter()
        self._beat = time.monotonic()

    def tell(self, event: Event) -> None:
        """Write an event; never blocks."""
        note(self._migrations, event)
        self._told[event.type] += 1
        self._status.write(event)
        self._show(event)

    def expect_ours(self) -> None:
        """Raises SetupError where another driver has taken the flow."""
        expect_ours(self._prepared, self._status)

    def pump(self) -> None:
        """Have what was written go out."""
        self._status.pump()

    def starting(self, registered: int = 0) -> None:
        """The driver's heartbeat until all workers run; `registered` is how many have so far."""
        self.alive(StatusSnapshot(self._prepared.options.workers, registered))

    def alive(self, figures: StatusSnapshot) -> None:
        """The driver's heartbeat. Raises SetupError where it, or one before it at the broker, came
        so late that another driver has taken the flow."""
        options = self._prepared.options
        last, self._beat = self._beat, time.monotonic()
        if max(self._beat - last, self._status.silence()) >= options.heartbeat_timeout:
            self.expect_ours()
        moving = [
            structs.replace(one, **figures.outlooks.get(one.id, {}))
            for one in self._migrations.values()
            if one.state in OPEN
        ]
        self._migrations = {one.id: one for one in moving}
        self._board.show(figures, len(moving), self._told)
        lags = fitting(
            [
                PartitionLag(topic=topic, partition=partition, records=records)
                for (topic, partition), records in sorted(
                    figures.lags.items(), key=lambda lag: (-lag[1], lag[0])
                )
            ]
        )
        throughput, blockers = fitting(figures.throughput), fitting(figures.frontier_blockers)
        calls = list(figures.calls[:MOST_CALLS])
        heard = figures.heard
        of_links, of_partitions, of_time = queues(heard), partitions(heard), latencies(heard)
        links, fronts, times = fitting(of_links), fitting(of_partitions), fitting(of_time)
        self.tell(
            Heartbeat(
                driver=self._prepared.driver, execution=self._prepared.execution,
                workers=figures.workers, registered=figures.registered,
                heartbeat_timeout=options.heartbeat_timeout, lag=sum(figures.lags.values()),
                counters=figures.heard.counters,
                frontiers=dict(figures.frontiers), worker_ids=list(map(int, figures.bins)),
                bins=list(figures.bins.values()),
                inflight=[beat.inflight for beat in figures.heard.working.values()],
                spilled=[beat.spilled for beat in figures.heard.working.values()],
                moving=moving[:MOST_MOVING], omitted=max(0, len(moving) - MOST_MOVING),
                lags=lags, lags_omitted=len(figures.lags) - len(lags),
                throughput=throughput, throughput_omitted=len(figures.throughput) - len(throughput),
                frontier_blockers=blockers,
                frontier_blockers_omitted=len(figures.frontier_blockers) - len(blockers),
                calls=calls, calls_omitted=len(figures.calls) - len(calls),
                queues=links, queues_omitted=len(of_links) - len(links),
                partitions=fronts, partitions_omitted=len(of_partitions) - len(fronts),
                latencies=times, latencies_omitted=len(of_time) - len(times),
                metrics=self._board.address, restoring=figures.restoring,
                migrations_completed=self._told["completed"], bins_moved=self._told["bin_moved"],
            )
        )  # fmt: skip

    def started(self) -> None:
        """All workers run."""
        self.tell(
            Started(
                driver=self._prepared.driver, execution=self._prepared.execution,
                workers=self._prepared.options.workers,
            )
        )  # fmt: skip

    def recovers(self, prepared: PreparedFlow, checkpoint: int, reason: str) -> None:
        """A worker is lost, and the flow begins another life from a checkpoint."""
        self._prepared, self._migrations = prepared, {}
        self.tell(
            Recovering(
                driver=prepared.driver, execution=prepared.execution,
                checkpoint=checkpoint, reason=reason,
            )
        )  # fmt: skip

    def finished(self, counters: dict[str, int]) -> None:
        """The end."""
        self._end(
            Finished(
                driver=self._prepared.driver,
                execution=self._prepared.execution,
                counters=counters,
            )
        )

    def failed(self, error: BaseException) -> None:
        """The end, before its time."""
        reason = str(error) if isinstance(error, MeanderError) else type(error).__name__
        self._end(
            Failed(driver=self._prepared.driver, execution=self._prepared.execution, reason=reason)
        )

    def _end(self, event: Event) -> None:
        """The last word; how the flow has ended does not depend on whether it can be written."""
        self.tell(event)
        try:
            self._status.flush(LAST_WORD)
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
