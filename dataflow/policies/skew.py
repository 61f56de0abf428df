"""The skew balancer: bins move from workers whose keys get many records to those with few.

Guarantees that each proposal lowers the records of the busiest worker by at least `gain`, so that a
steady load comes to rest. A bin with more records than a fair share of all of them gets a worker
for itself, as no move could help it. Cost: O(bins x moves) per proposal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meander.dataflow.execution_plan.bin_ranges import ranges
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.dataflow.policies.metrics import Metrics
from meander.dataflow.policies.policy import Policy, cooling_down, expect
from meander.state.keys.ids import WorkerId, member_name

Place = tuple[str, int]
"""A colocation group, and a bin of it."""


@dataclass
class SkewBalancer(Policy):
    """A policy that evens out the records of workers with few moves of bins. Raises SetupError for
    a wrong option.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.dataflow.policies.metrics import BinLoad
    >>> workers = WorkerId(0), WorkerId(1)
    >>> plan = ExecutionPlan(dict.fromkeys(workers, ANYWHERE), bins={"": (*workers, *workers)})
    >>> bins = {"": tuple(BinLoad(records) for records in (500.0, 100.0, 300.0, 100.0))}
    >>> policy = SkewBalancer()
    >>> policy.decide(Metrics(10.0, 10.0, bins=bins), plan).bins
    {'': (0, 1, 1, 1)}
    >>> policy.why
    'worker 0 gets 1.60 times a fair share of the records'
    """

    tolerance: float = 1.2
    """The records of a worker, relative to the mean, above which bins move."""
    gain: float = 0.05
    """The part by which a proposal lowers the records of the busiest worker, at least."""
    max_moves: int = 16
    """The most bins that a proposal moves, besides those that make room for a hot one."""
    min_records: float = 100.0
    """Records per second of all bins below which nothing moves."""
    isolate: bool = True
    """Whether a bin with more records than a fair share gets a worker for itself."""
    cool_down: float = 30.0
    """Seconds after each change of the plan without a decision. Workers count the records of bins
    for each `snapshot_interval` of the flow, so it should be longer."""

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        expect(
            self, lambda: {
                "tolerance": self.tolerance >= 1, "gain": 0 < self.gain < 1,
                "max_moves": self.max_moves >= 1, "min_records": self.min_records >= 0,
                "cool_down": self.cool_down >= 0,
            },
        )  # fmt: skip

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        """Return the plan with other owners of some bins, or None."""
        before = metrics.records_of(plan)
        total, busiest = sum(before.values()), max(before, key=lambda one: before[one])
        fair = total / len(before)
        if cooling_down(metrics, self.cool_down) or len(before) < 2:
            return None
        if total < self.min_records or not fair or before[busiest] <= self.tolerance * fair:
            return None
        balance = _Balance.of(metrics, plan)
        hot = balance.isolate(fair) if self.isolate else []
        for _ in range(self.max_moves):
            if not balance.improve():
                break
        if max(balance.records.values()) > (1 - self.gain) * before[busiest]:
            return None
        share = before[busiest] / fair
        self.why = f"{member_name(busiest)} gets {share:.2f} times a fair share of the records"
        if hot:
            self.why += f"; bin {ranges(bin for _, bin in hot)} gets a worker for itself"
        return balance.plan(plan)


@dataclass
class _Balance:
    """The owners of bins, and the records that follow for each worker."""

    bins: Mapping[Place, float]
    owners: dict[Place, WorkerId]
    records: dict[WorkerId, float]
    isolated: set[WorkerId] = field(default_factory=set)
    """The workers that have one hot bin each, and get no other."""

    @staticmethod
    def of(metrics: Metrics, plan: ExecutionPlan) -> _Balance:
        """Return the balance of a plan."""
        owners = {
            (group, bin): owner
            for group, its in plan.bins.items()
            for bin, owner in enumerate(its)
        }  # fmt: skip
        known = {group: metrics.bins.get(group, ()) for group in plan.bins}
        bins = {
            (group, bin): known[group][bin].records if bin < len(known[group]) else 0.0
            for group, bin in owners
        }
        return _Balance(bins, owners, metrics.records_of(plan))

    def plan(self, before: ExecutionPlan) -> ExecutionPlan:
        """Return the plan with these owners."""
        changed = before
        for (group, bin), owner in self.owners.items():
            if before.bins[group][bin] != owner:
                changed = changed.with_bins(owner, [bin], group)
        return changed

    def isolate(self, fair: float) -> list[Place]:
        """Give each bin with more records than a fair share a worker for itself; return them. Their
        owners keep them where that is possible."""
        hot = sorted((one for one, n in self.bins.items() if n > fair), key=self._heat)[::-1]
        for place in hot:
            worker = self.owners[place]
            if worker in self.isolated:
                worker = min(self._open, key=lambda one: self.records[one])
                self._move(place, worker)
            self.isolated.add(worker)
        pinned = set(hot)
        others = [one for one, own in self.owners.items() if own in self.isolated]
        for place in sorted(set(others) - pinned, key=lambda one: (-self._heat(one), one)):
            self._move(place, min(self._open, key=lambda one: (self.records[one], one)))
        return hot

    def improve(self) -> bool:
        """Move the bin that lowers the records of the busiest worker most; return whether any
        does."""
        if len(self._open) < 2:
            return False
        source = max(self._open, key=lambda one: self.records[one])
        target = min(self._open, key=lambda one: self.records[one])
        gap = self.records[source] - self.records[target]
        # A bin of half the gap evens both out. A smaller one does so in part.
        useful = [one for one in self._bins_of(source) if 0 < self._heat(one) < gap]
        if not useful:
            return False
        self._move(min(useful, key=lambda one: (abs(self._heat(one) - gap / 2), one)), target)
        return True

    @property
    def _open(self) -> list[WorkerId]:
        return [one for one in self.records if one not in self.isolated]

    def _bins_of(self, worker: WorkerId) -> Iterator[Place]:
        return (place for place, owner in self.owners.items() if owner == worker)

    def _heat(self, place: Place) -> float:
        return self.bins[place]

    def _move(self, place: Place, worker: WorkerId) -> None:
        self.records[self.owners[place]] -= self.bins[place]
        self.records[worker] += self.bins[place]
        self.owners[place] = worker
