"""The check of a proposal: what a policy returned becomes a plan of this flow, or an error.

Guarantees that a checked plan has the operators, groups, bins and partitions of the flow, values of
the right types, and no more workers than fit. The command that carries it out checks the rest.
Cost: O(bins + partitions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from meander.dataflow.execution_plan.difference import Operation, difference
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.dataflow.operators.error_policy import describe

MOST_GROWTH = 4
"""The most workers, relative to the present number, where the number of slots is unknown."""
FEW = 16
"""The number of workers that a proposal may always have there."""


def checked(
    current: ExecutionPlan, proposal: object, slots: int | None
) -> tuple[ExecutionPlan, Sequence[Operation]]:
    """Return a proposal as a plan, and the operations that lead to it.

    Raises PlanError with the reason where it is no plan of the flow, or has too many workers.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.state.keys.ids import WorkerId
    >>> plan = ExecutionPlan({WorkerId(0): ANYWHERE})
    >>> checked(plan, plan.scaled([WorkerId(0), WorkerId(1)]), slots=1)
    Traceback (most recent call last):
    meander.dataflow.execution_plan.plan.PlanError: the proposal: it has 2 workers, and 1 ...
    """
    if not isinstance(proposal, ExecutionPlan):
        raise _nonsense(f"it is a {type(proposal).__name__} and no ExecutionPlan")
    try:
        plan = msgspec.convert(asdict(proposal), ExecutionPlan)
        for version in plan.logic.values():
            version.values  # noqa: B018 (it raises for parameters that are no object)
    except PlanError:
        raise
    except Exception as error:
        raise _nonsense(f"its values are no plan: {describe(error)}") from error
    if min(plan.workers) < 0:
        raise _nonsense(f"it has a worker {min(plan.workers)}")
    operations = difference(current, plan)
    before, after = len(current.workers), len(plan.workers)
    most = max(FEW, MOST_GROWTH * before) if slots is None else slots
    if after > max(most, before):
        raise PlanError(
            "the proposal", f"it has {after} workers, and {most} may run",
            "lower the most workers of the policy, or start the flow with more slots",
        )  # fmt: skip
    return plan, operations


def _nonsense(cause: str) -> PlanError:
    return PlanError("the proposal", cause, "derive it from the plan that the policy got, or None")
