"""Workers that join or leave meet the versions that all others have."""

from __future__ import annotations

from typing import Any

import pytest

from meander.dataflow.simulation.faults import Pause
from meander.testing import TestFlow
from tests.support.sim.tagged_flow import KEYS, Command, change, read, tagged_flow, tags


def rescale(id: str, workers: int) -> Command:
    return {"type": "rescale", "id": id, "workers": workers}


@pytest.mark.parametrize("seed", range(2))
def test_a_joining_worker_upgrades_the_states_that_it_gets(seed: int) -> None:
    """No record has touched the keys between the two upgrades before the join."""
    with TestFlow(tagged_flow(), 1, seed) as run:
        read(run, 1)
        for id, logic in (("c1", "Listed"), ("c2", "Longer")):
            run.control(change(id, logic=logic))
            run.run_until_idle()
        run.control(rescale("up", 3))
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert {result.worker for result in run.results("out") if result.time >> 20 == 2_000} > {0}
    values: Any = run.values("out")
    assert sorted(values[KEYS:]) == [[n, "longer", 2, "first", "listed"] for n in range(KEYS)]


@pytest.mark.parametrize("seed", range(2))
def test_a_joining_worker_knows_the_changes_that_are_decided(seed: int) -> None:
    """One of them is in force, and one has a later time."""
    with TestFlow(tagged_flow(), 1, seed) as run:
        read(run, 1)
        run.control(change("c1", tag="second"))
        run.control(change("c2", second=3, tag="third"))
        run.control(change("c3", "above", second=4, limit=99))
        run.run_until_idle()
        run.control(rescale("up", 3))
        for second in (2, 3, 4):
            read(run, second)
        run.run()
    assert tags(run) == [["first"], ["second"], ["third"]]


@pytest.mark.parametrize("seed", range(2))
def test_a_joining_worker_prepares_the_versions_that_are_under_way(seed: int) -> None:
    with TestFlow(tagged_flow(), 2, seed) as run:
        read(run, 1)
        run.inject(Pause(worker=1, steps=4_000))
        run.control(change("c", tag="second"))
        run.control(rescale("up", 3))
        run.run_until_idle()
        read(run, 2)
        run.run()
    said = [event["type"] for event in run.events]
    assert said.index("logic_accepted") < said.index("joined") < said.index("logic_changed")
    assert tags(run) == [["first"], ["second"]]


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_a_leaving_worker_holds_up_no_change(seed: int) -> None:
    with TestFlow(tagged_flow(), 3, seed) as run:
        read(run, 1)
        run.control(rescale("down", 1))
        for _ in range(seed * 40):
            run.act()
        run.control(change("c1", logic="Listed"))
        run.run_until_idle()
        read(run, 2)
        run.control(change("c2", logic="Longer"))
        run.run_until_idle()
        read(run, 3)
        run.run()
    assert len([event for event in run.events if event["type"] == "left"]) == 2
    assert tags(run) == [["first"], ["listed"], ["longer"]]


@pytest.mark.parametrize("workers", range(1, 5))
@pytest.mark.parametrize("seed", range(2))
def test_results_do_not_depend_on_the_number_of_workers(workers: int, seed: int) -> None:
    with TestFlow(tagged_flow(), workers, seed) as run:
        run.control(change("c1", second=2, logic="Listed"))
        run.control(change("c2", "above", second=3, limit=2))
        run.control(change("c3", second=4, logic="Longer", step_size=10))
        run.run_until_idle()
        for second in range(1, 6):
            run.feed("in", *range(KEYS), ms=second * 1_000)
        run.run()
    each, some = range(KEYS), range(3, KEYS)
    assert run.values("out") == [
        *([n, "first", 1] for n in each),
        *([n, "listed", 2, "first"] for n in each),
        *([n, "listed", 3, "first"] for n in some),
        *([n, "longer", 13, "first", "listed"] for n in some),
        *([n, "longer", 23, "first", "listed"] for n in some),
    ]
