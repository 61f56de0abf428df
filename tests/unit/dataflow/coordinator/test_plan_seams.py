"""Plans beside bad numbers, other commands of their time, and the end of the flow."""

from __future__ import annotations

import json

import pytest

from meander.app.driver.commands import OpenCommands
from meander.dataflow.control.decisions import JointDecision
from meander.schemas.status import Aborted, Checkpointed, PlanInForce, Reconfigured, Reconfiguring
from meander.testing import TestFlow
from tests.support.sim.driven_flow import ManualTopic, driven_flow
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


def test_a_plan_that_begins_again_names_the_workers_of_the_execution_that_began_it() -> None:
    """Worker 7 has become worker 1, and the plan's new worker 1 is another one."""
    commands, topic = OpenCommands(), ManualTopic()
    topic.put({"type": "apply_plan", "id": "p", "plan": {"workers": {"7": {}, "1": {}},
               "bins": {"7": "0", "1": "1-3"}}})  # fmt: skip
    # A restart that handles it again, in which the workers have other ids, changes nothing.
    for members in ([0, 7], [0, 1]):
        commands.note(
            Reconfiguring(id="p", offset=0, by="", why="", operations=[], members=members)
        )
    with driven_flow(topic, commands) as driven:
        driven.pool.up = True
        driven.until_told(Reconfigured, "p")
        (joined,) = driven.pool.launched
        assert driven.coordinator.workers.active == [1, joined]
        assert driven.coordinator.owners() == [1, joined, joined, joined]
        assert commands.begun == {}


def test_a_plan_that_waits_for_new_files_is_aborted() -> None:
    with driven_flow() as driven:
        driven.has_all_files = False
        driven.topic.put(
            {"type": "apply_plan", "id": "p", "plan": {"bins": {"0": "0-3"}}},
            {"type": "abort", "id": "a", "command": "p"},
        )
        driven.act()
        assert driven.said("p") == ["aborted"]
        assert driven.the(Aborted, "p").by == "a"
        driven.has_all_files = True
        driven.end()
        assert driven.said("p") == ["aborted"]
        assert driven.bins() == {0, 1}


def test_no_checkpoint_is_cut_between_a_decided_plan_and_its_receipt() -> None:
    """I5: it would have the old owners, and a recovery would go on with the new ones."""
    with driven_flow() as driven:
        coordinator, log = driven.coordinator, driven.decision_log
        coordinator.decisions._write = log
        log.held = True
        driven.topic.put(
            {"type": "apply_plan", "id": "p", "plan": {"bins": {"0": "2-3", "1": "0-1"}}}
        )
        driven.until(lambda: coordinator.reconfigurations.decided("p") is not None)
        coordinator.checkpoints.request("c", None, "kept")
        driven.until(lambda: coordinator.checkpoints.aligned)
        driven.act()
        assert coordinator.checkpoints.aligned, "it waits"
        log.flush()
        driven.until_told(Checkpointed, "c")
        assert any(isinstance(one, JointDecision) for one in log.written)
