"""A process operator on one key, to be run to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.manual_flow import ManualFlow
from tests.support.sim.start import Start

Entry = tuple[int, object]
"""Milliseconds and a value."""


def answers(sink: ListSink) -> list[tuple[int, object, int]]:
    """Milliseconds, value and worker of each result in the total order."""
    ordered = sorted(sink.results, key=lambda r: (r.time, r.origin, r.partition, r.offset, r.index))
    return [(to_millis(r.time), r.value, r.worker) for r in ordered]


def run_process(
    start: Start,
    partitions: list[list[Entry]],
    step: Callable[..., object],
    on_timer: Callable[..., object] | None = None,
    commands: Sequence[MoveBins] = (),
) -> tuple[ManualFlow, list[tuple[int, object, int]]]:
    """One process operator on one key: two workers, two bins."""
    flow, sink = Flow("f", bins=1), ListSink()
    stream = flow.source(ListSource(partitions)).key_by(lambda v: KEY)
    stream.process("p", list, step, on_timer).sink(sink)
    run = start(flow)
    for command in commands:
        run.sim.submit(command)
    run.run()
    return run, answers(sink)


KEY = "k"
BOTH = (Bin(0), Bin(1))


def move(ms: int, worker: int) -> MoveBins:
    return MoveBins(f"m{ms}", BOTH, WorkerId(worker), from_millis(ms), "all-at-once")
