"""What a flow waits for is said stage by stage, as its moves and frontiers really are."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from meander.app.driver import wait_reasons
from meander.app.driver.workers.spark_launcher import SparkTask
from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.app.worker.process import credit_waits
from meander.dataflow.control.decisions import JoinDecision, LeaveDecision
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.coordinator.pool import RescalablePool
from meander.dataflow.coordinator.rescaler import Rescaler
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
    waits = wait_reasons.migrations(flow.run.sim.coordinator.migrations.rounds())
    return [f"{wait.what} of {wait.fields['migration']}" for wait in waits.values()]


def test_a_decision_has_to_be_durable_first(flow: CommandedFlow) -> None:
    coordinator = flow.run.sim.coordinator
    for n in range(20):
        flow.submit(f"m{n}", (0,), 1, 5000 + n)
    assert set(moves(flow)) == {f"sources of m{n}" for n in range(20)}
    for round in coordinator.migrations.rounds():
        round.unsent = 1
    assert "decision of m3" in moves(flow)


def test_a_move_of_a_time_to_come_waits_for_the_flow_to_reach_it(flow: CommandedFlow) -> None:
    flow.submit("m", (0,), 1, 5000)
    (wait,) = wait_reasons.migrations(flow.run.sim.coordinator.migrations.rounds()).values()
    assert wait == Wait("sources", "the sources have read up to 5000 ms", {"migration": "m"})


def test_a_bin_that_is_on_its_way_is_named_with_its_owners(flow: CommandedFlow) -> None:
    flow.submit("m", (0, 1), 1, 5000)
    flow.source.give(0, *((5001, key) for key in range(20)))
    coordinator = flow.run.sim.coordinator
    until(lambda: any(round.awaited for round in coordinator.migrations.rounds()), flow.run.turn)
    (wait,) = wait_reasons.migrations(coordinator.migrations.rounds()).values()
    assert (wait.what, wait.fields) == (
        "bins", {"migration": "m", "left": 2, "bin": 0, "operator": "a"}
    )  # fmt: skip
    assert wait.until == (
        "worker 0 has passed 5000 ms and written the state, and worker 1 has installed it"
    )


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


def test_a_frontier_without_waiting_work_is_no_wait() -> None:
    assert wait_reasons.frontiers([held(5, awaited=False)]) == {}
    (wait,) = wait_reasons.frontiers([held(5, awaited=True)]).values()
    assert wait.what == "frontier"
    assert wait.fields == {"probe": "out", "held_by": "partition 2 ..."}


def test_a_frontier_that_has_moved_is_another_wait() -> None:
    before, after = (wait_reasons.frontiers([held(ms, awaited=True)]) for ms in (5, 6))
    assert before.keys() != after.keys()


# -- partitions that change hands, workers that come and go


def said(waits: Mapping[Hashable, Wait]) -> list[str]:
    return [f"{wait.line('waiting')}: {wait.until}" for wait in waits.values()]


@pytest.fixture
def staff() -> Iterator[ChangingFlow]:
    changing = ChangingFlow()
    with changing.run:
        changing.join()
        yield changing


def partitions(staff: ChangingFlow) -> list[str]:
    coordinator = staff.sim.coordinator
    unsent = coordinator.decisions.unsent
    return said(wait_reasons.partitions(coordinator.assignment.under_way, ["in"], unsent, {}))


def goings(staff: ChangingFlow) -> list[str]:
    coordinator = staff.sim.coordinator
    return said(wait_reasons.leaves(coordinator.workers.leaving, coordinator.decisions.unsent))


def test_a_partition_waits_for_its_order_to_be_durable_and_then_for_its_readers(
    staff: ChangingFlow,
) -> None:
    staff.held = ReassignPartition
    staff.sim.coordinator.move_partition("h", "source", 3, ONE)
    staff.acted()
    assert partitions(staff) == [
        "waiting for=decision source=in partition=3 id=h: the broker confirms the decision"
    ]
    staff.held = None
    staff.until(lambda: not staff.sim.coordinator.decisions.unsent)
    (wait,) = partitions(staff)
    assert wait.startswith("waiting for=partition_move source=in partition=3 id=h: ")
    assert wait.endswith("worker 0 has reported where it stopped, and worker 1 reads on")
    staff.until(lambda: staff.done() == {"h"})
    assert partitions(staff) == []


def test_a_joining_worker_waits_for_a_durable_decision(staff: ChangingFlow) -> None:
    staff.held = JoinDecision
    staff.sim.submit(Join())
    unsent = staff.sim.coordinator.decisions.unsent
    (wait,) = said(wait_reasons.joins(unsent))
    assert wait == "waiting for=decision joining_worker=3: the broker confirms the decision"


def test_a_leaving_worker_is_followed_from_its_bins_to_its_final_message(
    staff: ChangingFlow,
) -> None:
    staff.sim.coordinator.share("s", [ONE])
    staff.until(lambda: staff.reads()[1] == 2)
    staff.until(lambda: staff.sim.coordinator.migrations.idle)
    staff.held = LeaveDecision
    staff.sim.coordinator.leave("l", [ONE])
    leaves = "waiting for=leaving_worker worker=1: "
    first = leaves + "the other workers own all its bins and partitions"
    assert goings(staff) == [first]
    staff.until(lambda: goings(staff) != [first])
    (second,) = goings(staff)
    assert second.startswith(leaves + "every frontier has passed ")
    staff.until(lambda: goings(staff) != [second])
    (third,) = goings(staff)
    assert third == "waiting for=decision worker=1: the broker confirms the decision"
    staff.held = None
    staff.until(lambda: goings(staff) != [third])
    (fourth,) = goings(staff)
    assert fourth == leaves + "its last contributions are done, and all members know it"
    staff.until(lambda: len(staff.said("left")) == 1)
    assert goings(staff) == []


def test_one_that_parts_waits_until_the_others_have_its_last_word() -> None:
    hands = {WorkerId(n): WorkerHandle(WorkerId(n), cast(SparkTask, None)) for n in range(3)}
    leaver = hands[TWO]
    assert said(wait_reasons.exits(hands)) == []
    leaver.leaving = True
    parts = "waiting for=final_message worker=2: "
    assert said(wait_reasons.exits(hands)) == [parts + "the worker has sent it"]
    leaver.done = True
    leaver.acknowledged_by.add(ZERO)
    assert said(wait_reasons.exits(hands)) == [parts + "worker 1 acknowledges it"]


def test_a_rescale_waits_for_the_ones_before_it(staff: ChangingFlow) -> None:
    crew = cast(RescalablePool, SimpleNamespace(handles={}, working=False))
    rescaler = Rescaler(staff.sim.coordinator, crew, SimClock(), None)
    for offset, name in enumerate(("r1", "r2")):
        rescaler.enqueue(Rescale(type="rescale", id=name, workers=3), offset)
    assert said(rescaler.wait_reasons()) == [
        "waiting for=rescale id=r1: all workers run",
        "waiting for=rescale id=r2: 'r1' has ended",
    ]


def test_a_worker_without_credit_names_the_peer_and_both_operators() -> None:
    (wait,) = credit_waits([("key_by exchange", "n", ONE)]).values()
    assert wait == Wait(
        "credit",
        "the peer takes what the operator has sent; link_credit is used up",
        {"peer": ONE, "operator": "key_by exchange", "to": "n"},
    )
