"""The figures of a running flow as Prometheus reads them.

Figures are those of the last heartbeat. Guarantees that each sample has the flow as a label, and
that a reader in another thread sees figures of one moment. Cost: families are made when a reader
asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from meander.app.protocol.messages import Durations, WorkerHeartbeat
from meander.app.status.aggregates import partitions, queues
from meander.app.status.observer import StatusSnapshot
from meander.app.status.worker_stats import WorkerStats
from meander.dataflow.metrics.histogram import BOUNDS
from meander.schemas.status import Checkpointed, Event

COUNTERS = {
    "read": ("meander_records_read", "Records read from the source topics."),
    "written": ("meander_records_written", "Results handed to the sinks' writers."),
    "dead_letters": ("meander_dead_letters", "Records set aside as a function raised."),
    "unreadable": ("meander_unreadable_records", "Records that could not be decoded."),
    "skipped": ("meander_skipped_records", "Records left out as on_error='skip' says."),
    "retries": ("meander_retries", "Calls made again as a function raised, as a Retry says."),
    "late_adjusted": (
        "meander_late_adjusted",
        "Records whose time was raised to their partition's frontier.",
    ),
    "late_adjusted_ms": (
        "meander_late_adjusted_ms",
        "Milliseconds by which their times were raised, together.",
    ),
    "window_late": (
        "meander_window_late",
        "Records that were late for all their windows.",
    ),
    "join_late": (
        "meander_join_late",
        "Records that were late for a join of two streams.",
    ),
    "future_ignored": (
        "meander_future_ignored",
        "Records whose time was too far ahead of the clock.",
    ),
    "idle_advances": ("meander_idle_advances", "Idle advances of partitions."),
    "clock_advances": (
        "meander_clock_advances",
        "Advances of silent partitions by the wall clock.",
    ),
}
"""The metric of each counter of workers, with its help."""

GAUGES = {
    "late_most_ms": ("meander_late_most_ms", "Milliseconds by which a time was raised at most."),
}
"""The gauge of each counter of workers that holds a greatest value, with its help."""

SECONDS: dict[str, tuple[str, Callable[[WorkerHeartbeat], float]]] = {
    "meander_worker_cpu_seconds": (
        "Seconds of CPU time of a worker's process.",
        lambda heartbeat: heartbeat.cpu,
    ),
    "meander_worker_active_seconds": (
        "Seconds of a worker's turns in which it did anything.",
        lambda heartbeat: heartbeat.active,
    ),
    "meander_worker_backpressure_seconds": (
        "Seconds in which a worker lacked credit, or room for more bytes in flight.",
        lambda heartbeat: heartbeat.backpressure,
    ),
}
"""The help and the value of each metric of the times of workers."""

CHECKPOINT: dict[str, tuple[str, Callable[[Checkpointed], float]]] = {
    "meander_checkpoint_seconds": (
        "Seconds that the last checkpoint of this driver took.",
        lambda event: event.ms / 1000,
    ),
    "meander_checkpoint_state_bytes": (
        "Bytes of the layers that the last checkpoint of this driver names.",
        lambda event: event.state_bytes,
    ),
    "meander_checkpoint_in_flight_bytes": (
        "Bytes of in-flight records that the last checkpoint of this driver holds.",
        lambda event: event.in_flight_bytes,
    ),
}
"""The help and the value of each metric of the last checkpoint."""


class MetricsCollector(Collector):
    """A collector that holds the last figures for Prometheus."""

    def __init__(self, flow: str = "") -> None:
        """`flow` is the label of that name of each sample; '' for no such label."""
        self.address = ""
        """Where they are served; '' for nowhere."""
        self._flow = flow
        self._shown: tuple[StatusSnapshot, int, Mapping[str, int]] = (StatusSnapshot(0, 0), 0, {})
        self._shown_at: float | None = None
        self._newest_ms: int | None = None
        self._checkpoint: Checkpointed | None = None

    @property
    def age(self) -> float | None:
        """Return the seconds since the last heartbeat of the driver; None before the first."""
        at = self._shown_at
        return None if at is None else time.monotonic() - at

    @property
    def ready(self) -> bool:
        """Return whether all workers run."""
        return bool(self._shown[0].bins)

    def show(self, figures: StatusSnapshot, moving: int, told: Mapping[str, int]) -> None:
        """Replace them, with the number of running commands and that of the events of each type."""
        self._shown = figures, moving, dict(told)
        self._shown_at = time.monotonic()

    def restored(self, millis: int) -> None:
        """Note the time of the checkpoint from which the flow starts, milliseconds since 1970."""
        self._newest_ms = millis

    def note(self, event: Event) -> None:
        """Note an event of the flow."""
        if isinstance(event, Checkpointed):
            self._newest_ms, self._checkpoint = time.time_ns() // 1_000_000, event

    def collect(self) -> Iterable[Metric]:
        """As the library asks for them, from threads of its own."""
        for family in self._families():
            if self._flow:
                family.samples = [
                    sample._replace(labels={"flow": self._flow, **sample.labels})
                    for sample in family.samples
                ]
            yield family

    def _families(self) -> Iterator[Metric]:
        figures, moving, told = self._shown
        yield _gauge("meander_workers", "Workers that the flow has.", [], [([], figures.workers)])
        yield _gauge(
            "meander_workers_registered",
            "Workers that have registered.",
            [],
            [([], figures.registered)],
        )
        yield from _counters(figures.heard)
        yield from _operators(figures.heard)
        yield from _sources(figures)
        yield from _links(figures)
        yield from _migrations(moving, told)
        yield from _frontiers(figures)
        yield from _checkpoints(self._newest_ms, self._checkpoint, told)


def _counters(heard: WorkerStats) -> Iterator[Metric]:
    for counter, (name, help) in COUNTERS.items():
        family = CounterMetricFamily(name, help, labels=["worker"])
        for worker, heartbeat in heard.everyone.items():
            family.add_metric([worker], heartbeat.counters.get(counter, 0))
        yield family
    for counter, (name, help) in GAUGES.items():
        gauge = GaugeMetricFamily(name, help, labels=["worker"])
        for worker, heartbeat in heard.everyone.items():
            gauge.add_metric([worker], heartbeat.counters.get(counter, 0))
        yield gauge
    for name, (help, value) in SECONDS.items():
        family = CounterMetricFamily(name, help, labels=["worker"])
        for worker, heartbeat in heard.everyone.items():
            family.add_metric([worker], value(heartbeat))
        yield family


def _operators(heard: WorkerStats) -> Iterator[Metric]:
    labels = ["worker", "operator"]
    received = CounterMetricFamily(
        "meander_operator_records_in", "Records that have come to an operator.", labels=labels
    )
    sent = CounterMetricFamily(
        "meander_operator_records_out",
        "Records that have left an operator; to several readers, each counts once.",
        labels=labels,
    )
    busy = CounterMetricFamily(
        "meander_operator_busy_seconds",
        "Seconds of an operator's turns in which it did anything.",
        labels=labels,
    )
    took = HistogramMetricFamily(
        "meander_operator_seconds",
        "Seconds from the arrival of a record at an operator until the operator has completed it."
        " They include waits for credit, for frontiers, on disk and for its bin.",
        labels=labels,
    )
    keys = GaugeMetricFamily(
        "meander_operator_keys",
        "About the number of keys with states. A key that several restored layers hold counts in"
        " each.",
        labels=labels,
    )
    size = GaugeMetricFamily(
        "meander_operator_layer_bytes",
        "Bytes of an operator's layers on the state topic.",
        labels=labels,
    )
    forgotten = CounterMetricFamily(
        "meander_operator_keys_forgotten",
        "Keys that an operator has forgotten, by its function or as their time to live ended.",
        labels=labels,
    )
    for worker, heartbeat in heard.everyone.items():
        for operator, work in heartbeat.operators.items():
            values = [worker, operator]
            keys.add_metric(values, work.keys)
            size.add_metric(values, work.bytes)
            forgotten.add_metric(values, work.forgotten)
            received.add_metric(values, work.received)
            sent.add_metric(values, work.sent)
            busy.add_metric(values, work.busy)
            _observe(took, values, work.durations)
    yield from (received, sent, busy, took, keys, size, forgotten)


def _sources(figures: StatusSnapshot) -> Iterator[Metric]:
    frontiers = _gauge(
        "meander_source_frontier_seconds",
        "Nothing comes from a partition before this time, seconds since 1970.",
        ["worker", "source", "partition"],
        [
            ([str(one.worker), one.source, str(one.partition)], one.millis / 1000)
            for one in partitions(figures.heard)
        ],
    )
    lags = _gauge(
        "meander_lag_records",
        "Records of a partition that the sinks have not passed.",
        ["topic", "partition"],
        [([topic, str(partition)], lag) for (topic, partition), lag in figures.lags.items()],
    )
    delays = HistogramMetricFamily(
        "meander_delivery_seconds",
        "From the reading of a chunk of records to the delivery, by all sinks of the flow, of all"
        " that became of it; what records wait on their topic before does not count.",
        labels=["worker", "source"],
    )
    for name, heartbeat in figures.heard.everyone.items():
        for source, reading in heartbeat.sources.items():
            _observe(delays, [name, source], reading.delays)
    yield from (frontiers, lags, delays)


def _links(figures: StatusSnapshot) -> Iterator[Metric]:
    working = figures.heard.working
    yield _gauge(
        "meander_link_queued_bytes",
        "Bytes sent to a worker that it had not taken, by the last heartbeats of both.",
        ["worker", "to"],
        [([str(one.worker), str(one.to)], one.bytes) for one in queues(figures.heard)],
    )
    yield _gauge(
        "meander_inflight_bytes",
        "Bytes that a worker has read and the sinks have not passed.",
        ["worker"],
        [([str(worker)], heartbeat.inflight) for worker, heartbeat in working.items()],
    )
    yield _gauge(
        "meander_spilled_bytes",
        "Bytes of records that wait on a worker's disk.",
        ["worker"],
        [([str(worker)], heartbeat.spilled) for worker, heartbeat in working.items()],
    )
    yield _gauge(
        "meander_bins",
        "Bins of keys that a worker owns.",
        ["worker"],
        [([str(worker)], bins) for worker, bins in figures.bins.items()],
    )


def _migrations(moving: int, told: Mapping[str, int]) -> Iterator[Metric]:
    yield _gauge("meander_migrations", "Migrations under way.", [], [([], moving)])
    for event, name, help in (
        ("completed", "meander_migrations_completed", "Migrations that have been completed."),
        ("rejected", "meander_commands_rejected", "Commands that were not obeyed."),
        ("joined", "meander_workers_joined", "Workers that have joined the running flow."),
        ("join_failed", "meander_workers_join_failed", "Workers that were to join and did not."),
        ("left", "meander_workers_left", "Workers that have left the running flow."),
        ("bin_moved", "meander_bins_moved", "Bins that new owners have installed."),
    ):
        yield CounterMetricFamily(name, help, value=told.get(event, 0))


def _frontiers(figures: StatusSnapshot) -> Iterator[Metric]:
    yield _gauge(
        "meander_frontier_seconds",
        "Nothing comes to a probe or sink before this time, seconds since 1970.",
        ["probe"],
        [([probe], millis / 1000) for probe, millis in figures.frontiers.items()],
    )
    now_ms = time.time_ns() // 1_000_000
    yield _gauge(
        "meander_frontier_held_seconds",
        "For how long a frontier has stood, and what holds it back; awaited is whether something"
        " that has been read waits for it to move.",
        ["probe", "kind", "name", "worker", "partition", "awaited"],
        [
            (
                [
                    held.probe, held.kind, held.name, _number(held.worker),
                    _number(held.partition), "yes" if held.awaited else "no",
                ],
                max(0, now_ms - held.since_ms) / 1000,
            )
            for held in figures.frontier_blockers
        ],
    )  # fmt: skip


def _checkpoints(
    newest_ms: int | None, last: Checkpointed | None, told: Mapping[str, int]
) -> Iterator[Metric]:
    age = [] if newest_ms is None else [time.time_ns() / 1e9 - newest_ms / 1000]
    yield _gauge(
        "meander_checkpoint_age_seconds",
        "Seconds since the newest checkpoint; absent while the flow has none.",
        [],
        [([], max(0.0, seconds)) for seconds in age],
    )
    for name, (help, value) in CHECKPOINT.items():
        yield _gauge(name, help, [], [([], value(one)) for one in [last] if one is not None])
    for event, name, help in (
        ("checkpointed", "meander_checkpoints", "Checkpoints that are complete."),
        ("checkpoint_failed", "meander_checkpoints_failed", "Checkpoints that were cancelled."),
        ("recovering", "meander_restarts", "Restarts of the flow after the loss of a worker."),
    ):
        yield CounterMetricFamily(name, help, value=told.get(event, 0))


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _gauge(
    name: str, help: str, labels: list[str], values: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _observe(family: HistogramMetricFamily, labels: list[str], seen: Durations) -> None:
    bounds = [*map(str, BOUNDS), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(seen.counts), strict=True)), seen.seconds)
