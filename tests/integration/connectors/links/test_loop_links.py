"""A loop whose records go round over the real links, from worker to worker."""

from __future__ import annotations

from typing import Any

from meander import Flow, KeyedStream
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from tests.support.links.linked_flow import LinkedFlow

RANKS = {n: (3 * n + 1) % 20 for n in range(20)}
"""What each node knows at first; each tells the next two what it has learnt."""


def learn(context: Context, least: int, value: tuple[int, int]) -> int:
    if value[1] >= least:
        return least
    context.notify()
    return value[1]


def tell(context: Context, least: int) -> int:
    node = int(str(context.key))
    context.emit((node, least), to="learnt")
    for there in (1, 2):
        context.emit(((node + there) % len(RANKS), least))
    return least


def test_a_loop_comes_to_its_fixed_point_over_real_links() -> None:
    """I1, I2, I7: times of nested scopes, and records of all rounds, cross between members."""
    flow, sink = Flow("ranks", bins=4), ListSink()
    source = ListSource(
        [[(1, (n, rank)) for n, rank in RANKS.items() if n % 3 == p] for p in range(3)]
    )

    def body(told: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        node = told.process("node", lambda: 99, learn, on_notify=tell, side=["learnt"])
        return node.key_by(lambda v: v[0]), node.side("learnt")

    flow.source(source).key_by(lambda v: v[0]).iterate("spread", body).sink(sink)
    with LinkedFlow(flow, workers=3) as run:
        run.until(lambda: run.done)
        learnt: dict[int, int] = {}
        for node, least in map(_pair, sink.values):
            learnt[node] = min(least, learnt.get(node, 99))
        assert learnt == dict.fromkeys(RANKS, 0)
        assert len({result.worker for result in sink.results}) == 3
        run.state()


def _pair(value: Any) -> tuple[int, int]:
    return value  # type: ignore[no-any-return]
