"""A change of plan: what a command for another plan asks of workers, bins, partitions and logic.

Guarantees that each new worker has an id that no worker has had: one that names a used id gets the
next free one, and so does the successor of a worker that moves. Cost: O(bins + partitions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meander.dataflow.control.command import PREPARE_WITHIN, Reconfigure
from meander.dataflow.control.logic_change import LogicUpdate
from meander.dataflow.control.resources import Resources
from meander.dataflow.execution_plan.difference import (
    AddWorker,
    AssignBins,
    AssignPartition,
    MoveWorker,
    Operation,
    RemoveWorker,
    SetLogic,
    difference,
)
from meander.dataflow.execution_plan.document import updated, with_workers, workers_of
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.schemas.control import ApplyPlan, CommandError
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis

MAX_AHEAD = 1000
"""The limit by which a new worker's id may exceed the next free id."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """The difference of two plans, in the order in which it is carried out."""

    operations: Sequence[Operation]
    joining: Mapping[WorkerId, Resources]
    """The workers that start first, and where."""
    reconfigure: Reconfigure
    """What changes at one time, once they have joined."""

    @property
    def leaving(self) -> list[WorkerId]:
        """The workers that leave last."""
        return [*self.reconfigure.removed]


def plan_change(plan: ExecutionPlan, command: ApplyPlan, offset: int, next_id: int) -> PlanChange:
    """Return what leads from a plan to that of a command.

    Raises PlanError for a plan that cannot be, and CommandError for an id that cannot be used.
    """
    target = updated(plan, command.plan)
    operations = difference(plan, target)
    added = [one.worker for one in operations if isinstance(one, AddWorker)]
    _expect_near(added, next_id)
    first = max([next_id, *(worker + 1 for worker in added)])
    moved = [one.worker for one in operations if isinstance(one, MoveWorker)]
    used = [worker for worker in added if worker < next_id]
    successors = {worker: WorkerId(first + n) for n, worker in enumerate([*used, *moved])}
    whole = difference(plan, target.renamed(successors))
    joining = {one.worker: one.resources for one in whole if isinstance(one, AddWorker)}
    resources = {successors.get(one, one): its for one, its in target.workers.items()}
    renamed = difference(plan, target.renamed({one: successors[one] for one in used}))
    return PlanChange(renamed, joining, _reconfigure(command, offset, whole, resources))


def renumbered(command: ApplyPlan, former: Sequence[int], members: Sequence[int]) -> ApplyPlan:
    """Return a command whose plan names the workers of a later execution.

    `former` are the workers of the execution that began the plan, and `members` those of now, in
    the same order. A new worker of the plan gets another id where a member has its id by now.

    >>> from meander.schemas.execution_plan import PlanDocument
    >>> plan = PlanDocument.model_validate({"workers": {"2": {}, "1": {}}})
    >>> command = ApplyPlan(type="apply_plan", id="p", plan=plan)
    >>> [*(renumbered(command, [0, 2], [0, 1]).plan.workers or ())]
    ['1', '3']
    """
    named = workers_of(command.plan)
    names = dict(zip(former, members, strict=False))
    taken = [one for one in sorted(named.difference(former)) if one in members]
    first = max([*named, *members], default=0) + 1
    names |= {one: first + n for n, one in enumerate(taken)}
    changed = {str(old): str(new) for old, new in names.items()}
    return command.model_copy(update={"plan": with_workers(command.plan, changed)})


def _reconfigure(
    command: ApplyPlan,
    offset: int,
    operations: Sequence[Operation],
    resources: Mapping[WorkerId, Resources],
) -> Reconfigure:
    bins = dict[str, dict[Bin, WorkerId]]()
    logic = dict[str, LogicUpdate]()
    partitions = dict[tuple[str, int], WorkerId]()
    removed = list[WorkerId]()
    for one in operations:
        match one:
            case SetLogic(operator, _, version):
                logic[operator] = LogicUpdate(version.name, version.values)
            case AssignBins(group, _, target, some):
                bins.setdefault(group, {}).update(dict.fromkeys(some, target))
            case AssignPartition(source, partition, _, target):
                partitions[source, partition] = target
            case RemoveWorker(worker):
                removed.append(worker)
    time = None if command.time is None else from_millis(command.time)
    seconds = PREPARE_WITHIN if command.seconds is None else command.seconds
    return Reconfigure(
        command.id, logic, bins, partitions, removed, resources, time, offset, seconds
    )


def _expect_near(added: Sequence[WorkerId], next_id: int) -> None:
    for worker in added:
        if worker >= next_id + MAX_AHEAD:
            raise CommandError(
                f"worker {worker} cannot start: its id is far above the next free one; name new"
                f" workers from {next_id} on"
            )
