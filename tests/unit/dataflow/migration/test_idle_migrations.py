"""A flow without data follows its commands by the sequence only: its time stays with its data."""

from __future__ import annotations

from meander import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import to_millis
from tests.support.sim.manual_flow import ManualSource, lane_times, until
from tests.support.sim.start import Start

LEAD_MS = 250


def test_many_commands_carry_an_idle_flow_no_further_than_one_lead(start: Start) -> None:
    flow = Flow("f", bins=4, control_lead=LEAD_MS / 1000)
    source = ManualSource(2)
    counted = flow.source(source).key_by(lambda v: v).fold("n", int, lambda n, v: (n + 1, n))
    counted.sink(ListSink())
    run = start(flow)
    for ms in range(0, 3000, 10):  # live data, so that the lead is a whole one
        source.give(ms // 10 % 2, (ms, ms))
        run.wait(0.010)
    every_bin = tuple(Bin(bin) for bin in range(16))
    run.sim.submit(MoveBins("there", every_bin, WorkerId(1)))
    until(lambda: run.said("there")[-1] == "completed", lambda: run.wait(0.001))
    run.sim.submit(MoveBins("back", every_bin, WorkerId(0)))
    until(lambda: run.said("back")[-1] == "completed", lambda: run.wait(0.001))
    newest = max(map(to_millis, lane_times(run).values()))
    assert 2990 <= newest <= 2990 + LEAD_MS + 1
    run.finish(source)
