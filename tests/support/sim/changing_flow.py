"""A flow whose workers join and leave as a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from meander import Flow
from meander.dataflow.control.decisions import Decision
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Join, Simulation
from meander.state.keys.ids import WorkerId
from meander.testing import TestFlow
from tests.support.sim.manual_flow import replace_decision_writer, until

PARTITIONS = 6
RECORDS, KEYS = 2000, 40
ZERO, ONE, TWO = map(WorkerId, range(3))


class ChangingFlow:
    """A flow of one worker that counts; its decisions become durable when a test says so."""

    def __init__(self) -> None:
        self.sink = ListSink()
        flow = Flow("f", bins=4)
        records = [[(ms, (ms + p) % KEYS) for ms in range(RECORDS)] for p in range(PARTITIONS)]
        counts = flow.source(ListSource(records)).key_by(lambda k: k)
        counts.fold("n", lambda: 0, lambda n, k: (n + 1, (k, n + 1))).sink(self.sink)
        self.run = TestFlow(flow, 1, seed=7)
        self.written: list[Decision] = []
        self.held: type[Decision] | None = None
        """Decisions of this kind do not become durable."""
        replace_decision_writer(self.sim.coordinator, self._write)
        self.until(lambda: self.sim.coordinator.ready)

    def _write(self, decision: Decision) -> Callable[[], bool]:
        self.written.append(decision)
        return lambda: self.held is None or not isinstance(decision, self.held)

    @property
    def sim(self) -> Simulation:
        return self.run.sim

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, self.sim.act, 100_000)

    def said(self, event: str) -> list[dict[str, object]]:
        return [one for one in self.run.events if one["type"] == event]

    def join(self) -> None:
        """Two workers join."""
        for _ in range(2):
            self.sim.submit(Join())
        self.until(lambda: len(self.said("joined")) == 2)

    def bins(self) -> Counter[int]:
        return Counter(map(int, self.sim.coordinator.owners()))

    def reads(self) -> dict[int, int]:
        """How many partitions each worker reads."""
        return {
            int(worker.me): sum(map(len, worker.standing().values())) for worker in self.run.workers
        }

    def done(self) -> set[object]:
        """The ids of all that has been carried out."""
        return {one["id"] for one in [*self.said("completed"), *self.said("partition_moved")]}

    def acted(self) -> None:
        """Let much happen that can happen."""
        for _ in range(300):
            self.sim.act()
