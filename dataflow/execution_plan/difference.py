"""The difference of two execution plans: the primitive operations that lead from one to the other.

Guarantees that a plan with these operations applied is the other plan, and that equal plans have
none. A worker that runs already where the other plan lets it run needs no operation. The names of
Trisk's operations stand beside ours (Trisk, 3.1). Cost: O(bins + partitions).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import Resources
from meander.dataflow.execution_plan.bin_ranges import ranges
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.state.keys.ids import Bin, WorkerId, member_name


@dataclass(frozen=True, slots=True)
class SetLogic:
    """An operation that replaces the logic of an operator (`updateFunction`)."""

    operator: str
    before: LogicVersion
    version: LogicVersion

    def __str__(self) -> str:
        return f"operator {self.operator}: {self.before} -> {self.version}"


@dataclass(frozen=True, slots=True)
class AssignBins:
    """An operation that makes another worker the owner of bins (`updateKeyMapping` and
    `updateState`)."""

    group: str
    source: WorkerId
    target: WorkerId
    bins: tuple[Bin, ...]

    def __str__(self) -> str:
        of = "" if self.group == DEFAULT_GROUP else f" of operator {self.group}"
        noun = "bin" if len(self.bins) == 1 else "bins"
        where = f"{member_name(self.source)} -> {member_name(self.target)}"
        return f"{noun} {ranges(self.bins)}{of}: {where}"


@dataclass(frozen=True, slots=True)
class AssignPartition:
    """An operation that makes another worker the reader of a source partition."""

    source: str
    partition: int
    reader: WorkerId
    target: WorkerId

    def __str__(self) -> str:
        where = f"{member_name(self.reader)} -> {member_name(self.target)}"
        return f"partition {self.partition} of source {self.source}: {where}"


@dataclass(frozen=True, slots=True)
class AddWorker:
    """An operation that starts a worker (`updateTaskResources`)."""

    worker: WorkerId
    resources: Resources

    def __str__(self) -> str:
        return f"{member_name(self.worker)}: starts{_where(self.resources)}"


@dataclass(frozen=True, slots=True)
class RemoveWorker:
    """An operation that ends a worker (`updateTaskResources`)."""

    worker: WorkerId

    def __str__(self) -> str:
        return f"{member_name(self.worker)}: ends"


@dataclass(frozen=True, slots=True)
class MoveWorker:
    """An operation that gives a worker another place, other cores or another memory: a successor
    starts with them and takes its bins and partitions (`updateTaskResources`)."""

    worker: WorkerId
    resources: Resources

    def __str__(self) -> str:
        return f"{member_name(self.worker)}: moves{_where(self.resources) or DEFAULTS}"


DEFAULTS: Final = " to one core and the memory of the flow's settings"
"""The words for a worker that moves without a place, cores or a memory of its own."""

Operation = AddWorker | RemoveWorker | MoveWorker | SetLogic | AssignBins | AssignPartition


def difference(before: ExecutionPlan, after: ExecutionPlan) -> list[Operation]:
    """Return the operations that lead from one plan to another, in the order of their effect.

    Raises PlanError where the plans have other operators, bins or partitions, as no operation adds
    or removes those.

    >>> plan = ExecutionPlan(
    ...     {WorkerId(0): Resources()}, {"alert": LogicVersion("Above")}, {"": (WorkerId(0),) * 4}
    ... )
    >>> other = plan.scaled([WorkerId(0), WorkerId(1)]).with_logic("alert", "Below")
    >>> for operation in difference(plan, other):
    ...     print(operation)
    worker 1: starts
    operator alert: Above() -> Below()
    bins 2-3: worker 0 -> worker 1
    """
    _expect_comparable(before, after)
    return [
        *_started(before, after),
        *_logic(before, after),
        *_bins(before, after),
        *_partitions(before, after),
        *(RemoveWorker(one) for one in before.workers if one not in after.workers),
    ]


def _expect_comparable(before: ExecutionPlan, after: ExecutionPlan) -> None:
    for kind, its, others in (
        ("operators", [*before.logic], [*after.logic]),
        ("groups of bins", [*map(repr, before.bins)], [*map(repr, after.bins)]),
        ("bins", _bin_names(before), _bin_names(after)),
        ("partitions", _partition_names(before), _partition_names(after)),
    ):
        if {*its} != {*others}:
            raise PlanError(
                "the plan", f"its {kind} are not those of the flow",
                f"name these: {', '.join(its)}" if its else "name none",
            )  # fmt: skip


def _bin_names(plan: ExecutionPlan) -> list[str]:
    return [
        ranges(range(len(owners))) + (f" of operator {group!r}" if group else "")
        for group, owners in plan.bins.items()
    ]


def _partition_names(plan: ExecutionPlan) -> list[str]:
    return [f"{partition} of source {source!r}" for source, partition in plan.partitions]


def _started(before: ExecutionPlan, after: ExecutionPlan) -> Iterator[Operation]:
    for worker, resources in after.workers.items():
        if worker not in before.workers:
            yield AddWorker(worker, resources)
        else:
            actual = before.workers[worker]
            place = before.places.get(worker, actual)
            if not resources.allows(actual.at(place)):
                yield MoveWorker(worker, resources)


def _logic(before: ExecutionPlan, after: ExecutionPlan) -> Iterator[Operation]:
    for operator, version in after.logic.items():
        if version != before.logic[operator]:
            yield SetLogic(operator, before.logic[operator], version)


def _bins(before: ExecutionPlan, after: ExecutionPlan) -> Iterator[Operation]:
    for group, owners in after.bins.items():
        moved: dict[tuple[WorkerId, WorkerId], list[Bin]] = {}
        for bin, (source, target) in enumerate(zip(before.bins[group], owners, strict=True)):
            if source != target:
                moved.setdefault((source, target), []).append(Bin(bin))
        for (source, target), bins in sorted(moved.items()):
            yield AssignBins(group, source, target, tuple(bins))


def _partitions(before: ExecutionPlan, after: ExecutionPlan) -> Iterator[Operation]:
    for place, target in after.partitions.items():
        if (reader := before.partitions[place]) != target:
            yield AssignPartition(*place, reader, target)


def _where(resources: Resources) -> str:
    host = f" on host {resources.host}" if resources.host else ""
    executor = f" in executor {resources.executor}" if resources.executor else ""
    amounts = f" with {resources.amounts}" if resources.amounts else ""
    return host + executor + amounts
