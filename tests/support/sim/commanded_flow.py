"""A flow whose bins a test moves."""

from __future__ import annotations

from meander import Flow
from meander.dataflow.control.command import MoveBins, Strategy
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from tests.support.sim.manual_flow import ManualFlow, ManualSource
from tests.support.sim.start import Start

BITS = 2


class CommandedFlow:
    """A flow of two stateful operators with one key space, and a record now and then."""

    def __init__(self, start: Start, workers: int = 2, control_lead: float = 0.0) -> None:
        self.source, self.sink = ManualSource(), ListSink()
        flow = Flow("f", bins=BITS, control_lead=control_lead)
        keyed = flow.source(self.source).key_by(lambda v: v)
        keyed.fold("a", lambda: 0, _count).fold("b", lambda: 0, _count).sink(self.sink)
        self.run: ManualFlow = start(flow, workers)

    def read(self, ms: int) -> None:
        """Read every key once at a time."""
        self.source.give(0, *((ms, key) for key in range(20)))
        self.run.wait(0.006)

    def submit(self, name: str, bins: tuple[int, ...], worker: int, ms: int | None = None,
               strategy: Strategy = "all-at-once", precopy: bool = False) -> None:  # fmt: skip
        time = None if ms is None else from_millis(ms)
        self.run.sim.coordinator.submit(
            MoveBins(name, tuple(map(Bin, bins)), WorkerId(worker), time, strategy, precopy)
        )
        self.run.run_until_idle()

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.run.events if event["type"] == kind]

    def owners(self) -> list[int]:
        return [int(owner) for owner in self.run.sim.coordinator.owners()]


def _count(n: int, value: object) -> tuple[int, object]:
    return n + 1, value
