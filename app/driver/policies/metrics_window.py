"""The metrics window: what policies see of a flow, from two heartbeats of each worker.

Guarantees that a window covers one plan: it begins again after each change. Rates of a worker
follow from its own clock, so that late heartbeats do not distort them. A worker or partition
without news in a window makes its figures unknown. Cost: one pass over the heartbeats per window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meander.app.protocol.messages import Durations, OperatorStats, WorkerHeartbeat
from meander.app.status.lag import Lag, Lags
from meander.app.status.worker_stats import NONE, WorkerStats, both
from meander.dataflow.api.nodes import FeedbackNode, SourceNode, upstreams
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.execution_plan.plan import Place
from meander.dataflow.interfaces import Clock
from meander.dataflow.metrics.histogram import quantile
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.policies.metrics import (
    BinLoad,
    Metrics,
    OperatorLoad,
    PartitionLoad,
    WorkerLoad,
)
from meander.state.keys.ids import Bin, WorkerId

LEAST_SHARE = 0.5
"""The least share of a window that the news of a worker or of the broker must cover."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends and lags of the partitions of all sources, by one answer of the broker."""

    asked_at: float
    """The time of the question, in seconds of the driver's clock."""
    ends: Mapping[Place, int]
    """The end of each partition's log, by source and partition."""
    lags: Mapping[Place, int]
    """The records that the sinks have not passed. Partitions without a commit are missing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a flow: all that its metrics follow from."""

    at: float
    """The time of the driver's clock in seconds."""
    heartbeats: Mapping[WorkerId, WorkerHeartbeat]
    ends: LogEnds | None = None
    """The last answer of the broker. None before the first, and for a flow without topics."""
    bins: Mapping[str, tuple[BinLoad, ...]] = field(default_factory=dict)


class MetricsWindow:
    """A window over the samples of a flow."""

    def __init__(self, plan: Plan, topics: Mapping[str, str], clock: Clock) -> None:
        """`topics` has the topic of each source that reads one."""
        self._plan, self._topics, self._clock = plan, topics, clock
        self._sources = {one.name for one in plan.sources}
        self._upstreams = upstreams_of(plan)
        self._first: Sample | None = None

    def sample(self, stats: WorkerStats, lag: Lag, sizes: Sizes) -> Sample:
        """Return a sample of the flow."""
        ends = None
        if lag.asked_at is not None:
            ends = LogEnds(lag.asked_at, self._by_source(lag.ends), self._by_source(lag.partitions))
        bins = bin_loads(self._plan.groups, sizes, self._plan.flow.snapshot_interval)
        return Sample(self._clock.monotonic(), stats.working, ends, bins)

    def _by_source(self, lags: Lags) -> dict[Place, int]:
        return {
            (source, partition): records
            for source, topic in self._topics.items()
            for (at, partition), records in lags.items()
            if at == topic
        }

    def restart(self) -> None:
        """Forget all samples."""
        self._first = None

    def seconds(self, sample: Sample) -> float:
        """Return the seconds from the start of the window to a sample, which starts one where
        there is none."""
        if self._first is None:
            self._first = sample
        return sample.at - self._first.at

    def close(self, sample: Sample, since_change: float | None) -> Metrics | None:
        """Return the metrics of the window that ends with a sample, and start the next window with
        it. Return None where a worker has sent no news in the window."""
        first, self._first = self._first, sample
        if first is None or sample.at <= first.at:
            return None
        seconds = sample.at - first.at
        workers: dict[WorkerId, WorkerLoad] = {}
        delays = NONE
        for worker, now in sample.heartbeats.items():
            before = first.heartbeats.get(worker)
            if before is None or now.at - before.at < LEAST_SHARE * seconds:
                return None
            workers[worker] = self._worker(before, now)
            for name, reading in now.sources.items():
                earlier = before.sources[name].delays if name in before.sources else NONE
                delays = both(delays, _difference(earlier, reading.delays))
        return Metrics(
            seconds, sample.at, since_change, workers, _partitions(first, sample), sample.bins,
            self._upstreams, _quantile(delays, 0.5), _quantile(delays, 0.99),
        )  # fmt: skip

    def _worker(self, before: WorkerHeartbeat, now: WorkerHeartbeat) -> WorkerLoad:
        seconds = now.at - before.at

        def rate(of: float) -> float:
            return max(0.0, of / seconds)

        return WorkerLoad(
            cpu=rate(now.cpu - before.cpu),
            active=rate(now.active - before.active),
            backpressure=rate(now.backpressure - before.backpressure),
            read=rate(now.counters.get("read", 0) - before.counters.get("read", 0)),
            in_flight=now.inflight,
            operators={
                name: self._operator(name, before.operators.get(name), work, seconds)
                for name, work in now.operators.items()
            },
        )

    def _operator(
        self, name: str, before: OperatorStats | None, now: OperatorStats, seconds: float
    ) -> OperatorLoad:
        before = before or OperatorStats(received=0, sent=0, busy=0.0, durations=NONE)
        durations = _difference(before.durations, now.durations)
        return OperatorLoad(
            (now.received - before.received) / seconds, (now.sent - before.sent) / seconds,
            (now.busy - before.busy) / seconds, _quantile(durations, 0.5),
            _quantile(durations, 0.99), name in self._sources,
        )  # fmt: skip


def upstreams_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the operators before each operator, without those that lead back in a loop."""
    nodes = [one for one in plan.nodes if not isinstance(one, FeedbackNode)]
    return {
        one.name: ()
        if isinstance(one, SourceNode)
        else tuple(dict.fromkeys(output.node.name for output in upstreams(one)))
        for one in nodes
    }


def bin_loads(
    groups: ColocationGroups, sizes: Sizes, interval: float
) -> dict[str, tuple[BinLoad, ...]]:
    """Return the load of all bins, from the sizes that workers report every `interval` seconds.

    >>> sizes = Sizes(); sizes.note_heat("count", Bin(1), 50); sizes.note("count", Bin(1), 7)
    >>> bin_loads(ColocationGroups(2, {"count": False}), sizes, 10.0)[""][1]
    BinLoad(records=5.0, bytes=7)
    """
    return {
        group: tuple(
            BinLoad(sizes.heat(bin) / interval, sizes.of(bin))
            for bin in map(Bin, range(first, first + groups.count))
        )
        for group in groups.names
        for first in [groups.first_bin(group)]
    }


def _partitions(first: Sample, last: Sample) -> dict[Place, PartitionLoad]:
    if last.ends is None:
        return {}
    before, now = first.ends, last.ends
    seconds = 0.0 if before is None else now.asked_at - before.asked_at
    known = {} if before is None else before.ends
    if seconds < LEAST_SHARE * (last.at - first.at):
        known = {}
    found = {}
    for place, end in now.ends.items():
        arrived = (end - known[place]) / seconds if place in known else None
        # Without a commit and without arrivals, there is nothing to be behind of.
        lag = now.lags.get(place, 0 if arrived == 0 else None)
        found[place] = PartitionLoad(arrived, lag)
    return found


def _difference(before: Durations, now: Durations) -> Durations:
    counts = [b - a for a, b in zip(before.counts, now.counts, strict=True)]
    return Durations(counts=counts, seconds=now.seconds - before.seconds)


def _quantile(durations: Durations, share: float) -> float | None:
    """Return the seconds of a share of durations: None without any, infinite beyond all bounds."""
    if not any(durations.counts):
        return None
    found = quantile(durations.counts, share)
    return float("inf") if found is None else found
