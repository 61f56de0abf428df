"""I9 where results wait for a checkpoint and their bin moves there and back before it is taken: of
outboxes that leave side by side none has what has to follow another's."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from meander import Checkpointing, Flow
from meander.dataflow.checkpoint import checkpoint_writer
from meander.dataflow.control.command import MoveBins
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation import transactions
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.state.encoding import codec
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualSource

SEEDS = range(3)
KEYS = 0, 3
"""One of either worker."""
BINS = Bin(0), Bin(1)
RESULTS = 4


class Moving:
    """A flow that numbers the records of one key, as they arrive."""

    def __init__(self, key: int) -> None:
        self.key, self.source, self.sink = key, ManualSource(), ListSink()
        self.flow = Flow("f", bins=1, delivery="exactly_once", checkpoints=Checkpointing(1_000))
        numbered = self.flow.source(self.source).key_by(lambda value: key)
        numbered.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1), order="processing").sink(
            self.sink
        )

    def there_and_back(self, run: TestFlow, results: int = 1) -> None:
        """Each of three owners has results that wait for a checkpoint."""
        until(run, lambda: taken(run) == 1)
        here = run.owner(self.key)
        for n, worker in enumerate((here, 1 - here, here)):
            if n:
                time = from_millis(1000 * n + 500)
                move = MoveBins(f"m{n}", BINS, WorkerId(worker), time, "all-at-once", precopy=False)
                run.inject(move)
            self.source.give(0, *[(1000 * (n + 1), "x")] * results)
            until(run, lambda: waiting(run) == (n + 1) * results)  # noqa: B023


def waiting(run: TestFlow) -> int:
    """The results in outboxes, or held back from them."""
    return sum(results(run, worker) for worker in range(len(run.workers)))


def until(run: TestFlow, done: Callable[[], bool]) -> None:
    while not done():
        run.act()


def taken(run: TestFlow) -> int:
    """The checkpoints that exist, and of which all is out that they have of outboxes."""
    return sum(event["type"] == "checkpointed" for event in run.events)


def checkpoint(run: TestFlow) -> None:
    """Take one, and see what it has of outboxes leave."""
    before = taken(run)
    run.inject(TakeCheckpoint())
    until(run, lambda: taken(run) > before)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_results_of_a_bin_that_moves_there_and_back_leave_one_after_the_other(
    seed: int, key: int
) -> None:
    moving = Moving(key)
    with TestFlow(moving.flow, 2, seed) as run:
        moving.there_and_back(run)
        for n in (1, 2, 3):
            checkpoint(run)
            assert moving.sink.values == [*range(1, n + 1)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("seed", SEEDS)
def test_results_that_were_held_back_leave_in_order_after_a_recovery(
    seed: int, key: int, workers: int
) -> None:
    moving = Moving(key)
    with TestFlow(moving.flow, 2, seed) as run:
        moving.there_and_back(run)
        before = len(run.world.checkpoints)
        run.inject(TakeCheckpoint())
        until(run, lambda: len(run.world.checkpoints) > before)
        world = run.world
    moving.source.feeds[0].ended = True
    with TestFlow(moving.flow, workers, seed, world=world) as run:
        run.run()
    assert moving.sink.values == [1, 2, 3]


def numbered(source: ManualSource, sink: ListSink) -> Flow:
    """Each key's records are numbered, as they arrive."""
    flow = Flow("f", bins=1, delivery="exactly_once", checkpoints=Checkpointing(1_000))
    keyed = flow.source(source).key_by(lambda key: key)
    keyed.fold("n", lambda: 0, lambda n, key: (n + 1, (key, n + 1)), order="processing").sink(sink)
    return flow


def results(run: TestFlow, worker: int) -> int:
    """How many a worker has put into its outboxes, or held back from them."""
    outboxes = run.workers[worker].parts.operators.outboxes
    return sum(len(one.batch) for outbox in outboxes for one in outbox.in_flight())


