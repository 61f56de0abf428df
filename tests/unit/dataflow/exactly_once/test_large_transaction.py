"""I5 and I6 where one logical time has more results than memory has room for: they leave in one
transaction, and until then lie on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from meander import Flow
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.schemas.errors import MeanderError
from meander.testing import TestFlow

MOST = 20_000
BEFORE, LARGE, BEHIND = 5, 700, 5
"""Records before the large time, results at it, and records behind it."""
SEEDS = range(3)


def exploding(sink: ListSink, spill: int = 1 << 30) -> Flow:
    """A flow of which one record becomes many results."""
    flow = Flow(
        "f", bins=2, delivery="exactly_once", max_waiting=MOST, max_spill=spill, max_inflight=300
    )
    source = ListSource([[(10 * n, n) for n in range(BEFORE + 1 + BEHIND)]])
    made = flow.source(source).flat_map(lambda n: range(LARGE) if n == BEFORE else [-n])
    made.key_by(lambda n: n % 4).fold("sum", int, lambda sum, n: (sum + 1, n)).sink(sink)
    return flow


def sinks(run: TestFlow) -> list[OrderedSink]:
    return [sink for worker in run.workers for sink in worker.parts.operators.ordered_sinks]


def in_its_midst(run: TestFlow) -> bool:
    """Whether some of the large time has been written, and some lies on disk that has been."""
    return any(not sink.complete and sink._stored.spilled for sink in sinks(run))


def until(run: TestFlow, done: Callable[[], bool]) -> None:
    while not done():
        assert not run.sim.done
        run.act()


def numbers(sink: ListSink) -> list[int]:
    return cast(list[int], sink.values)


def check(sink: ListSink) -> None:
    """All is out once, and of each key in order."""
    found = numbers(sink)
    assert len(found) == BEFORE + LARGE + BEHIND
    for key in range(4):
        large = [n for n in found if n > 0 and n % 4 == key]
        assert large == [n for n in range(LARGE) if n > 0 and n % 4 == key]
    small = [-n for n in found if n <= 0]
    assert sorted(small) == sorted([*range(BEFORE), 0, *range(BEFORE + 1, BEFORE + 1 + BEHIND)])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_written_of_a_large_time_and_not_committed_lies_on_disk(seed: int) -> None:
    """I6: of what is not known to be committed memory holds half of the bound, and a slice."""
    sink = ListSink()
    with TestFlow(exploding(sink), 1, seed, commands=[TakeCheckpoint()]) as run:
        until(run, lambda: any(event["type"] == "checkpointed" for event in run.events))
        largest = 0
        while not run.sim.done:
            run.act()
            (only,) = sinks(run)
            held = sum(one.rows.batch.estimated_weight for one in only._under_way)
            largest = max(largest, held)
            assert held <= MOST // 2 + 2 * MOST // 64
            least = only._stored.least
            assert least is None or only._output.frontier.less_equal(least), "none of it is durable"
        assert largest > MOST // 4
        assert not run.workers[0].parts.operators.disk.used, "what is committed leaves the disk"
    check(sink)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_in_the_midst_of_a_large_time_shows_nothing_of_it(seed: int) -> None:
    """Though a checkpoint is taken there, which has what has been written."""
    sink = ListSink()
    with TestFlow(exploding(sink), 2, seed, commands=[TakeCheckpoint()]) as run:
        until(run, lambda: any(event["type"] == "checkpointed" for event in run.events))
        until(run, lambda: in_its_midst(run))
        taken = len(run.world.checkpoints)
        run.inject(TakeCheckpoint())
        frozen = run.workers[0].parts.snapshots
        until(run, lambda: in_its_midst(run) and frozen.busy)
        shown = [n for n in numbers(sink) if n > 0]
        until(run, lambda: len(run.world.checkpoints) > taken)
        world = run.world
    assert not shown
    with TestFlow(exploding(sink), 1, seed, world=world) as run:
        run.run()
    check(sink)


def test_more_than_the_disk_may_have_ends_the_flow_with_a_clear_error() -> None:
    run = TestFlow(exploding(ListSink(), spill=30_000), 1, 0, commands=[TakeCheckpoint()])
    with run, pytest.raises(MeanderError, match="records wait on disk, more than its bound"):
        run.run()
