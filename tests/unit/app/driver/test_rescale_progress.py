"""The sentence about a rescale names the workers, moves and frontiers that it waits for."""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import cast

import pytest

from meander.app.driver.rescale_progress import WaitsByKind, rescale_progress
from meander.dataflow.control.command import MoveBins
from meander.dataflow.coordinator.pool import RescalablePool
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.coordinator.worker_change import Change
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.simulation.simulator import SimClock
from meander.schemas.control import Rescale
from meander.schemas.status import BlockedFrontier, RescaleProgress
from meander.state.keys.ids import Bin, WorkerId
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.start import Start

ONE, TWO = WorkerId(1), WorkerId(2)
BLOCKED = BlockedFrontier(
    probe="out", by="source 'in': slow", since_ms=5_000, awaited=False, kind="source", name="in"
)


@pytest.fixture
def flow(start: Start) -> CommandedFlow:
    commanded = CommandedFlow(start)
    commanded.read(1000)
    return commanded


def progress(
    flow: CommandedFlow,
    waits: WaitsByKind,
    joining: set[WorkerId],
    leaving: set[WorkerId],
    now_ms: int,
) -> RescaleProgress:
    """The progress of a rescale `r` in a state that a test gives."""
    change = Change("r", 0, 0.0, lambda _: (), joining, leaving)
    coordinator = flow.run.sim.coordinator
    found = rescale_progress(
        cast(Rescaler, SimpleNamespace(in_progress=change)), coordinator.migrations,
        coordinator.closed_before, waits, [BLOCKED], now_ms,
    )  # fmt: skip
    assert found is not None
    return found


def test_a_rescale_in_the_queue_says_what_ends_its_wait(flow: CommandedFlow) -> None:
    pool = cast(RescalablePool, SimpleNamespace(handles={}, working=False))
    coordinator = flow.run.sim.coordinator
    rescaler = Rescaler(coordinator, pool, SimClock(), None)

    def found() -> RescaleProgress | None:
        args = coordinator.migrations, coordinator.closed_before
        return rescale_progress(rescaler, *args, waits={}, blockers=[BLOCKED], now_ms=9_000)

    assert found() is None
    rescaler.enqueue(Rescale(type="rescale", id="r1", workers=3), 0)
    assert found() == RescaleProgress("r1", [], [], waits_for="all workers run")


def test_a_joining_worker_is_named_with_its_stage(flow: CommandedFlow) -> None:
    slot = Wait("spark_slot", "Spark has a free slot", {"worker": TWO, "timeout_s": 60.0})
    other = Wait("worker_ready", "it is ready", {"worker": ONE})
    found = progress(flow, {"workers": {2: slot, 1: other}}, {TWO}, set(), 9_000)
    assert (found.joining, found.leaving) == ([2], [])
    assert found.waits_for == "Spark has a free slot (worker 2)"


def test_a_leaving_worker_is_named_with_the_frontier_that_has_stood_still(
    flow: CommandedFlow,
) -> None:
    leave = Wait("leaving_worker", "every frontier has passed 7 ms", {"worker": TWO})
    waits: WaitsByKind = {"leaves": {0: leave, 1: Wait("leaving_worker", "no", {"worker": ONE})}}
    found = progress(flow, waits, set(), {TWO}, 9_000)
    still = "frontier 'out' has stood still for 4 s: source 'in': slow"
    assert found.waits_for == f"every frontier has passed 7 ms (worker 2); {still}"
    assert "stood still" not in progress(flow, waits, set(), {TWO}, 5_500).waits_for


def test_moves_in_the_queue_name_the_commands_before_them(flow: CommandedFlow) -> None:
    coordinator = flow.run.sim.coordinator
    bins = tuple(map(Bin, (0, 1)))
    coordinator.submit(MoveBins("m", bins, ONE))
    coordinator.submit(MoveBins("r/bins", bins, ONE, sources=dict.fromkeys(bins, WorkerId(0))))
    assert progress(flow, {}, set(), set(), 0).waits_for == "'m' has ended (bins_left 2)"


def test_moves_of_other_commands_are_left_out_and_many_waits_are_counted(
    flow: CommandedFlow,
) -> None:
    moves: dict[Hashable, Wait] = {
        n: Wait("bins", f"bin {n} is there", {"migration": id, "bin": n})
        for n, id in enumerate(["r/bins", "m", "r/bins", "r/bins of a", "r/bins of b"])
    }
    found = progress(flow, {"migrations": moves}, set(), set(), 0)
    shown = "; ".join(f"bin {n} is there (bin {n})" for n in (0, 2, 3))
    assert found.waits_for == f"{shown}; 1 more"