@pytest.mark.parametrize("seed", SEEDS)
def test_results_of_a_bin_that_stays_where_it_is_keep_their_order_through_a_recovery(
    seed: int,
) -> None:
    """Also where a command names it, and their times lie on both sides of that command's."""
    source, sink = ManualSource(2, SourceOptions(idle_after=1e9)), ListSink()
    flow, stays = numbered(source, sink), KEYS[1]
    with TestFlow(flow, 2, seed) as run:
        until(run, lambda: taken(run) == 1)
        owner = run.owner(stays)
        time = from_millis(1500)
        run.inject(MoveBins("m", BINS, WorkerId(owner), time, "all-at-once", precopy=False))
        for n, (partition, ms) in enumerate([(0, 2000), (1, 1000)]):
            source.give(partition, (ms, stays))
            until(run, lambda: results(run, owner) == n + 1)  # noqa: B023
        before = len(run.world.checkpoints)
        run.inject(TakeCheckpoint("unaligned"))
        until(run, lambda: len(run.world.checkpoints) > before)
        world = run.world
    source.end()
    with TestFlow(flow, 1, seed, world=world) as run:
        run.run()
    assert sink.values == [(stays, 1), (stays, 2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_results_that_were_held_back_wait_for_no_records_of_another_input(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: those records would themselves wait for room at the sink."""
    monkeypatch.setattr(checkpoint_writer, "ROWS", 1)
    monkeypatch.setattr(transactions, "MAX_DEFERRED", 4)
    source, sink = ManualSource(), ListSink()
    flow = numbered(source, sink)
    with TestFlow(flow, 2, seed) as run:
        until(run, lambda: taken(run) == 1)
        moves, stays = sorted(KEYS, key=run.owner)
        bin = next(bin for bin in BINS if flow.space.bin_of(codec.encode(moves)) == bin)
        time = from_millis(1500)
        run.inject(MoveBins("m", (bin,), WorkerId(1), time, "all-at-once", precopy=False))
        source.give(0, (1000, moves), (2000, moves))
        until(run, lambda: results(run, 1) == 1)
        before = len(run.world.checkpoints)
        for _ in range(30):
            source.give(0, *[(3000, stays)] * 3)
        # As its outbox is full.
        until(run, lambda: len(run.world.checkpoints) > before)
        world = run.world
    source.end()
    with TestFlow(flow, 1, seed, world=world) as run:
        run.run()
    came = cast(list[tuple[int, int]], sink.values)
    of = {key: [n for one, n in came if one == key] for key in (moves, stays)}
    # A source by hand gives no second time what it has given and the cut has not.
    assert of == {moves: [1, 2], stays: [*range(1, len(of[stays]) + 1)]}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("steps", range(20, 80, 8))
@pytest.mark.parametrize("key", KEYS)
def test_results_that_were_held_back_leave_in_order_after_two_recoveries(
    key: int, steps: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is taken amid the first one has some of them, and refers to the others."""
    monkeypatch.setattr(checkpoint_writer, "ROWS", 1)
    monkeypatch.setattr(checkpoint_writer, "BYTES", 1)
    moving = Moving(key)
    with TestFlow(moving.flow, 2) as run:
        moving.there_and_back(run, RESULTS)
        checkpointed(run)
        world = run.world
    with TestFlow(moving.flow, workers, world=world) as run:
        for _ in range(steps):
            run.act()
        checkpointed(run)
    moving.source.feeds[0].ended = True
    with TestFlow(moving.flow, workers, world=world) as run:
        run.run()
    assert moving.sink.values == [*range(1, 3 * RESULTS + 1)]


def checkpointed(run: TestFlow) -> None:
    """Take a checkpoint, of which perhaps nothing of outboxes is out yet."""
    before = len(run.world.checkpoints)
    run.inject(TakeCheckpoint())
    until(run, lambda: len(run.world.checkpoints) > before)
