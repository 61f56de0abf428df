"""What the workers' beats say of links, partitions and durations: the same for status and metrics.

Cost: one pass over the beats each.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.heard import Heard, both
from app.messages import Durations
from dataflow.meters import quantile
from schemas.status import Latency, LinkQueue, PartitionFrontier
from state.ids import WorkerId
from state.time import to_millis


def queues(heard: Heard) -> list[LinkQueue]:
    """The bytes under way between each two workers, the most first."""
    working = heard.working
    found = [
        LinkQueue(
            worker=worker,
            to=peer,
            bytes=max(0, sent - working[WorkerId(peer)].taken.get(worker, 0)),
        )
        for worker, beat in working.items()
        for peer, sent in beat.sent.items()
        if peer in working
    ]
    return sorted(found, key=lambda one: -one.bytes)


def partitions(heard: Heard) -> list[PartitionFrontier]:
    """How far each partition of each source is, the earliest first."""
    found = [
        PartitionFrontier(source=source, partition=partition, worker=worker, millis=to_millis(time))
        for worker, beat in heard.working.items()
        for source, reading in beat.sources.items()
        for partition, time in zip(reading.partitions, reading.times, strict=True)
    ]
    return sorted(found, key=lambda one: one.millis)


def latencies(heard: Heard) -> list[Latency]:
    """How long deliveries and turns took on all workers together, the slowest first."""
    totals: dict[tuple[str, str], Durations] = {}
    for place, seen in _durations(heard):
        totals[place] = both(totals[place], seen) if place in totals else seen
    found = [
        Latency.model_validate(
            {
                "of": of, "name": name, "count": sum(seen.counts), "seconds": seen.seconds,
                "p50": quantile(seen.counts, 0.5), "p99": quantile(seen.counts, 0.99),
            }
        )
        for (of, name), seen in totals.items()
        if any(seen.counts)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.of, one.p99 is not None, -(one.p99 or 0)))


def _durations(heard: Heard) -> Iterator[tuple[tuple[str, str], Durations]]:
    for beat in heard.everyone.values():
        yield from ((("delivery", name), reading.delays) for name, reading in beat.sources.items())
        yield from ((("turn", name), work.turns) for name, work in beat.operators.items())
