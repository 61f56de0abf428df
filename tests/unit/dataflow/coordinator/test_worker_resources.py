"""Other cores or another memory of a worker: a successor has them, and the worker leaves."""

from __future__ import annotations

import pytest

from meander.dataflow.control.resources import Resources
from meander.state.keys.ids import WorkerId
from meander.testing import TestFlow
from tests.support.sim.driven_flow import driven_flow
from tests.support.sim.plans import apply, joints, state, the_plan
from tests.support.sim.tagged_flow import read, tagged_flow

LARGE = {"cores": 2, "memory": "64m"}


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_with_more_memory_is_another_worker_with_its_bins(seed: int) -> None:
    with TestFlow(tagged_flow(), 2, seed) as run:
        read(run, 1)
        run.control(apply(workers={"0": {}, "1": LARGE}))
        run.run_until_idle()
        assert state(run) == ("reconfigured", "")
        plan = the_plan(run)
        read(run, 2)
        run.run()
    assert plan["workers"] == {"0": {}, "2": LARGE}
    assert plan["bins"] == {"0": "0-3", "2": "4-7"}
    assert plan["partitions"] == {"source": {"0": "0", "2": "1"}}
    (begun,) = (event for event in run.events if event["type"] == "reconfiguring")
    assert begun["operations"] == ["worker 1: moves with 2 cores and 64m of memory"]
    (joint,) = joints(run)
    assert joint.plan.resources == {
        WorkerId(0): Resources(), WorkerId(2): Resources(cores=2, memory=64 << 20),
    }  # fmt: skip
    assert len(run.values("out")) == 2 * len(run.values("out")[:8]), "no record is lost"


def test_the_plan_in_force_keeps_the_resources_of_workers_that_a_plan_does_not_name() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(apply("first", workers={"0": LARGE, "1": {}}))
        run.run_until_idle()
        run.control(apply("second", bins={"1": "0-6", "2": "7"}))
        run.run_until_idle()
        assert state(run, "second") == ("reconfigured", "")
        plan = the_plan(run)
        run.run()
    assert plan["workers"] == {"1": {}, "2": LARGE}


def test_cores_count_as_slots_of_a_master_that_is_known() -> None:
    with driven_flow() as driven:
        driven.topic.put(apply("many", dry_run=True, workers={"0": {}, "1": {"cores": 4}}))
        driven.act()
        (answer,) = driven.told
        assert "3 workers need 6 slots, and the master has 5 in all" in str(answer)
        driven.end()
