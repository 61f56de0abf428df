"""A running flow at one moment, for all who look at it: `status`, metrics, the log.

Guarantees that one look shows figures of one moment as far as the driver knows it: workers' are as
old as their last heartbeat, at most a second. Since when something stands is known to within the
time between two looks. Cost: a pass over the workers' heartbeats and the frontiers per look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meander.app.status.aggregates import operator_durations
from meander.app.status.lag import Lag
from meander.app.status.worker_stats import WorkerStats
from meander.connectors.links.links import member_name
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.frontier_blockers import FrontierBlocker
from meander.dataflow.interfaces import Clock
from meander.dataflow.metrics.histogram import quantile
from meander.dataflow.records.loop_times import outer_time
from meander.schemas.status import (
    BlockedFrontier,
    LongCall,
    RescaleProgress,
    Restoring,
    Throughput,
)
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis

WINDOW = 10
"""Looks over which throughput is taken."""

_STATES = {
    "sending": "its records wait to be sent",
    "paused": "it may read no more until less is in flight",
    "idle": "it has been read to its end",
    "reading": "its records have not come yet",
}


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """All that there is to see."""

    workers: int
    registered: int
    """How many have registered."""
    heard: WorkerStats = field(default_factory=WorkerStats)
    """None until all run."""
    frontiers: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds since 1970, by the name of probe or sink."""
    lags: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Records, by topic and partition."""
    bins: Mapping[WorkerId, int] = field(default_factory=dict)
    """How many each worker owns; none until all run."""
    frontier_blockers: Sequence[BlockedFrontier] = ()
    calls: Sequence[LongCall] = ()
    throughput: Sequence[Throughput] = ()
    restoring: Restoring | None = None
    rescale: RescaleProgress | None = None
    without_bins: Sequence[WorkerId] = ()
    estimates: Mapping[str, dict[str, object]] = field(default_factory=dict)
    """The estimate of each command that moves bins, by its id."""


class Observer:
    """Looks at a flow again and again."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began = clock, clock.monotonic()
        self._stands: dict[str, tuple[int, int]] = {}
        self._totals: deque[tuple[float, dict[str, tuple[int, int]]]] = deque(maxlen=WINDOW)

    def look(
        self, coordinator: Coordinator, heard: WorkerStats, lag: Lag, bins: Mapping[WorkerId, int]
    ) -> StatusSnapshot:
        """The flow as it is now."""
        frontiers = {}
        for name, frontier in coordinator.frontiers().items():
            times = [outer_time(time) for time in frontier]
            if times:
                frontiers[name] = to_millis(min(times))
        workers = len(heard.working)
        return StatusSnapshot(
            workers, workers, heard, frontiers, lag.partitions, bins,
            self.frontier_blockers(coordinator.frontier_blockers(), coordinator.furthest(), heard),
            throughput=self.throughput(heard),
            restoring=self.restoring(heard),
            estimates={
                name: {"fetched": ready, "eta": eta}
                for name, (ready, eta) in coordinator.migrations.estimates().items()
            },
        )  # fmt: skip

    def restoring(self, heard: WorkerStats) -> Restoring | None:
        """How far the workers are with what they have begun with; None once all is here."""
        working = heard.working.values()
        read, total = sum(one.restored for one in working), sum(one.restoring for one in working)
        if read >= total:
            return None
        seconds = self._clock.monotonic() - self._began
        rate = read / seconds if seconds > 0 else 0.0
        eta = round((total - read) / rate, 1) if rate else None
        return Restoring(bytes=read, total=total, rate=round(rate), eta=eta)

    def frontier_blockers(
        self, holdings: Mapping[str, FrontierBlocker], furthest: int | None, heard: WorkerStats
    ) -> list[BlockedFrontier]:
        """What holds back each frontier, and since when; what stands longest comes first."""
        now_ms, before = self._clock.now_ms(), self._stands
        self._stands = {}
        found = []
        for probe, holding in holdings.items():
            time, since_ms = before.get(probe, (None, now_ms))
            since_ms = since_ms if time == holding.time else now_ms
            self._stands[probe] = (holding.time, since_ms)
            awaited = furthest is not None and holding.time < furthest
            found.append(_blocked(probe, holding, heard, since_ms, awaited))
        return sorted(found, key=lambda one: one.since_ms)

    def throughput(self, heard: WorkerStats) -> list[Throughput]:
        """Throughput by operator over the last looks, and how long records have been in each."""
        took = operator_durations(heard)
        totals: dict[str, tuple[int, int]] = {}
        sizes = dict[str, tuple[int, int, int]]()
        for heartbeat in heard.everyone.values():
            for name, work in heartbeat.operators.items():
                keys, size, forgotten = sizes.get(name, (0, 0, 0))
                sizes[name] = keys + work.keys, size + work.bytes, forgotten + work.forgotten
                received, sent = totals.get(name, (0, 0))
                totals[name] = (received + work.received, sent + work.sent)
        self._totals.append((self._clock.monotonic(), totals))
        (then, before), (now, _) = self._totals[0], self._totals[-1]
        seconds = now - then
        rates = []
        for name, (received, sent) in totals.items():
            old_received, old_sent = before.get(name, (0, 0))
            keys, size, forgotten = sizes[name]
            rates.append(
                Throughput(
                    operator=name,
                    received=_rate(received - old_received, seconds),
                    sent=_rate(sent - old_sent, seconds),
                    count=sum(took[name].counts),
                    p50=quantile(took[name].counts, 0.5),
                    p99=quantile(took[name].counts, 0.99),
                    keys=keys,
                    bytes=size,
                    forgotten=forgotten,
                )
            )
        return rates


def _rate(records: int, seconds: float) -> float:
    return round(records / seconds, 1) if seconds > 0 else 0.0


def _blocked(
    probe: str, holding: FrontierBlocker, heard: WorkerStats, since_ms: int, awaited: bool
) -> BlockedFrontier:
    where = _partition(holding, heard) if holding.kind == "source" else None
    if where is None:
        words, worker, partition = _words(holding), None, None
    else:
        _, worker, partition, state = where
        of = f"partition {partition} of source {holding.name!r} on {member_name(worker)}"
        words = f"{of}: {_STATES[state]}"
    return BlockedFrontier(
        probe=probe, by=words, since_ms=since_ms, awaited=awaited, kind=holding.kind,
        name=holding.name, worker=worker, partition=partition,
    )  # fmt: skip


def _partition(
    holding: FrontierBlocker, heard: WorkerStats
) -> tuple[int, WorkerId, int, str] | None:
    """The earliest partition of a source by the last heartbeats: time, worker, partition, state."""
    return min(
        (
            (time, worker, partition, state)
            for worker, heartbeat in heard.working.items()
            for reading in [heartbeat.sources.get(holding.name)]
            if reading is not None
            for partition, time, state in zip(
                reading.partitions, reading.times, reading.states, strict=True
            )
        ),
        default=None,
    )


def _words(holding: FrontierBlocker) -> str:
    match holding.kind:
        case "source":
            return f"source {holding.name!r}: no worker has reported its partitions yet"
        case "operator":
            return f"operator {holding.name!r}: it has not processed its records yet"
        case "sink":
            return f"sink {holding.name!r}: its results are not delivered yet"
        case "input":
            return f"operator {holding.name!r}: it has not received all messages yet"
        case "migration":
            return f"operator {holding.name!r}: state of bins is on its way"
        case "partition_move":
            of = f" of source {holding.name!r}" if holding.name else ""
            return f"a partition{of} is on its way to another worker"
        case "commands":
            return "commands of that time have not been ruled out yet"
