"""A service whose capacity is linear in its workers, and the metrics that it shows policies.

Records come to a source, words leave a flat map, and a count gets them by key. Each operator takes
a constant time per record; the loop of a worker takes a part more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meander.dataflow.control.resources import ANYWHERE
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import (
    BinLoad,
    Metrics,
    OperatorLoad,
    PartitionLoad,
    WorkerLoad,
)
from meander.dataflow.policies.policy import Policy
from meander.state.keys.ids import WorkerId

WORDS = 3.0
"""The words of a record."""
UPSTREAMS = {"lines": (), "words": ("lines",), "count": ("words",)}


def plan_of(workers: int, bins: int = 64, partitions: int = 4) -> ExecutionPlan:
    """Return a plan in which workers share bins and partitions evenly."""
    ids = [WorkerId(n) for n in range(workers)]
    return ExecutionPlan(
        dict.fromkeys(ids, ANYWHERE),
        bins={"": tuple(ids[bin % workers] for bin in range(bins))},
        partitions={("lines", n): ids[n % workers] for n in range(partitions)},
    )


@dataclass
class LinearService:
    """A service with a backlog; `costs` are seconds per record of each operator."""

    costs: dict[str, float] = field(
        default_factory=lambda: {"lines": 1e-4, "words": 2e-4, "count": 1e-4}
    )
    overhead: float = 1.25
    """The time of a worker per second of its operators."""
    plan: ExecutionPlan = field(default_factory=lambda: plan_of(1))
    backlog: float = 0.0
    now: float = 0.0
    changed_at: float | None = None
    interval: float = 10.0
    history: list[int] = field(default_factory=list)
    """The number of workers after each change."""

    @property
    def seconds_per_record(self) -> float:
        costs = self.costs
        words = WORDS * costs["count"]
        return self.overhead * (costs["lines"] + costs["words"] + words)

    def step(self, arrived: float) -> Metrics:
        """Let an interval pass in which records arrive; return its metrics."""
        self.now += self.interval
        workers = len(self.plan.workers)
        most = workers * self.interval / self.seconds_per_record
        waiting = self.backlog + arrived * self.interval
        done = min(most, waiting)
        self.backlog = waiting - done
        read = done / self.interval / workers
        words = WORDS * read
        operators = {
            "lines": OperatorLoad(0.0, read, read * self.costs["lines"], is_source=True),
            "words": OperatorLoad(read, words, read * self.costs["words"]),
            "count": OperatorLoad(WORDS * read, WORDS * read, WORDS * read * self.costs["count"]),
        }
        active = read * self.seconds_per_record
        one = WorkerLoad(active, active, 0.0, read, 0, operators)
        owners = self.plan.bins[""]
        return Metrics(
            self.interval, self.now,
            None if self.changed_at is None else self.now - self.changed_at,
            dict.fromkeys(self.plan.workers, one),
            {
                place: PartitionLoad(
                    arrived / len(self.plan.partitions),
                    int(self.backlog / len(self.plan.partitions)),
                )
                for place in self.plan.partitions
            },
            {"": tuple(BinLoad(WORDS * read * workers / len(owners)) for _ in owners)},
            UPSTREAMS, p50=0.003, p99=0.01,
        )  # fmt: skip

    def apply(self, plan: ExecutionPlan | None) -> None:
        """Change to another plan."""
        if plan is not None:
            self.plan, self.changed_at = plan, self.now
            self.history.append(len(plan.workers))

    def run(self, policy: Policy, arrived: float, intervals: int) -> list[int]:
        """Let a policy decide after each interval; return the numbers of workers that it chose."""
        before = len(self.history)
        for _ in range(intervals):
            self.apply(policy.decide(self.step(arrived), self.plan))
        return self.history[before:]
