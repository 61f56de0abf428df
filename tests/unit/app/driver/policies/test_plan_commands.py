"""The command for a proposal names what differs, or the error names what no command can hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meander.app.driver.policies.plan_control import command_for
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.schemas.control import MAX_COMMAND
from meander.state.keys.ids import WorkerId

ZERO, ONE = WorkerId(0), WorkerId(1)
PLAN = ExecutionPlan(
    {ZERO: ANYWHERE, ONE: ANYWHERE},
    {"above": LogicVersion.of("Above", {"limit": 3}), "total": LogicVersion("Total")},
    {"": (ZERO, ZERO, ONE, ONE)},
    {("in", 0): ZERO},
)


def sections(plan: ExecutionPlan) -> dict[str, Any]:
    written = json.loads(command_for(PLAN, plan, "p", "policy x", "why"))["plan"]
    return {name: one for name, one in written.items() if one is not None}


def test_a_change_of_logic_names_its_operator_alone() -> None:
    found = sections(PLAN.with_logic("above", limit=5))
    assert found == {"operators": {"above": {"logic": "Above", "parameters": {"limit": 5}}}}


def test_a_move_names_the_bins_alone() -> None:
    assert sections(PLAN.with_bins(ONE, [0])) == {"bins": {"0": "1", "1": "0, 2-3"}}


def test_other_workers_come_with_all_that_they_own() -> None:
    found = sections(PLAN.scaled([ZERO, ONE, WorkerId(2)]))
    assert found.keys() == {"workers", "bins", "partitions"}


@pytest.mark.parametrize(
    "plan",
    [
        PLAN.scaled([ZERO, WorkerId(100_000)]),
        PLAN.placed(ZERO, Resources("h" * 500)),
        PLAN.with_logic("above", "C" * 500),
        PLAN.with_logic("above", words="w" * MAX_COMMAND),
    ],
    ids=["id", "host", "class", "size"],
)
def test_a_plan_that_no_command_can_hold_is_refused(plan: ExecutionPlan) -> None:
    with pytest.raises(PlanError, match="the proposal: "):
        command_for(PLAN, plan, "p", "policy x", "why")
