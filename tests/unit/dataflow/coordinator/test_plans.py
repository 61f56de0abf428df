"""A plan comes into force at one logical time as a whole, or the old one stays."""

from __future__ import annotations

from typing import Any

import pytest

from meander.dataflow.control.decisions import JointDecision, LogicDecision, WorkersPlan
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.sim.plans import abort, apply, joints, migrate, state, the_plan
from tests.support.sim.tagged_flow import change, read, reason, tagged_flow, tags

SECOND = {"tagged": {"parameters": {"tag": "second"}}}


def test_the_plan_in_force_names_workers_logic_bins_and_partitions() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        plan = the_plan(run)
        run.run()
    assert plan == {
        "workers": {"0": {}, "1": {}},
        "operators": {
            "above": {"logic": "Above", "parameters": {"limit": -1}},
            "tagged": {"logic": "Tagged", "parameters": {"step_size": 1, "tag": "first"}},
        },
        "bins": {"0": "0-3", "1": "4-7"},
        "partitions": {"source": {"0": "0", "1": "1"}},
    }


def test_all_dimensions_change_at_one_time() -> None:
    with TestFlow(tagged_flow(), workers=2) as run:
        read(run, 1)
        run.control(apply(workers={"0": {}, "1": {}, "2": {}}, operators=SECOND))
        run.run_until_idle()
        assert state(run) == ("reconfigured", "")
        read(run, 2)
        run.run_until_idle()
        plan = the_plan(run)
        run.run()
    assert plan["bins"] == {"0": "0-2", "1": "4-6", "2": "3, 7"}
    assert tags(run) == [["first"], ["second"]]
    (joint,) = joints(run)
    assert {part.time for part in joint.parts} == {joint.time}


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_joins_and_one_leaves_while_all_else_changes(seed: int) -> None:
    wanted: dict[str, Any] = {
        "workers": {"1": {}, "2": {}},
        "operators": {**SECOND, "above": {"parameters": {"limit": 1}}},
        "bins": {"1": "0-1, 7", "2": "2-6"},
        "partitions": {"source": {"2": "0-1"}},
    }
    with TestFlow(tagged_flow(), 2, seed) as run:
        read(run, 1)
        run.control(apply(**wanted))
        run.run_until_idle()
        assert state(run) == ("reconfigured", "")
        plan = the_plan(run)
        assert [int(worker.me) for worker in run.workers] == [1, 2], "worker 0 has left"
        read(run, 2)
        run.run()
    wanted["operators"]["above"]["logic"] = "Above"
    wanted["operators"]["tagged"] = {
        "logic": "Tagged", "parameters": {"step_size": 1, "tag": "second"},
    }  # fmt: skip
    assert plan == wanted
    values: Any = run.values("out")
    assert sorted(values[8:]) == [[n, "second", 2] for n in range(2, 8)], "no state is lost"


def test_one_record_holds_all_parts() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(
            operators=SECOND, bins={"0": "4-7", "1": "0-3"}, partitions={"source": {"1": "0-1"}}
        ))  # fmt: skip
        run.run()
    (joint,) = joints(run)
    kinds = {type(part) for part in joint.parts}
    assert kinds == {Moves, LogicDecision, ReassignPartition}
    others = [one for one in run.sim.decisions if not isinstance(one, JointDecision)]
    assert not any(isinstance(one, Moves | LogicDecision | ReassignPartition) for one in others)
    assert {part.time for part in joint.parts} == {joint.time}
    assert joint.plan.members == (0, 1)
    assert joint.plan.owners == (1, 1, 1, 1, 0, 0, 0, 0)
    assert {*joint.plan.readers.values()} == {1}


def test_a_plan_with_nothing_to_change_comes_into_force() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply("same", **before))
        run.run_until_idle()
        assert state(run, "same") == ("reconfigured", "")
        assert the_plan(run) == before
        run.run()
    (begun,) = (event for event in run.events if event["type"] == "reconfiguring")
    assert begun["operations"] == []
    assert [joint.parts for joint in joints(run)] == [()]


def test_a_dry_run_tells_the_operations_and_changes_nothing() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        before = the_plan(run)
        run.control(apply(dry_run=True, workers={"0": {}, "1": {}, "2": {}}, operators=SECOND))
        compared = run.events[-1]
        run.run_until_idle()
        assert the_plan(run) == before
        run.control(apply(operators=SECOND))
        read(run, 2)
        assert state(run) == ("reconfigured", ""), "a dry run does not use its id"
        run.run()
    assert compared["type"] == "plan_compared"
    assert compared["operations"] == [
        "worker 2: starts",
        'operator tagged: Tagged(step_size=1, tag="first") -> Tagged(step_size=1, tag="second")',
        "bin 3: worker 0 -> worker 2",
        "bin 7: worker 1 -> worker 2",
    ]
    assert len(joints(run)) == 1


