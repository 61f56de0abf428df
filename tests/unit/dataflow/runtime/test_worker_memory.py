"""The parts of a worker's memory stay within it, and hold what the flow's settings hold else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meander import Flow
from meander.app.loading.loader import SourceFiles
from meander.app.worker.process_state import ProcessState
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.resources import MIN_MEMORY, Resources
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.runtime.worker_memory import SINK_SHARES, WorkerMemory
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Databases
from tests.support.sim.manual_flow import ManualFlow, ManualSource
from tests.support.sim.start import NAMESPACES

MIB = 1 << 20
FLOW = b"""
from meander import Flow
from meander.dataflow.simulation.in_memory import ListSink, ListSource

flow = Flow("f", state_memory=100 << 20)
flow.source(ListSource([])).sink(ListSink())
"""


def plan(**settings: int) -> Plan:
    flow = Flow("f", **settings)  # type: ignore[arg-type]
    counts = flow.source(ListSource([[(1, 1)]])).key_by(lambda v: v)
    counts.fold("n", lambda: 0, lambda n, _: (n + 1, n)).sink(ListSink())
    return Plan(flow)


@pytest.mark.parametrize("memory", [MIN_MEMORY, 64 * MIB, 2048 * MIB])
def test_the_parts_together_are_no_more_than_the_memory(memory: int) -> None:
    some = plan()
    parts = WorkerMemory.of(some, memory)
    operators, dead_letters = len(some.nodes) - 1 + SINK_SHARES, 1
    waiting = parts.waiting * (operators + dead_letters)
    assert parts.states + waiting + 2 * parts.in_flight + parts.moves <= memory
    assert min(parts.states, parts.waiting, parts.in_flight, parts.moves) > 0


def test_without_a_memory_the_settings_of_the_flow_hold() -> None:
    settings = {"state_memory": 3, "max_waiting": 5, "max_inflight": 7, "move_memory": 11}
    assert WorkerMemory.of(plan(**settings), 0) == WorkerMemory(3, 5, 7, 11)


def test_a_large_memory_does_not_raise_the_bytes_in_flight() -> None:
    assert WorkerMemory.of(plan(max_inflight=7), 2048 * MIB).in_flight == 7


@pytest.mark.parametrize(("memory", "states"), [(0, 100 * MIB), (64 * MIB, 32 * MIB)])
def test_a_process_opens_its_states_with_the_memory_of_its_plan(
    memory: int, states: int, tmp_path: Path
) -> None:
    source = SourceFiles("flow.py", {"flow.py": FLOW})
    state = ProcessState(source, (), tmp_path, Resources(memory=memory))
    assert state.memory.states == states
    database = state.database
    try:
        assert database.budget_bytes == states
    finally:
        state.close()


class PlacedFlow(ManualFlow):
    """A flow whose workers have the memory of a plan."""

    def __init__(self, memory: int, *surroundings: Any) -> None:
        self._memory = memory
        super().__init__(*surroundings)

    def _build(self, me: WorkerId, *surroundings: Any) -> Worker:
        self.resources[me] = Resources(memory=self._memory)
        return super()._build(me, *surroundings)


@pytest.mark.parametrize(("memory", "spills"), [(MIN_MEMORY, True), (64 * MIB, False), (0, False)])
def test_records_that_wait_beyond_the_part_of_a_small_memory_go_to_disk_and_come_back(
    memory: int, spills: bool, shared_databases: Databases
) -> None:
    """I6: a mebibyte waits for the frontier at an operator, which may hold a part of 4 MiB."""
    source, sink = ManualSource(2, SourceOptions(idle_after=3600.0, max_skew=3600.0)), ListSink()
    flow = Flow("f", bins=4)
    words = flow.source(source).key_by(lambda text: text[:3])
    words.fold("n", int, lambda n, _: (n + 1, n + 1)).sink(sink)
    with PlacedFlow(memory, flow, shared_databases, next(NAMESPACES), 1) as run:
        (worker,) = run.workers
        source.feeds[1].busy = True
        for ms in range(5, 15):
            source.give(0, *((ms, f"{n:03}" + "x" * 1000) for n in range(100)))
            run.run_until_idle()
        assert not sink.values
        assert (worker.spilled > 0) == spills
        run.finish(source)
        assert worker.spilled == 0
    assert sink.values == [count for count in range(1, 11) for _ in range(100)]
