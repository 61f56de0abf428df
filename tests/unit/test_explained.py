"""What a flow waits for is said stage by stage, as its moves and frontiers really are."""

from __future__ import annotations

import pytest

from app import explained
from dataflow.waits import Wait
from schemas.status import HeldBack
from tests.commanded import Commanded
from tests.hand import until
from tests.unit.conftest import Start


@pytest.fixture
def flow(start: Start) -> Commanded:
    commanded = Commanded(start)
    commanded.read(1000)
    return commanded


def moves(flow: Commanded) -> list[str]:
    """What each move waits for."""
    waits = explained.migrations(flow.run.sim.controller.rounds())
    return [wait.what for wait in waits.values()]


def test_a_decision_has_to_be_durable_first(flow: Commanded) -> None:
    controller = flow.run.sim.controller
    for n in range(20):
        flow.submit(f"m{n}", (0,), 1, 5000 + n)
    assert set(moves(flow)) == {f"migration 'm{n}': the flow's time" for n in range(20)}
    for round in controller.rounds():
        round.sent = False
    assert "migration 'm3': its decision to be on its topic" in moves(flow)


def test_a_move_of_a_time_to_come_waits_for_the_flow_to_reach_it(flow: Commanded) -> None:
    flow.submit("m", (0,), 1, 5000)
    (wait,) = explained.migrations(flow.run.sim.controller.rounds()).values()
    assert wait == Wait(
        "migration 'm': the flow's time",
        "the sources have read up to 5000 ms, from which on it holds",
    )


def test_a_bin_that_is_on_its_way_is_named_with_its_owners(flow: Commanded) -> None:
    flow.submit("m", (0, 1), 1, 5000)
    flow.source.give(0, *((5001, key) for key in range(20)))
    controller = flow.run.sim.controller
    until(lambda: any(round.awaited for round in controller.rounds()), flow.run.turn)
    (wait,) = explained.migrations(controller.rounds()).values()
    assert wait.what == (
        "migration 'm': bins on their way to worker 1, 2 left, bin 0 of 'a' among them"
    )
    assert wait.when.startswith("worker 0 has passed 5000 ms and written its state")


def test_nothing_is_waited_for_once_a_move_is_complete(flow: Commanded) -> None:
    flow.submit("m", (0, 1), 1, 5000)
    flow.read(5001)
    flow.read(5002)
    assert flow.run.said("m")[-1] == "completed"
    assert moves(flow) == []


def held(since_ms: int, *, awaited: bool) -> HeldBack:
    return HeldBack(
        probe="out", by="partition 2 ...", since_ms=since_ms, awaited=awaited, kind="source",
        name="in",
    )  # fmt: skip


def test_a_frontier_that_nobody_waits_for_is_no_wait() -> None:
    assert explained.frontiers([held(5, awaited=False)]) == {}
    (wait,) = explained.frontiers([held(5, awaited=True)]).values()
    assert wait.what == "the frontier of 'out', held back by partition 2 ..."


def test_a_frontier_that_has_moved_is_another_wait() -> None:
    before, after = (explained.frontiers([held(ms, awaited=True)]) for ms in (5, 6))
    assert before.keys() != after.keys()
