"""A plan waits until the cool-down after the last one is over; other commands go their way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.dataflow.coordinator.cooldown import Cooldown
from meander.dataflow.simulation.simulator import SimClock
from meander.schemas.control import ApplyPlan, Rescale
from meander.schemas.execution_plan import PlanDocument
from meander.schemas.status import Aborted, Completed, Reconfigured
from tests.support.sim.driven_flow import Driven, driven_flow
from tests.support.sim.plans import apply

PLAN = ApplyPlan.model_construct(type="apply_plan", id="next", plan=PlanDocument())
HOUR = 3600.0
FIRST, SECOND = apply("first", bins={"0": "0", "1": "1-3"}), apply("second", bins={"0": "0-3"})


@pytest.fixture
def driven() -> Iterator[Driven]:
    with driven_flow(plan_cooldown=HOUR) as driven:
        yield driven


def waits(driven: Driven) -> list[str]:
    """The events that commands wait for."""
    return [one.until for one in driven.rescaler.wait_reasons().values()]


def test_a_cooldown_holds_plans_alone_until_it_is_over() -> None:
    clock = SimClock()
    cooldown = Cooldown(clock, 30)
    assert cooldown.reason(PLAN) == "", "no plan has come into force"
    cooldown.start("p1")
    assert cooldown.reason(PLAN) == "the cool-down of 30 s after plan 'p1' is over"
    assert cooldown.reason(Rescale(type="rescale", id="r", workers=2)) == ""
    assert cooldown.reason(None) == ""
    clock.advance(30)
    assert cooldown.reason(PLAN) == ""


def test_the_next_plan_waits_and_its_wait_says_so(driven: Driven) -> None:
    driven.topic.put(FIRST)
    driven.until_told(Reconfigured, "first")
    driven.topic.put(SECOND)
    driven.act()
    driven.act()
    assert driven.said("second") == []
    assert waits(driven) == ["the cool-down of 3600 s after plan 'first' is over"]
    driven.sim.clock.advance(HOUR)
    driven.until_told(Reconfigured, "second")
    assert waits(driven) == []
    assert driven.bins() == {0}
    driven.end()


def test_a_plan_that_cools_down_is_aborted(driven: Driven) -> None:
    driven.topic.put(FIRST)
    driven.until_told(Reconfigured, "first")
    driven.topic.put(SECOND)
    driven.act()
    driven.topic.put({"type": "abort", "id": "a", "command": "second"})
    driven.until_told(Aborted, "second")
    assert waits(driven) == []
    driven.topic.put(driven.migrate("m", 1))
    driven.until_told(Completed, "m")
    driven.end()
