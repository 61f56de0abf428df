"""A restart keeps what a plan says about workers: the readers of partitions, and the hosts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from meander import Flow
from meander.dataflow.checkpoint.restore_plan import remaining_members, resources_of
from meander.dataflow.control.decisions import JointDecision, StartDecision, WorkersPlan
from meander.dataflow.control.resources import Resources
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import DurableWorld
from meander.state.checkpoint.checkpoint import Cut, Piece
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.testing import TestFlow

PLACED = WorkersPlan(
    members=(WorkerId(1), WorkerId(4)),
    owners=(WorkerId(4),) * 2 + (WorkerId(1),) * 2,
    readers={("source", 0): WorkerId(4), ("source", 1): WorkerId(1), ("source", 2): WorkerId(4)},
    resources={WorkerId(1): Resources("a"), WorkerId(4): Resources("b")},
)


def world_of(plan: WorkersPlan) -> DurableWorld:
    """A world in which an execution has decided a plan, and has taken no checkpoint."""
    world = DurableWorld.empty(random.Random(0))
    world.execution = ExecutionId(1)
    start = StartDecision(0, (WorkerId(0),) * 4, 1)
    world.decisions += [(world.execution, one) for one in (start, JointDecision("p", 0, plan))]
    world.durable_decisions = 2
    return world


def flow_of(sink: ListSink) -> Flow:
    flow = Flow("f", bins=2)
    records = [[(ms, ms) for ms in range(20)] for _ in range(4)]
    keyed = flow.source(ListSource(records), "source").key_by(lambda n: n)
    keyed.fold("n", lambda: 0, lambda state, n: (state + 1, n)).sink(sink)
    return flow


def test_a_restart_before_the_first_checkpoint_reads_partitions_by_the_plan() -> None:
    sink = ListSink()
    with TestFlow(flow_of(sink), 2, world=world_of(PLACED)) as run:
        first = [[*one.parts.operators.sources["source"]._reader.partitions] for one in run.workers]
        run.run()
    # Worker 1 has become worker 0, and worker 4 worker 1. The plan knows no partition 3.
    assert first == [[1], [0, 2, 3]]
    assert len(sink.values) == 4 * 20


def test_a_restart_with_fewer_workers_distributes_the_partitions_of_the_missing_ones() -> None:
    sink = ListSink()
    with TestFlow(flow_of(sink), 1, world=world_of(PLACED)) as run:
        run.run()
    assert len(sink.values) == 4 * 20


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_that_stay_keep_their_hosts_in_a_restart(workers: int) -> None:
    """Also where a rescale has come after the plan."""
    with TestFlow(flow_of(ListSink()), workers, world=world_of(PLACED)) as run:
        wanted = {0: Resources("a"), 1: Resources("b")}
        assert run.sim.coordinator.resources == {
            worker: its for worker, its in wanted.items() if worker < workers
        }
        run.run()


def test_workers_of_a_flow_without_a_plan_may_run_anywhere() -> None:
    assert resources_of(None, 2) == {}


def test_a_member_that_holds_records_in_flight_keeps_its_place() -> None:
    """I5: its results were committed there, so they come again there."""
    zero, one, two = map(WorkerId, range(3))
    cut = Cut(members=(zero, one, two), owners=(zero, two))
    held = Piece("out", 0, one, 0, 1, (), keyed=False)
    assert remaining_members(cut, 2) == (zero, two)
    assert remaining_members(replace(cut, pieces=(held,)), 2) == (zero, one, two)
