"""The links, partitions and durations in the heartbeats of workers, for the status and the metrics.

Cost: one pass over the heartbeats each.
"""

from __future__ import annotations

from collections.abc import Iterable

from meander.app.protocol.messages import Durations
from meander.app.status.worker_stats import WorkerStats, both
from meander.dataflow.metrics.histogram import quantile
from meander.schemas.status import Latency, LinkQueue, PartitionFrontier
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis


def queues(heard: WorkerStats) -> list[LinkQueue]:
    """The bytes under way between each two workers, the most first."""
    working = heard.working
    found = [
        LinkQueue(
            worker=worker,
            to=peer,
            bytes=max(0, sent - working[WorkerId(peer)].taken.get(worker, 0)),
        )
        for worker, heartbeat in working.items()
        for peer, sent in heartbeat.sent.items()
        if peer in working
    ]
    return sorted(found, key=lambda one: -one.bytes)


def partitions(heard: WorkerStats) -> list[PartitionFrontier]:
    """How far each partition of each source is, the earliest first."""
    found = [
        PartitionFrontier(source=source, partition=partition, worker=worker, millis=to_millis(time))
        for worker, heartbeat in heard.working.items()
        for source, reading in heartbeat.sources.items()
        for partition, time in zip(reading.partitions, reading.times, strict=True)
    ]
    return sorted(found, key=lambda one: one.millis)


def latencies(heard: WorkerStats) -> list[Latency]:
    """Return the durations of deliveries on all workers by source, the slowest first."""
    delays = (
        (name, reading.delays)
        for heartbeat in heard.everyone.values()
        for name, reading in heartbeat.sources.items()
    )
    found = [
        Latency(
            of="delivery", name=name, count=sum(seen.counts), seconds=seen.seconds,
            p50=quantile(seen.counts, 0.5), p99=quantile(seen.counts, 0.99),
        )
        for name, seen in _together(delays).items()
        if any(seen.counts)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.p99 is not None, -(one.p99 or 0)))


def operator_durations(heard: WorkerStats) -> dict[str, Durations]:
    """Return the durations of records in each operator, on all workers."""
    return _together(
        (name, work.durations)
        for heartbeat in heard.everyone.values()
        for name, work in heartbeat.operators.items()
    )


def _together(named: Iterable[tuple[str, Durations]]) -> dict[str, Durations]:
    totals: dict[str, Durations] = {}
    for name, seen in named:
        totals[name] = both(totals[name], seen) if name in totals else seen
    return totals
