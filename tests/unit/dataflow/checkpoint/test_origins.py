"""I5: a record in flight keeps its source or operator where a changed flow numbers them again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meander import Flow
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.testing import TestFlow

LINES = [[(n, n) for n in range(p, 200, 2)] for p in range(2)]


def step(context: Context[int], state: int, n: int) -> int:
    context.timer(context.time_ms + 5)
    context.emit(n)
    return state + 1


def on_timer(context: Context[int], state: int) -> int:
    context.emit(state)
    return state


def flow_of(sources: Sequence[str], delivery: Guarantee) -> tuple[Flow, dict[str, ListSink]]:
    """A flow whose operators send on the records of each source, and results of timers; its sinks
    by the name of the source."""
    flow, sinks = Flow("f", bins=2, delivery=delivery), {name: ListSink() for name in sources}
    streams = {name: flow.source(ListSource(LINES), name) for name in sources}
    for name in sorted(sources, reverse=True):
        sent = streams[name].key_by(lambda n: n % 40).process(f"wait {name}", int, step, on_timer)
        again = sent.key_by(lambda n: n).fold(f"again {name}", int, lambda count, n: (count + 1, n))
        again.sink(sinks[name], f"write {name}")
    return flow, sinks


@pytest.mark.parametrize(
    ("sources", "delivery"),
    [(("new", "old"), "at_least_once"), (("old", "new"), "exactly_once")],
)
def test_a_record_in_flight_keeps_its_origin_where_a_source_is_added(
    sources: Sequence[str], delivery: Guarantee
) -> None:
    flow, _ = flow_of(["old"], delivery)
    with TestFlow(flow, 2) as run:
        waiting = set[str]()
        while not {"wait old", "again old"} <= waiting:
            taken = len(run.world.checkpoints)
            run.inject(TakeCheckpoint())
            while len(run.world.checkpoints) == taken:
                run.act()
            waiting = {piece.node for piece in run.world.checkpoints[-1].cut.pieces}
        world = run.world
    flow, sinks = flow_of(sources, delivery)
    with TestFlow(flow, 3, world=world) as run:
        run.run()
    number = Plan(flow).origins.index
    for name, sink in sinks.items():
        assert {one.origin for one in sink.results} == {number(name), number(f"wait {name}")}
