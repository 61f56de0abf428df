"""Plans beside bad numbers, other commands of their time, and the end of the flow."""

from __future__ import annotations

import json

import pytest

from meander.schemas.status import PlanInForce, Reconfigured
from meander.testing import TestFlow
from tests.support.sim.driven_flow import driven_flow
from tests.support.sim.plans import apply, joints, state
from tests.support.sim.tagged_flow import read, reason, tagged_flow, tags

SWAPPED = {"0": "4-7", "1": "0-3"}


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_number_beyond_all_floats_is_rejected(dry_run: bool) -> None:
    asked = apply(operators={"above": {"parameters": {"limit": 17}}}, dry_run=dry_run)
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(json.dumps(asked).replace("17", "1e999").encode())
        run.run_until_idle()
        assert "JSON cannot express its parameters" in reason(run, "p")
        run.run()
    assert tags(run) == [["first"]]


def test_a_plan_does_not_slip_behind_a_move_at_the_time_that_it_names() -> None:
    """Records of that time would meet the old logic."""
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control({"type": "migrate", "id": "m", "bins": [0], "worker": 1, "time": 5_000})
        second = {"tagged": {"parameters": {"tag": "second"}}}
        run.control(apply(bins=SWAPPED, operators=second, time=5_000))
        for ms in range(2, 8):
            read(run, ms)
        run.run()
    assert state(run) == (
        "rolled_back", "another command changes a part of it at 5000 ms: name another time",
    )  # fmt: skip
    assert joints(run) == []
    assert {tag for some in tags(run) for tag in some} == {"first"}


def test_a_decided_plan_is_in_force_though_the_flow_ends_before_it_is_complete() -> None:
    with driven_flow() as driven:
        driven.topic.put(
            {"type": "apply_plan", "id": "p", "plan": {"bins": {"0": "2-3", "1": "0-1"}}}
        )
        driven.until(lambda: driven.coordinator.reconfigurations.decided("p") is not None)
        driven.stop(lambda: None)
        assert driven.said("p")[-2:] == ["plan_in_force", "reconfigured"]
        assert driven.the(PlanInForce, "p").synchronise_ms is None
        assert driven.the(Reconfigured, "p").workers == 2


def test_an_undecided_plan_is_aborted_as_the_flow_ends() -> None:
    with driven_flow() as driven:
        driven.topic.put(
            {"type": "apply_plan", "id": "p", "plan": {"workers": {"0": {}, "1": {}, "2": {}}}}
        )
        driven.until(lambda: bool(driven.pool.launched))
        driven.stop(lambda: None)
        assert driven.said("p")[-1] == "aborted"
