"""Heartbeats of workers, and the metrics that follow from them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from meander.app.protocol.messages import Durations, OperatorStats, SourceStats, WorkerHeartbeat
from meander.app.status.metrics import MetricsCollector
from meander.dataflow.metrics.histogram import BOUNDS
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis

ZERO, ONE = WorkerId(0), WorkerId(1)


def durations(*counts: int, seconds: float) -> Durations:
    """The first buckets; the others are empty."""
    return Durations(counts=[*counts, *[0] * (len(BOUNDS) + 1 - len(counts))], seconds=seconds)


DURATIONS = durations(4, 1, seconds=0.5)


def beat(read: int, sent: dict[int, int], taken: dict[int, int]) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        counters={"read": read, "written": 2 * read, "late_adjusted": 1, "dead_letters": 3},
        inflight=100 * read,
        spilled=7 * read,
        cpu=read / 2,
        active=read / 4,
        backpressure=read / 8,
        operators={
            "count": OperatorStats(
                received=read, sent=2 * read, busy=0.25, durations=DURATIONS, keys=5 * read,
                bytes=50 * read, forgotten=3 * read,
            )
        },
        sources={
            "lines": SourceStats(
                partitions=[read, read + 10],
                times=[from_millis(5000), from_millis(7000, sequence=3)],
                states=["idle", "sending"],
                delays=durations(0, 2, seconds=0.0005),
            )
        },
        sent=sent,
        taken=taken,
    )  # fmt: skip


def text(board: MetricsCollector) -> str:
    registry = CollectorRegistry()
    registry.register(board)
    return generate_latest(registry).decode()


def read(metrics: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            values = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[values] = sample.value
    return found
