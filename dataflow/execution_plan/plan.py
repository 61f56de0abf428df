"""The execution plan: the logic, the workloads and the resources of a running flow (Trisk, 3.1).

Guarantees that each bin has one owner, each partition one reader, and that both are workers of the
plan: another plan cannot be constructed. A plan never changes; its methods return other plans.
Cost: O(bins + partitions) per plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from meander.dataflow.control.balance import distribute, shares_for_joining
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.logic_change import LogicUpdate, LogicVersion
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, WorkerId, member_name

T = TypeVar("T")
Place = tuple[str, int]
"""The name of a source, and one of its partitions."""


class PlanError(MeanderError):
    """An error that names what is wrong with an execution plan, and the remedy."""


K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that never changes, which a plan has of each mapping that it gets.

    >>> FrozenDict({"a": 1})["a"] = 2
    Traceback (most recent call last):
    TypeError: a plan never changes: its methods return other plans
    """

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a plan never changes: its methods return other plans")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """An immutable execution plan.

    >>> plan = ExecutionPlan(
    ...     workers={WorkerId(0): ANYWHERE, WorkerId(1): ANYWHERE},
    ...     logic={"alert": LogicVersion.of("Above", {"limit": 3})},
    ...     bins={"": (WorkerId(0), WorkerId(0), WorkerId(1), WorkerId(1))},
    ...     partitions={("readings", 0): WorkerId(0)},
    ... )
    >>> plan.with_logic("alert", limit=5).logic["alert"].parameters
    '{"limit": 5}'
    >>> plan.scaled([WorkerId(0)]).bins
    {'': (0, 0, 0, 0)}
    """

    workers: Mapping[WorkerId, Resources]
    logic: Mapping[str, LogicVersion] = field(default_factory=dict)
    """The version of each operator whose logic can change."""
    bins: Mapping[str, tuple[WorkerId, ...]] = field(default_factory=dict)
    """The owner of each bin, by colocation group; '' is the default group."""
    partitions: Mapping[Place, WorkerId] = field(default_factory=dict)
    """The reader of each source partition."""
    places: Mapping[WorkerId, Resources] = field(default_factory=dict)
    """Where each worker runs now, where that is known. `workers` says where it has to run."""

    def __post_init__(self) -> None:
        """Raise PlanError where a bin or a partition belongs to no worker of the plan."""
        for name in ("workers", "logic", "bins", "partitions", "places"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        if not self.workers:
            raise PlanError("the plan", "it has no worker", "name at least one")
        for group, owners in self.bins.items():
            for bin, owner in enumerate(owners):
                self._expect_worker(_bin_name(group, bin), owner, "owner")
        for (source, partition), reader in self.partitions.items():
            self._expect_worker(f"partition {partition} of source {source!r}", reader, "reader")

    def _expect_worker(self, subject: str, worker: WorkerId, role: str) -> None:
        if worker not in self.workers:
            known = ", ".join(map(str, self.workers))
            raise PlanError(
                subject, f"its {role}, {member_name(worker)}, is no worker of the plan",
                f"name one of {known}, or add that worker",
            )  # fmt: skip

    # -- logic

    def with_logic(
        self, operator: str, name: str | None = None, /, **parameters: object
    ) -> ExecutionPlan:
        """Return the plan in which an operator has other parameters, or another class of logic.

        Raises PlanError where the operator has no logic that can change.
        """
        return self.with_update(operator, LogicUpdate(name, parameters))

    def with_update(self, operator: str, update: LogicUpdate) -> ExecutionPlan:
        """Return the plan with an update of the logic of an operator, as `with_logic` does."""
        if operator not in self.logic:
            known = ", ".join(map(repr, self.logic))
            remedy = f"name one of {known}" if known else "derive its logic from ChangeableLogic"
            raise PlanError(f"operator {operator!r}", "it has no logic that can change", remedy)
        try:
            version = update.of(self.logic[operator])
        except ValueError as error:  # JSON has large numbers that no float holds.
            raise PlanError(
                f"operator {operator!r}", f"JSON cannot express its parameters ({error})",
                "give finite numbers",
            ) from None  # fmt: skip
        return replace(self, logic={**self.logic, operator: version})

    # -- workloads

    def with_bins(
        self, worker: WorkerId, bins: Collection[int], group: str = DEFAULT_GROUP
    ) -> ExecutionPlan:
        """Return the plan in which a worker owns some bins of a group.

        >>> plan = ExecutionPlan(
        ...     dict.fromkeys([WorkerId(0), WorkerId(1)], ANYWHERE),
        ...     bins={"": (WorkerId(0),) * 4},
        ... )
        >>> plan.with_bins(WorkerId(1), [1, 3]).bins[""]
        (0, 1, 0, 1)
        """
        owners = [*self.owners_of(group)]
        for bin in bins:
            if not 0 <= bin < len(owners):
                raise PlanError(
                    _bin_name(group, bin), "it does not exist",
                    f"name bins from 0 to {len(owners) - 1}",
                )  # fmt: skip
            owners[bin] = worker
        return replace(self, bins={**self.bins, group: tuple(owners)})

    def with_partition(self, source: str, partition: int, worker: WorkerId) -> ExecutionPlan:
        """Return the plan in which a worker reads a partition."""
        place = source, partition
        if place not in self.partitions:
            raise PlanError(
                f"partition {partition} of source {source!r}", "the flow does not read it",
                "name a partition of the plan",
            )  # fmt: skip
        return replace(self, partitions={**self.partitions, place: worker})

    def isolated(self, bin: int, worker: WorkerId, group: str = DEFAULT_GROUP) -> ExecutionPlan:
        """Return the plan in which a worker owns one bin of a group and no other; the others of its
        bins go to the other workers.

        >>> plan = ExecutionPlan(
        ...     dict.fromkeys([WorkerId(0), WorkerId(1), WorkerId(2)], ANYWHERE),
        ...     bins={"": (WorkerId(0), WorkerId(1), WorkerId(2), WorkerId(2))},
        ... )
        >>> plan.isolated(0, WorkerId(2)).bins[""]
        (2, 1, 0, 1)
        """
        others = [one for one in self.workers if one != worker]
        if not others:
            raise PlanError(f"bin {bin}", "the plan has one worker only", "add another worker")
        owned = [
            number
            for number, owner in enumerate(self.owners_of(group))
            if owner == worker and number != bin
        ]
        plan = self
        for target, some in distribute(owned, others).items():
            plan = plan.with_bins(target, some, group)
        return plan.with_bins(worker, [bin], group)

    def bins_of(self, worker: WorkerId, group: str = DEFAULT_GROUP) -> list[Bin]:
        """Return the bins of a group that a worker owns."""
        return [Bin(bin) for bin, owner in enumerate(self.owners_of(group)) if owner == worker]

    def owners_of(self, group: str) -> tuple[WorkerId, ...]:
        """Return the owner of each bin of a group. Raises PlanError for an unknown group."""
        if group not in self.bins:
            known = ", ".join(map(repr, self.bins))
            remedy = f"name one of {known}" if known else "leave its bins out"
            raise PlanError(f"group {group!r}", "the plan has no such group of bins", remedy)
        return self.bins[group]

    # -- workers and their resources

    def scaled(self, workers: Sequence[WorkerId], resources: Resources = ANYWHERE) -> ExecutionPlan:
        """Return the plan with these workers: new ones get their share of all bins and partitions,
        and missing ones give theirs away, by the fewest moves.

        >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE}, bins={"": (WorkerId(0),) * 4})
        >>> plan.scaled([WorkerId(0), WorkerId(1)]).bins[""]
        (0, 0, 1, 1)
        """
        if not workers:
            raise PlanError("the plan", "it has no worker", "name at least one")
        for one in workers:
            if workers.count(one) > 1:
                raise PlanError(member_name(one), "it is named twice", "name each worker once")
        kept = {one: self.workers.get(one, resources) for one in workers}
        return ExecutionPlan(
            kept,
            self.logic,
            {group: tuple(self._shared(dict(enumerate(its)), workers).values())
             for group, its in self.bins.items()},
            self._shared(self.partitions, workers),
            self.places,
        )  # fmt: skip

    def _shared(
        self, owned: Mapping[T, WorkerId], workers: Sequence[WorkerId]
    ) -> dict[T, WorkerId]:
        """Return new owners of bins or partitions, all of which belong to the given workers."""
        staying = [one for one in workers if one in self.workers] or list(workers)
        left = [thing for thing, owner in owned.items() if owner not in workers]
        found = dict(owned)
        for worker, some in distribute(left, staying).items():
            found |= dict.fromkeys(some, worker)
        joining = [one for one in workers if one not in self.workers]
        for worker, some in shares_for_joining(found, joining, workers).items():
            found |= dict.fromkeys(some, worker)
        return found

    def placed(self, worker: WorkerId, resources: Resources) -> ExecutionPlan:
        """Return the plan in which a worker runs elsewhere, or with other cores or memory.

        >>> plan = ExecutionPlan({WorkerId(0): Resources("a")})
        >>> str(plan.placed(WorkerId(0), Resources("b", cores=2)).workers[WorkerId(0)])
        'host b with 2 cores'
        """
        if worker not in self.workers:
            known = ", ".join(map(str, self.workers))
            raise PlanError(member_name(worker), "it is unknown", f"name one of {known}")
        return replace(self, workers={**self.workers, worker: resources})

    def renamed(self, names: Mapping[WorkerId, WorkerId]) -> ExecutionPlan:
        """Return the plan in which workers have other ids. Raises PlanError where two have one.

        >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE}, bins={"": (WorkerId(0),)})
        >>> plan.renamed({WorkerId(0): WorkerId(3)}).bins
        {'': (3,)}
        """
        renamed = [names.get(one, one) for one in self.workers]
        for one in renamed:
            if renamed.count(one) > 1:
                raise PlanError(
                    member_name(one), "two workers of the plan would have this id",
                    "give each an id of its own",
                )  # fmt: skip
        return ExecutionPlan(
            {names.get(one, one): resources for one, resources in self.workers.items()},
            self.logic,
            {group: tuple(names.get(one, one) for one in its) for group, its in self.bins.items()},
            {place: names.get(one, one) for place, one in self.partitions.items()},
            self.places,
        )


def _bin_name(group: str, bin: int) -> str:
    return f"bin {bin} of operator {group!r}" if group else f"bin {bin}"
