"""What a flow waits for is said stage by stage, as its moves and frontiers really are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from meander.app.driver import wait_reasons
from meander.app.driver.rescaler import Rescaler
from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.worker.process import links
from meander.dataflow.control.decisions import Joins, LeaveDecision
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.simulation.simulator import Join, SimClock
from meander.schemas.control import Rescale
from meander.schemas.status import BlockedFrontier
from meander.state.keys.ids import WorkerId
from tests.support.sim.changing_flow import ONE, TWO, ZERO, ChangingFlow
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.manual_flow import until
from tests.support.sim.start import Start


@pytest.fixture
def flow(start: Start) -> CommandedFlow:
    commanded = CommandedFlow(start)
    commanded.read(1000)
    return commanded


def moves(flow: CommandedFlow) -> list[str]:
    """What each move waits for."""
    waits = wait_reasons.migrations(flow.run.sim.controller.migrations.rounds())
    return [wait.what for wait in waits.values()]


def test_a_decision_has_to_be_durable_first(flow: CommandedFlow) -> None:
    controller = flow.run.sim.controller
    for n in range(20):
        flow.submit(f"m{n}", (0,), 1, 5000 + n)
    assert set(moves(flow)) == {f"migration 'm{n}': the flow's time" for n in range(20)}
    for round in controller.migrations.rounds():
        round.unsent = 1
    assert "migration 'm3': its decision to be on its topic" in moves(flow)


def test_a_move_of_a_time_to_come_waits_for_the_flow_to_reach_it(flow: CommandedFlow) -> None:
    flow.submit("m", (0,), 1, 5000)
    (wait,) = wait_reasons.migrations(flow.run.sim.controller.migrations.rounds()).values()
    assert wait == Wait(
        "migration 'm': the flow's time",
        "the sources have read up to 5000 ms, from which on it holds",
    )


def test_a_bin_that_is_on_its_way_is_named_with_its_owners(flow: CommandedFlow) -> None:
    flow.submit("m", (0, 1), 1, 5000)
    flow.source.give(0, *((5001, key) for key in range(20)))
    controller = flow.run.sim.controller
    until(lambda: any(round.awaited for round in controller.migrations.rounds()), flow.run.turn)
    (wait,) = wait_reasons.migrations(controller.migrations.rounds()).values()
    assert wait.what == (
        "migration 'm': bins on their way, 2 left, bin 0 of 'a' to worker 1 among them"
    )
    assert wait.when.startswith("worker 0 has passed 5000 ms and written its state")


def test_nothing_is_waited_for_once_a_move_is_complete(flow: CommandedFlow) -> None:
    flow.submit("m", (0, 1), 1, 5000)
    flow.read(5001)
    flow.read(5002)
    assert flow.run.said("m")[-1] == "completed"
    assert moves(flow) == []


def held(since_ms: int, *, awaited: bool) -> BlockedFrontier:
    return BlockedFrontier(
        probe="out", by="partition 2 ...", since_ms=since_ms, awaited=awaited, kind="source",
        name="in",
    )  # fmt: skip


def test_a_frontier_that_nobody_waits_for_is_no_wait() -> None:
    assert wait_reasons.frontiers([held(5, awaited=False)]) == {}
    (wait,) = wait_reasons.frontiers([held(5, awaited=True)]).values()
    assert wait.what == "the frontier of 'out', held back by partition 2 ..."


def test_a_frontier_that_has_moved_is_another_wait() -> None:
    before, after = (wait_reasons.frontiers([held(ms, awaited=True)]) for ms in (5, 6))
    assert before.keys() != after.keys()


# -- partitions that change hands, workers that come and go


def said(waits: Mapping[Hashable, Wait]) -> list[str]:
    return [f"{wait.what}: {wait.when}" for wait in waits.values()]


@pytest.fixture
def staff() -> Iterator[ChangingFlow]:
    changing = ChangingFlow()
    with changing.run:
        changing.join()
        yield changing


def partitions(staff: ChangingFlow) -> list[str]:
    controller = staff.sim.controller
    unsent = controller.decisions.unsent
    return said(wait_reasons.partitions(controller.assignment.under_way, ["in"], unsent, {}))


def goings(staff: ChangingFlow) -> list[str]:
    controller = staff.sim.controller
    return said(wait_reasons.goings(controller.workers.leaving, controller.decisions.unsent))


def test_a_partition_waits_for_its_order_to_be_durable_and_then_for_its_readers(
    staff: ChangingFlow,
) -> None:
    staff.held = ReassignPartition
    staff.sim.controller.hand_over("h", "source", 3, ONE)
    staff.acted()
    assert partitions(staff) == [
        "partition 3 of source 'in' ('h'): its decision to be on its topic: the broker confirms it"
    ]
    staff.held = None
    staff.until(lambda: not staff.sim.controller.decisions.unsent)
    (wait,) = partitions(staff)
    assert wait.startswith(
        "partition 3 of source 'in' ('h') on its way from worker 0 to worker 1: "
    )
    assert wait.endswith("worker 0 has said where it stopped, and worker 1 reads on")
    staff.until(lambda: staff.done() == {"h"})
    assert partitions(staff) == []


def test_a_newcomer_waits_for_its_joining_to_be_durable(staff: ChangingFlow) -> None:
    staff.held = Joins
    staff.sim.submit(Join())
    unsent = staff.sim.controller.decisions.unsent
    (wait,) = said(wait_reasons.comings(unsent))
    assert wait == "worker 3 to join: its decision to be on its topic: the broker confirms it"


def test_a_leaver_is_followed_from_its_bins_to_its_last_word(staff: ChangingFlow) -> None:
    staff.sim.controller.share("s", [ONE])
    staff.until(lambda: staff.reads()[1] == 2)
    staff.until(lambda: staff.sim.controller.migrations.idle)
    staff.held = LeaveDecision
    staff.sim.controller.leave("l", [ONE])
    first = "worker 1 to give its bins and partitions away: the others have them all"
    assert goings(staff) == [first]
    staff.until(lambda: goings(staff) != [first])
    (second,) = goings(staff)
    assert second.startswith("worker 1 to leave: all that comes to it, or that it has been told of")
    staff.until(lambda: goings(staff) != [second])
    (third,) = goings(staff)
    assert third == "worker 1 to leave: its decision to be on its topic: the broker confirms it"
    staff.held = None
    staff.until(lambda: goings(staff) != [third])
    (fourth,) = goings(staff)
    assert fourth.startswith("worker 1 to leave: what it holds to be over: all that it has counted")
    staff.until(lambda: len(staff.said("left")) == 1)
    assert goings(staff) == []


def test_one_that_parts_waits_until_the_others_have_its_last_word() -> None:
    hands = {WorkerId(n): WorkerHandle(WorkerId(n), cast(SparkTask, None)) for n in range(3)}
    leaver = hands[TWO]
    assert said(wait_reasons.partings(hands)) == []
    leaver.leaves = True
    assert said(wait_reasons.partings(hands)) == ["worker 2 to part: it has said its last word"]
    leaver.done = True
    leaver.released.add(ZERO)
    assert said(wait_reasons.partings(hands)) == [
        "worker 2 to part: its last word has come to worker 1"
    ]


def test_a_rescale_waits_for_the_ones_before_it(staff: ChangingFlow) -> None:
    crew = cast(WorkerPool, SimpleNamespace(hands={}, working=False))
    rescaler = Rescaler(staff.sim.controller, crew, SimClock(), None)
    for offset, name in enumerate(("r1", "r2")):
        rescaler.ask(Rescale(type="rescale", id=name, workers=3), offset)
    assert said(rescaler.waits()) == [
        "rescale 'r1' to begin: all workers are at work",
        "rescale 'r2' to begin: 'r1' has ended",
    ]


def test_whoever_has_no_credit_names_the_peer_and_both_operators() -> None:
    (wait,) = links([("key_by exchange", "n", ONE)]).values()
    assert wait == Wait(
        "worker 1 to take what 'key_by exchange' has sent to 'n' there, as the credit is used up"
        " (the flow's link_credit)",
        "'n' there has room and takes its next turn",
    )