# -- named times


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_holds_from_exactly_the_time_that_it_names(seed: int) -> None:
    with TestFlow(tagged_flow(), 2, seed) as run:
        read(run, 1)
        run.control(apply(time=3_000, operators=SECOND, bins={"0": "4-7", "1": "0-3"}))
        run.run_until_idle()
        assert not joints(run), "a decision would bind the bins until then"
        for second in (2, 3, 4):
            read(run, second)
        run.run()
    assert state(run) == ("reconfigured", "")
    assert [to_millis(joint.time) for joint in joints(run)] == [3_000]
    assert tags(run) == [["first"], ["first"], ["second"], ["second"]]


def test_a_time_that_has_passed_is_rejected() -> None:
    with TestFlow(tagged_flow()) as run:
        for second in (1, 5):
            read(run, second)
        run.control(apply(time=2_000, operators=SECOND))
        run.run()
    assert state(run)[0] == "rejected"
    assert "time 2000 ms is closed: the earliest possible is 5001 ms" in state(run)[1]
    assert joints(run) == []


# -- plans after one another


def test_plans_come_into_force_one_after_another() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply("p1", bins={"1": "0-7"}))
        run.control(apply("p2", operators=SECOND, bins={"0": "0-7"}))
        run.control(apply("p3", workers={"1": {}}))
        run.run_until_idle()
        assert [state(run, id) for id in ("p1", "p2", "p3")] == [("reconfigured", "")] * 3
        assert the_plan(run)["bins"] == {"1": "0-7"}
        read(run, 2)
        run.run()
    found = joints(run)
    assert [joint.id for joint in found] == ["p1", "p2", "p3"]
    times = [joint.time for joint in found]
    assert times == sorted({*times}), "each has a time of its own"
    assert tags(run) == [["first"], ["second"]]


def test_the_id_of_a_plan_is_used_once() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(time=9_000, operators=SECOND))
        run.control(apply(operators=SECOND))
        assert "id 'p' was used before" in reason(run, "p")
        run.run_until_idle()
        read(run, 10)
        assert state(run) == ("reconfigured", "")
        run.control(apply(bins={"0": "0-7"}))
        run.control(change("p", tag="third"))
        run.run()
    rejected = [one for one in run.events if one["type"] == "rejected"]
    assert len(rejected) == 3
    assert all("id 'p' was used before" in str(one["reason"]) for one in rejected)
    assert len(joints(run)) == 1


def test_a_later_change_of_logic_waits_for_the_plan() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply(operators=SECOND, bins={"0": "4-7", "1": "0-3"}))
        run.control(change("c", tag="third"))
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert state(run) == ("reconfigured", "")
    assert state(run, "c") == ("changed", "")
    (joint,) = joints(run)
    logic = [one for one in run.sim.decisions if isinstance(one, LogicDecision)]
    assert [one.time > joint.time for one in logic] == [True]
    assert tags(run) == [["first"], ["third"]]


@pytest.mark.parametrize("seed", range(2))
def test_rescales_before_and_after_a_plan_take_their_turn(seed: int) -> None:
    with TestFlow(tagged_flow(), 2, seed) as run:
        read(run, 1)
        run.control({"type": "rescale", "id": "up", "workers": 3})
        run.control(apply(workers={"0": {}, "1": {}, "2": {}, "3": {}}, operators=SECOND))
        run.control({"type": "rescale", "id": "down", "workers": 1})
        run.run_until_idle()
        read(run, 2)
        plan = the_plan(run)
        run.run()
    assert state(run, "up") == ("rescaled", "")
    assert state(run) == ("reconfigured", "")
    assert state(run, "down") == ("rescaled", "")
    assert plan["bins"] == {"0": "0-7"}
    assert tags(run) == [["first"], ["second"]]
    kinds = [one["type"] for one in run.events if one["type"] in ("rescaled", "reconfigured")]
    assert kinds == ["rescaled", "reconfigured", "rescaled"]


def test_no_bin_moves_to_a_worker_that_leaves_by_a_plan() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(migrate("m1", [0], 1, ms=20_000))
        run.control(apply("p1", workers={"0": {}}))
        assert reason(run, "p1") == (
            "worker 1 gets bins by command 'm1': wait until that is complete, or abort it"
        )
        run.control(abort("a", "m1"))
        run.run_until_idle()
        run.control(apply("p2", time=9_000, workers={"0": {}}))
        run.run_until_idle()
        run.control(migrate("m2", [0], 1))
        assert reason(run, "m2") == (
            "worker 1 leaves by plan 'p2': name another worker, or abort the plan"
        )
        read(run, 10)
        run.run_until_idle()
        assert state(run, "p2") == ("reconfigured", "")
        assert the_plan(run)["bins"] == {"0": "0-7"}
        run.run()


@pytest.mark.parametrize("offset", [1, 7])
def test_a_plan_that_a_restart_has_completed_comes_again_under_its_offset(offset: int) -> None:
    with TestFlow(tagged_flow()) as run:
        before = WorkersPlan((WorkerId(0),), (), {}, {})
        run.sim.coordinator._reconfigured = {"p": JointDecision("p", offset, before)}
        read(run, 1)
        run.control(apply(operators=SECOND))
        read(run, 2)
        run.run()
    assert joints(run) == []
    assert tags(run) == [["first"], ["first"]]
    if offset == 1:
        assert state(run) == ("reconfigured", "")
    else:
        assert "id 'p' was used before" in reason(run, "p")
