"""The metrics of a running flow over an interval, as policies see them.

Guarantees that a figure without a measurement is None, never 0: an unknown rate must not look like
a low one. Rates are in records per second of the interval, shares are parts of it. All figures are
of workers that ran during the whole interval. Cost: O(workers x operators + bins).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from meander.dataflow.execution_plan.plan import ExecutionPlan, Place
from meander.state.keys.ids import WorkerId


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """The load of one operator, on one worker or on all of them.

    >>> count = OperatorLoad(received=300.0, sent=150.0, busy=0.2)
    >>> count.true_rate, count.selectivity
    (1500.0, 0.5)
    """

    received: float = 0.0
    """Records per second that arrived at its inputs."""
    sent: float = 0.0
    """Records per second that left its outputs."""
    busy: float = 0.0
    """The share of time of its turns; of all workers: the sum of their shares."""
    p50: float | None = None
    """Half of the records took at most these seconds from arrival to completion, waits included."""
    p99: float | None = None
    is_source: bool = False

    @property
    def processed(self) -> float:
        """Return the records per second that it processed: those that a source has sent, or those
        that another operator has received."""
        return self.sent if self.is_source else self.received

    @property
    def true_rate(self) -> float | None:
        """Return the true processing rate: records per second of busy time (DS2, 3.1). None where
        it has processed no record."""
        return self.processed / self.busy if self.processed > 0 and self.busy > 0 else None

    @property
    def selectivity(self) -> float | None:
        """Return the records sent per record received. None without a received record."""
        return self.sent / self.received if self.received > 0 else None


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load of one worker."""

    cpu: float = 0.0
    """The CPU time of its process, as a share of one core; more than 1 with several threads."""
    active: float = 0.0
    """The share of time of turns that did anything, so 1 where it can do no more."""
    backpressure: float = 0.0
    """The share of time in which it could send or read no more, as others had to catch up."""
    read: float = 0.0
    """Records per second read from source partitions."""
    in_flight: int = 0
    """Bytes read that the sinks have not passed."""
    operators: Mapping[str, OperatorLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The load of one source partition."""

    arrived: float | None = None
    """Records per second that producers have added. None where the broker has not told."""
    lag: int | None = None
    """Records that the sinks have not passed. None where that is unknown."""


@dataclass(frozen=True, slots=True)
class BinLoad:
    """The load of one bin, by the last reports of its owner."""

    records: float = 0.0
    """Records per second of its keys."""
    bytes: int = 0
    """Bytes of its states."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a flow over an interval.

    >>> metrics = Metrics(
    ...     seconds=10.0, now=60.0,
    ...     workers={
    ...         WorkerId(0): WorkerLoad(active=0.9), WorkerId(1): WorkerLoad(active=0.5),
    ...     },
    ...     partitions={("lines", 0): PartitionLoad(arrived=200.0, lag=30)},
    ... )
    >>> metrics.active, metrics.arrived, metrics.lag, metrics.skew
    (0.7, 200.0, 30, 1.2857142857142858)
    """

    seconds: float
    """The length of the interval."""
    now: float
    """The end of the interval, in seconds of a clock that never goes back."""
    since_change: float | None = None
    """Seconds since the plan last changed, or the execution started. None where that is unknown."""
    workers: Mapping[WorkerId, WorkerLoad] = field(default_factory=dict)
    partitions: Mapping[Place, PartitionLoad] = field(default_factory=dict)
    """The partitions whose arrivals the broker counts."""
    bins: Mapping[str, tuple[BinLoad, ...]] = field(default_factory=dict)
    """Each bin, by colocation group."""
    upstreams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The operators before each operator, without those that lead back in a loop. Sources have
    none. The order is that of the flow's definition."""
    p50: float | None = None
    """Seconds of half of the deliveries at most, from the reader past all sinks. None without a
    delivery."""
    p99: float | None = None
    """The same of 99 of 100; infinite beyond 30 s."""

    @property
    def is_complete(self) -> bool:
        """Return whether workers were measured."""
        return self.seconds > 0 and bool(self.workers)

    @property
    def active(self) -> float:
        """Return the mean share of time in which a worker was active."""
        return fmean(one.active for one in self.workers.values()) if self.workers else 0.0

    @property
    def busiest(self) -> float:
        """Return the greatest share of time in which a worker was active."""
        return max((one.active for one in self.workers.values()), default=0.0)

    @property
    def backpressure(self) -> float:
        """Return the largest share of time that a worker spent under backpressure."""
        return max((one.backpressure for one in self.workers.values()), default=0.0)

    @property
    def read(self) -> float:
        """Return the records per second that all workers have read."""
        return sum(one.read for one in self.workers.values())

    @property
    def arrived(self) -> float | None:
        """Return the records per second that arrived at all source partitions. None where one of
        them is unknown, and where no broker counts arrivals."""
        return _total(one.arrived for one in self.partitions.values())

    @property
    def lag(self) -> int | None:
        """Return the records of all partitions that the sinks have not passed. None where a lag is
        unknown."""
        found = _total(one.lag for one in self.partitions.values())
        return None if found is None else int(found)

    @property
    def lag_seconds(self) -> float | None:
        """Return the lag as seconds of arrivals, or of reading where that is faster. None where lag
        or arrivals are unknown; 0 where nothing arrives and nothing is read, as a transaction
        leaves a marker behind its last record, which counts as lag."""
        if (lag := self.lag) is None or (arrived := self.arrived) is None:
            return None
        pace = max(arrived, self.read)
        return lag / pace if pace > 0 else 0.0

    @property
    def skew(self) -> float:
        """Return the greatest share of active time of a worker, relative to the mean; 1 without
        skew, and without activity."""
        return self.busiest / self.active if self.active else 1.0

    def by_source(self) -> dict[str, dict[Place, PartitionLoad]]:
        """Return the partitions of each source."""
        found: dict[str, dict[Place, PartitionLoad]] = {}
        for place, one in self.partitions.items():
            found.setdefault(place[0], {})[place] = one
        return found

    def operator(self, name: str) -> OperatorLoad | None:
        """Return the metrics of an operator on all workers, without latencies. None where no worker
        has it.

        >>> one = WorkerLoad(operators={"count": OperatorLoad(received=5.0, busy=0.1)})
        >>> metrics = Metrics(1.0, 1.0, workers={WorkerId(0): one, WorkerId(1): one})
        >>> metrics.operator("count").received, metrics.operator("cuont")
        (10.0, None)
        """
        found = [one.operators[name] for one in self.workers.values() if name in one.operators]
        if not found:
            return None
        return OperatorLoad(
            sum(one.received for one in found), sum(one.sent for one in found),
            sum(one.busy for one in found), is_source=found[0].is_source,
        )  # fmt: skip

    def records_of(self, plan: ExecutionPlan) -> dict[WorkerId, float]:
        """Return the records per second of each worker's bins, over all groups.

        >>> metrics = Metrics(1.0, 1.0, bins={"": (BinLoad(8.0), BinLoad(2.0))})
        >>> from meander.dataflow.control.resources import ANYWHERE
        >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE}, bins={"": (WorkerId(0), WorkerId(0))})
        >>> metrics.records_of(plan)
        {0: 10.0}
        """
        found = dict.fromkeys(plan.workers, 0.0)
        for group, owners in plan.bins.items():
            for owner, bin in zip(owners, self.bins.get(group, ()), strict=False):
                found[owner] += bin.records
        return found


def _total(figures: Iterable[float | None]) -> float | None:
    found = 0.0
    any_known = False
    for one in figures:
        if one is None:
            return None
        found, any_known = found + one, True
    return found if any_known else None
