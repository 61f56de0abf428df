"""A plan comes into force at one logical time as a whole, or the old one stays."""

from __future__ import annotations

from typing import Any

from meander.dataflow.control.decisions import JointDecision
from meander.testing import TestFlow
from tests.support.sim.tagged_flow import KEYS, read, tagged_flow, tags


def apply(id: str = "p", **fields: Any) -> dict[str, Any]:
    names: list[str] = [one for one in ("time", "dry_run", "seconds") if one in fields]
    own = {one: fields.pop(one) for one in names}
    return {"meander": "command", "type": "apply_plan", "id": id, "plan": fields, **own}


def the_plan(run: TestFlow) -> dict[str, Any]:
    """The plan in force, as the flow reports it."""
    run.control(apply("shown", dry_run=True))
    return run.events[-1]["plan"]  # type: ignore[return-value]


def state(run: TestFlow, id: str = "p") -> tuple[str, str]:
    answer = run.answer(id)
    assert answer is not None
    return answer.state, answer.reason


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
        run.control(apply(
            workers={"0": {}, "1": {}, "2": {}},
            operators={"tagged": {"parameters": {"tag": "second"}}},
        ))  # fmt: skip
        run.run_until_idle()
        assert state(run) == ("reconfigured", "")
        read(run, 2)
        run.run_until_idle()
        plan = the_plan(run)
        run.run()
    assert plan["bins"] == {"0": "0-2", "1": "4-6", "2": "3, 7"}
    assert tags(run) == [["first"], ["second"]]
    (joint,) = (one for one in run.sim.decisions if isinstance(one, JointDecision))
    assert {part.time for part in joint.parts} == {joint.time}


def test_a_prepared_plan_waits_for_its_time_beyond_the_limit_of_its_preparation() -> None:
    with TestFlow(tagged_flow(), workers=2) as run:
        read(run, 1)
        new = {"tagged": {"parameters": {"tag": "second"}}}
        run.control(apply(operators=new, time=5_000, seconds=1.0))
        for _ in range(500):
            run.act()
        run.sim.clock.advance(100.0)
        for _ in range(500):
            run.act()
        assert [event["type"] for event in run.events] == ["reconfiguring"]
        for n in range(KEYS):
            run.feed("in", n, ms=5_000, partition=n % 2)
        run.run()
    assert state(run) == ("reconfigured", "")
    assert tags(run) == [["first"], ["second"]]
