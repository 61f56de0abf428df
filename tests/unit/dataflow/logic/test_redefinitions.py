"""A user may take a changed version over into the definition of the flow, and restart it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from meander import Checkpointing, Flow
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.redefinitions import redefinitions
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.logic_change import LogicChange, LogicVersion
from meander.dataflow.logic.changeable import load, version_of
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import DurableWorld
from meander.schemas.errors import SetupError
from meander.testing import TestFlow
from tests.support.sim.tagged_flow import HOME, KEYS, Command, Listed, Longer, Tagged, change


def changed(before: str, version: str, generation: int = 0) -> LogicChange:
    """A change at time 7."""
    return LogicChange("c", "tagged", 7, named(before), named(version), generation)


def named(name: str) -> LogicVersion:
    return version_of(load(LogicVersion(name), HOME, "the test"), HOME)


def plan_of(logic: Any, *step: Any) -> Plan:
    flow = Flow("f")
    flow.module = HOME
    keyed = flow.source(ListSource([[]])).key_by(lambda n: n)
    keyed.fold("tagged", logic, *step).sink(ListSink())
    return Plan(flow)


@pytest.mark.parametrize("logic", [Tagged(), Listed()])
def test_a_version_that_an_operator_has_had_is_no_redefinition(logic: Any) -> None:
    assert redefinitions(plan_of(logic), [changed("Tagged", "Listed", 1)], 9) == []


def test_another_version_is_a_change_at_the_start_that_upgrades_states() -> None:
    (found,) = redefinitions(plan_of(Longer()), [changed("Tagged", "Listed", 1)], 9)
    assert (found.command, found.time, found.generation) == ("", 9, 2)
    assert (found.before, found.version) == (named("Listed"), named("Longer"))


def test_a_redefinition_lies_behind_all_changes() -> None:
    (found,) = redefinitions(plan_of(Longer()), [changed("Tagged", "Listed", 1)], 3)
    assert found.time == 8


def test_a_plain_function_reads_no_upgraded_states() -> None:
    plain = plan_of(lambda: 0, lambda state, n: (state, n))
    assert redefinitions(plain, [changed("Tagged", "Listed")], 9) == []
    with pytest.raises(SetupError, match="a change has upgraded its states; derive its logic"):
        redefinitions(plain, [changed("Tagged", "Listed", 1)], 9)


def execution(
    world: DurableWorld, logic: Any, rounds: int, command: Command | None = None
) -> list[Any]:
    """Run an execution over some rounds of all keys, and return each key's last result."""
    flow, sink = Flow("f", bins=2, checkpoints=Checkpointing(interval=0.001)), ListSink()
    flow.module = HOME
    records = [(1_000 + n, n % KEYS) for n in range(rounds * KEYS)]
    keyed = flow.source(ListSource([records])).key_by(lambda n: n)
    keyed.fold("tagged", logic).sink(sink)
    with TestFlow(flow, seed=3, world=world) as run:
        for _ in range(400):
            run.act()
        if command is not None:
            run.control(command)
        run.run()
        assert run.dead_letters == []
    last: dict[object, Any] = {value[0]: value for value in sink.values}  # type: ignore[index]
    return [last[n] for n in range(KEYS)]


def test_a_flow_goes_on_where_its_definition_takes_a_change_over() -> None:
    """Its states are those that the change has upgraded, and a redefinition follows from it."""
    world = DurableWorld.empty(random.Random(1))
    execution(world, Tagged(), 40, change("c1", logic="Listed"))
    taken = execution(world, Listed(), 80)
    assert taken == [[n, "listed", 80, "first"] for n in range(KEYS)]
    longer = execution(world, Longer(), 120)
    assert longer == [[n, "longer", 120, "first", "listed"] for n in range(KEYS)]
    for rounds, logic in ((160, Tagged()), (200, Longer()), (240, Listed())):
        last = execution(world, logic, rounds)
        assert last == [[n, "longer", rounds, "first", "listed"] for n in range(KEYS)]


def test_an_execution_knows_no_changes_of_logic_that_its_flow_lacks() -> None:
    """A joining worker would refuse them."""
    plain = plan_of(lambda: 0, lambda state, n: (state, n))
    for plan, count in ((plain, 0), (plan_of(Tagged()), 1)):
        restored = RestorePlan.of(plan, 2).with_logic(plan, [changed("Tagged", "Listed")])
        assert len(restored.logic_changes) == count
