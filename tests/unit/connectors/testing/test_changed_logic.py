"""A TestFlow shows the states of changed logic, and its faults strike the functions of each
version."""

from __future__ import annotations

from typing import Any

import pytest

from meander import ChangeableLogic, Flow, KafkaSink, KafkaSource
from meander.dataflow.simulation.faults import Raise
from meander.testing import TestFlow
from tests.support.sim.tagged_flow import KEYS, change, read, tagged_flow, tags

EACH = range(KEYS)


@pytest.mark.parametrize("workers", [1, 3])
def test_states_have_the_form_of_the_newest_version_in_force(workers: int) -> None:
    """Also those of keys that no record has touched since, and those of earlier upgrades."""
    with TestFlow(tagged_flow(), workers) as run:
        read(run, 1)
        assert run.states("tagged") == dict.fromkeys(EACH, 1)
        run.control(change("c1", logic="Listed", second=2))
        run.run_until_idle()
        assert run.states("tagged") == dict.fromkeys(EACH, 1), "its time has not come"
        read(run, 2, range(4))
        assert run.states("tagged") == {n: [1 + (n < 4), "first"] for n in EACH}
        run.control(change("c2", logic="Longer", second=3))
        run.run_until_idle()
        read(run, 3, range(2))
        longer = {n: [1 + (n < 4) + (n < 2), "first", "listed"] for n in EACH}
        assert run.states("tagged") == longer
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": workers - 1})
        run.run()
        assert run.states("tagged") == longer


def test_states_stay_as_they_are_where_a_version_upgrades_none() -> None:
    with TestFlow(tagged_flow()) as run:
        run.control(change("c", tag="second"))
        read(run, 1)
        run.run()
        assert run.states("tagged") == dict.fromkeys(EACH, 1)


@pytest.mark.parametrize("operator", ["above", "tagged"])
def test_a_planted_fault_strikes_the_version_that_a_change_has_brought(operator: str) -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c1", "above", limit=-2))
        run.control(change("c2", "tagged", logic="Listed"))
        run.run_until_idle()
        run.inject(Raise(operator, calls=3))
        read(run, 2)
        run.run()
        letters = [(one.operator, one.reason.partition(":")[0]) for one in run.dead_letters]
    assert letters == [(operator, "Planted")] * 3
    assert len(run.values("out")) == 2 * KEYS - 3
    assert tags(run)[1] == ["listed"]


class Ringing(ChangeableLogic, frozen=True):
    gap: int = 1_000

    def init(self) -> Any:
        return 0

    def step(self, context: Any, state: Any, value: Any) -> object:
        context.timer(context.time_ms + self.gap)
        return state + 1

    def on_timer(self, context: Any, state: Any) -> object:
        context.emit([context.key, self.gap])
        return state


def test_a_planted_fault_strikes_the_timer_of_a_changed_process_function() -> None:
    flow = Flow("f", bins=2)
    flow.module = __name__
    keyed = flow.source(KafkaSource("in")).key_by(lambda key: key)
    keyed.process("ringing", Ringing()).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.control(change("c", "ringing", gap=2_000))
        run.run_until_idle()
        run.feed("in", "a", "b", ms=1_000)
        run.run_until_idle()
        assert set(run.states("ringing").values()) == {1}
        run.inject(Raise("ringing"))
        run.run()
        assert len(run.dead_letters) == 1
    assert run.values("out") in ([["a", 2_000]], [["b", 2_000]])
