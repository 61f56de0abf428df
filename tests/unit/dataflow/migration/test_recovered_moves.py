"""I3 and I9 where a flow recovers while records from both sides of a move are in flight: one worker
has them all then, and applies those of before first, wherever they wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from meander import Checkpointing, Flow
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.control.command import MoveBins
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.simulation.faults import At
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualSource

SEEDS = range(5)
BINS = Bin(0), Bin(1)
KEY, RECORDS = "k", 60


def until(run: TestFlow, done: Callable[[], bool]) -> None:
    while not done():
        run.act()


def gives_no_credit(run: TestFlow, owner: WorkerId, monkeypatch: pytest.MonkeyPatch) -> None:
    """What routers have for an owner they keep."""
    for router in routers(run):
        blocked = partial(_blocked, owner, router._output.blocked)
        monkeypatch.setattr(router._output, "blocked", blocked)


def _blocked(owner: WorkerId, otherwise: Callable[[WorkerId], bool], to: WorkerId) -> bool:
    return to == owner or otherwise(to)


def routers(run: TestFlow) -> list[Exchange]:
    nodes = (node for worker in run.workers for node in worker.parts.operators.nodes.values())
    return [node for node in nodes if isinstance(node, Exchange)]


def waiting(run: TestFlow, owner: int) -> int:
    """The records that wait for their bin at its next owner."""
    (outlet,) = run.workers[owner].parts.operators.outgoing
    return sum(len(rows) for rows in outlet.keyed.incoming.stashed)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", SEEDS)
def test_records_of_before_a_move_are_applied_first_though_they_were_kept_upstream(
    seed: int, delivery: Guarantee, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=1, delivery=delivery, checkpoints=Checkpointing(1_000))
    keyed = flow.source(source).key_by(lambda _: KEY)
    keyed.fold("n", int, lambda n, value: (n + 1, (value, n + 1)), order="processing").sink(sink)
    with TestFlow(flow, 2, seed) as run:
        # Of a flow that delivers exactly once one is taken as it begins.
        until(run, lambda: len(run.world.checkpoints) == (delivery == "exactly_once"))
        owner = WorkerId(run.owner(KEY))
        gives_no_credit(run, owner, monkeypatch)
        move = MoveBins(
            "m", BINS, WorkerId(1 - owner), from_millis(1500), "all-at-once", precopy=False
        )
        run.inject(move)
        source.give(0, (1000, "before"), (2000, "from then on"))
        until(run, lambda: waiting(run, 1 - owner) == 1)
        assert any(router.blocked_owners == [owner] for router in routers(run))
        before = len(run.world.checkpoints)
        run.inject(TakeCheckpoint("unaligned"))
        until(run, lambda: len(run.world.checkpoints) > before)
        world = run.world
    source.end()
    with TestFlow(flow, workers, seed, world=world) as run:
        run.run()
    assert sink.values == [("before", 1), ("from then on", 2)]


def later(context: Context, n: int, value: tuple[int, int]) -> int:
    """Ask for a call soon after."""
    context.timer(context.time_ms + 1 + value[1] % 3)
    context.emit(value)
    return n + 1


def called(context: Context, n: int) -> int:
    context.emit((0, -1))
    return n


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_records_without_keys_wait_for_no_timer_that_waits_for_them(
    seed: int, workers: int
) -> None:
    """I7: they hold back the frontier that it needs, also where bins moved and another operator
    applies as they arrive what timers give."""
    sink, flow = ListSink(0.02), Flow("f", bins=1, checkpoints=Checkpointing(1_000), link_credit=1)
    times = [[1000 + 2 * n + 7 * partition for n in range(RECORDS)] for partition in range(2)]
    source = flow.source(ListSource([[(ms, (ms, ms)) for ms in some] for some in times]))
    keyed = source.map(lambda value: value).key_by(lambda value: value[1] % 4)
    timed = keyed.process("p", lambda: 0, later, called, order="processing")
    timed.fold("n", lambda: 0, lambda n, _: (n + 1, n), order="processing").sink(sink, "timed")
    source.map(lambda value: value).sink(sink, "plain")
    move = MoveBins("m", BINS, WorkerId(seed % 2), None, "all-at-once", precopy=False)
    with TestFlow(flow, 2, seed, faults=[At(move, records=20)]) as run:
        while run.sim.actions < 150 + 10 * seed:
            run.act()
        run.inject(TakeCheckpoint("unaligned"))
        until(run, lambda: len(run.world.checkpoints) == 1)
        world = run.world
    with TestFlow(flow, workers, seed, world=world) as run:
        run.run()
        assert run.sim.done
