"""The worker stats: the last heartbeat of each worker of a flow.

Guarantees that totals never shrink because a worker leaves: one sum holds the counts of all workers
that have left. Cost: one sum per leaving worker, and one per heartbeat for earlier executions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meander.app.protocol.messages import Durations, OperatorStats, SourceStats, WorkerHeartbeat
from meander.dataflow.control.resources import Resources
from meander.dataflow.metrics.counters import added
from meander.dataflow.metrics.histogram import BOUNDS
from meander.state.keys.ids import WorkerId

NONE = Durations(counts=[0] * (len(BOUNDS) + 1), seconds=0.0)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The last heartbeats of all workers.

    >>> one = WorkerHeartbeat(counters={"read": 3})
    >>> two = WorkerHeartbeat(counters={"read": 4}, inflight=9)
    >>> heard = WorkerStats({WorkerId(0): one}).without(two)
    >>> heard.counters, heard.left.inflight, list(heard.everyone)
    ({'read': 7}, 0, ['0', 'left'])
    """

    working: Mapping[WorkerId, WorkerHeartbeat] = field(default_factory=dict)
    left: WorkerHeartbeat = field(default_factory=WorkerHeartbeat)
    """The sum over the workers that have left."""
    executors: Mapping[WorkerId, Resources] = field(default_factory=dict)
    """The executor of each worker that knows it."""

    def after(self, earlier: WorkerHeartbeat) -> WorkerStats:
        """Return the stats with the sum of earlier executions, as if their workers had left.

        >>> WorkerStats().after(WorkerHeartbeat(counters={"read": 3})).counters
        {'read': 3}
        """
        return replace(self, left=_summed(earlier, self.left))

    @property
    def total(self) -> WorkerHeartbeat:
        """Return the sum over all workers, as if they had left."""
        total = self.left
        for heartbeat in self.working.values():
            total = _summed(total, heartbeat)
        return total

    def without(self, last: WorkerHeartbeat) -> WorkerStats:
        """Return the stats after a worker has left with its last heartbeat."""
        return replace(self, left=_summed(self.left, last))

    @property
    def everyone(self) -> dict[str, WorkerHeartbeat]:
        """Return the heartbeats by worker, and the sum of those that have left under 'left'."""
        working = {str(worker): heartbeat for worker, heartbeat in self.working.items()}
        return working if self.left == WorkerHeartbeat() else working | {"left": self.left}

    @property
    def counters(self) -> dict[str, int]:
        """Return the counters of all workers since the start, added up."""
        return dict(added(*(heartbeat.counters for heartbeat in self.everyone.values())))


def _summed(one: WorkerHeartbeat, other: WorkerHeartbeat) -> WorkerHeartbeat:
    operators, sources = dict(one.operators), dict(one.sources)
    for name, work in other.operators.items():
        known = operators.get(name, OperatorStats(received=0, sent=0, busy=0.0, durations=NONE))
        operators[name] = OperatorStats(
            received=known.received + work.received,
            sent=known.sent + work.sent,
            busy=known.busy + work.busy,
            durations=both(known.durations, work.durations),
            # Its keys have moved to other workers.
            forgotten=known.forgotten + work.forgotten,
        )
    for name, reading in other.sources.items():
        delays = sources[name].delays if name in sources else NONE
        sources[name] = SourceStats(
            partitions=[], times=[], states=[], delays=both(delays, reading.delays)
        )
    counters = dict(added(one.counters, other.counters))
    return WorkerHeartbeat(
        counters=counters, cpu=one.cpu + other.cpu, active=one.active + other.active,
        backpressure=one.backpressure + other.backpressure, operators=operators, sources=sources,
    )  # fmt: skip


def both(one: Durations, other: Durations) -> Durations:
    """Two histograms as one."""
    counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    return Durations(counts=counts, seconds=one.seconds + other.seconds)
