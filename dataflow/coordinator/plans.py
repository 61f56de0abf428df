"""The execution plans of a running flow: the one in force, and what leads from it to another.

Guarantees that a change of plan passes every check that needs no worker, so what fails later is a
worker's. Cost: O(bins + partitions) per call.
"""

from __future__ import annotations

from collections.abc import Collection

from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.plan_change import PlanChange, plan_change
from meander.dataflow.coordinator.pool import RescalablePool
from meander.dataflow.execution_plan.document import document_of
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.schemas.control import ApplyPlan, CommandError
from meander.schemas.status import PlanCompared
from meander.state.keys.ids import WorkerId


class Plans:
    """The plans of one flow. `slots` is the number of workers that fit, where that is known."""

    def __init__(self, coordinator: Coordinator, pool: RescalablePool, slots: int | None) -> None:
        self._coordinator, self._pool, self._slots = coordinator, pool, slots

    @property
    def in_force(self) -> ExecutionPlan:
        """The plan in force, after all changes decided so far. Raises CommandError where the
        sources have ended."""
        return self._coordinator.execution_plan(self._members, self._pool.places)

    @property
    def _members(self) -> dict[WorkerId, Resources]:
        """The members with their resources; their cores and memory are those that they have."""
        places, found = self._pool.places, dict[WorkerId, Resources]()
        for one in sorted(self._pool.handles):
            wanted = self._coordinator.resources.get(one, ANYWHERE)
            found[one] = places.get(one, wanted).at(wanted)
        return found

    def change(self, command: ApplyPlan, offset: int, next_id: int) -> PlanChange:
        """Return what a command asks for; new workers have ids from `next_id` on.

        Raises CommandError where it cannot be carried out.
        """
        try:
            change = plan_change(self.in_force, command, offset, next_id)
        except PlanError as error:
            raise CommandError(str(error)) from error
        if change.joining:
            self.expect_slots(change.joining.values())
            self._pool.joining.expect_slots(change.joining)
        self._coordinator.expect_reconfiguration(change.reconfigure, change.joining)
        return change

    def compare(self, command: ApplyPlan, offset: int, next_id: int) -> PlanCompared:
        """Return the plan in force, and what a command would do to it.

        Raises CommandError as `change` does.
        """
        plan, change = self.in_force, self.change(command, offset, next_id)
        return PlanCompared(
            id=command.id, offset=offset, plan=document_of(plan).sections,
            places={str(worker): str(place) for worker, place in plan.places.items()},
            operations=[*map(str, change.operations)],
        )  # fmt: skip

    def expect_slots(self, joining: Collection[Resources]) -> None:
        """Raise CommandError where the master has too few slots for some joining workers."""
        members = self._members
        slots = sum(one.cores for one in (*members.values(), *joining))
        if self._slots is None or slots <= self._slots:
            return
        workers = len(members) + len(joining)
        need = f"{slots} slots" if slots > workers else "a slot each"
        raise CommandError(
            f"{workers} workers need {need}, and the master has {self._slots} in all: name"
            " fewer workers, or start the flow on a master with more"
        )
