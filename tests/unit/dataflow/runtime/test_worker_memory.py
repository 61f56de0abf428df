"""The parts of a worker's memory stay within it, and hold what the flow's settings hold else."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander import Flow
from meander.app.loading.loader import SourceFiles
from meander.app.worker.process_state import ProcessState
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.resources import MIN_MEMORY, Resources
from meander.dataflow.runtime.worker_memory import SINK_SHARES, WorkerMemory
from meander.dataflow.simulation.in_memory import ListSink, ListSource

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
