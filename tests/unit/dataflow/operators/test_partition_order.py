"""I9 where no stateful operator stands before a sink: the sink writes the records of one partition
in their order, also where its reader changes. The sink does so for the results of one key of an
operator before another key_by, also where bins move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander import Checkpointing, Flow, Stream, nondeterministic
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.simulation.faults import At, Control
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import MovePartition, TakeCheckpoint
from meander.state.keys.ids import WorkerId
from meander.testing import TestFlow

SEEDS = range(10)
RECORDS = 40
MANY = 6 * RECORDS
"""The number of records. The first run leaves some of them to the second run."""
SLOW = 0.02


def straight(stream: Stream[int]) -> Stream[int]:
    return stream.map(lambda value: value)


def around(stream: Stream[int]) -> Stream[int]:
    """Past the stateful operator of a loop, from which nothing goes round."""

    def body(inside: Stream[int]) -> tuple[Stream[Any], Stream[int]]:
        counted = inside.key_by(lambda value: value % 3).fold("n", lambda: 0, count)
        return counted.filter(lambda _: False), inside

    return stream.iterate("loop", body, max_iterations=2)


def count(n: int, value: int) -> tuple[int, int]:
    return n + 1, value


@pytest.mark.parametrize("way", [straight, around])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_changes_hands_is_written_in_its_order(
    seed: int, way: Callable[[Stream[int]], Stream[int]]
) -> None:
    sink, flow = ListSink(SLOW), Flow("f", bins=1)
    way(flow.source(ListSource([[(1000 + n, n) for n in range(RECORDS)]]))).sink(sink)
    move_partition = At(MovePartition("h", "source", 0, WorkerId(1)), records=RECORDS // 4)
    with TestFlow(flow, 2, seed, faults=[move_partition]) as run:
        run.run()
    assert {result.worker for result in sink.results} == {0, 1}, "it has changed hands"
    assert sink.values == [*range(RECORDS)]


def partition_moves(records: int) -> list[At]:
    """Partition 0 changes its reader five times, each time after `records` records."""
    some = (MovePartition(f"h{n}", "source", 0, WorkerId(n % 2)) for n in range(1, 6))
    return [At(one, records=n * records) for n, one in enumerate(some, 1)]


@pytest.mark.parametrize("same", [1, 6])
@pytest.mark.parametrize("seed", range(20))
def test_results_that_wait_for_a_checkpoint_keep_their_order_beside_a_sink_in_the_order_of_time(
    seed: int, same: int
) -> None:
    """Also through a recovery; `same` records are of one time."""
    sink, sorted_ = ListSink(), ListSink()
    flow = Flow("f", bins=1, delivery="exactly_once", checkpoints=Checkpointing(0.01))
    source = flow.source(ListSource([[(1000 + n // same, n) for n in range(MANY)]]))
    source.map(nondeterministic(lambda value: value)).sink(sink)
    source.key_by(lambda value: value % 3).fold("n", lambda: 0, count).sink(sorted_)
    with TestFlow(flow, 2, seed, faults=partition_moves(10)) as run:
        while len(sorted_.results) < RECORDS // 2 and not run.sim.done:
            run.act()
        world = run.world
    with TestFlow(flow, 2, seed, faults=partition_moves(1), world=world) as run:
        run.run()
    assert sink.values == [*range(MANY)]
    assert len(sorted_.values) == MANY


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_that_sorts_and_then_takes_what_arrives_goes_on_from_any_checkpoint(
    seed: int,
) -> None:
    """I7: what is to be sorted waits for records that were behind it, and these not for it."""
    records = [(1000, n) for n in range(RECORDS)]
    sink, flow = ListSink(), Flow("f", bins=1, link_credit=1)
    counted = flow.source(ListSource([records, records])).map(lambda value: value)
    sorted_ = counted.key_by(lambda value: value % 3).fold("n", lambda: 0, count)
    sorted_.fold("m", lambda: 0, lambda m, _: (m + 1, m + 1), order="processing").sink(sink)
    with TestFlow(flow, 2, seed, faults=[At(TakeCheckpoint(), records=RECORDS)]) as run:
        while not run.world.checkpoints and not run.sim.done:
            run.act()
        world = run.world
    sink.results.clear()
    with TestFlow(flow, 2, seed, world=world) as run:
        run.run()
        assert run.states("m") == {0: 28, 1: 26, 2: 26}


def move(n: int, bins: tuple[int, ...]) -> Control:
    return Control({"type": "migrate", "id": f"m{n}", "bins": [*bins], "worker": n % 2})


@pytest.mark.parametrize("bins", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", range(30))
def test_results_of_one_key_stay_in_order_under_another_key(
    seed: int, bins: tuple[int, ...]
) -> None:
    sink, flow = ListSink(SLOW), Flow("f", bins=1)
    source = flow.source(ListSource([[(1000 + n, n) for n in range(RECORDS)]]))
    counted = source.key_by(lambda _: 0).fold("n", lambda: 0, count)
    counted.key_by(lambda _: 3).sink(sink)
    moves = [At(move(n, bins), records=5 * n) for n in range(1, 7)]
    with TestFlow(flow, 2, seed, faults=moves) as run:
        run.run()
    assert sink.values == [*range(RECORDS)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", range(30))
def test_results_of_one_key_come_in_order_to_an_operator_of_another_key(
    seed: int, delivery: Guarantee
) -> None:
    """It applies them as they arrive, and its own bins stay where they are."""
    sink = ListSink()
    flow = Flow(
        "f", bins=1, delivery=delivery, checkpoints=Checkpointing(0.05), link_credit=1,
    )  # fmt: skip
    source = flow.source(ListSource([[(1000 + n, n) for n in range(RECORDS)]]))
    counted = source.key_by(lambda _: 0).fold("n", lambda: 0, count).key_by(lambda _: 3)
    counted.fold("m", lambda: 0, count, order="processing", colocate=False).sink(sink)
    moves = [At(move(n, (1,)), records=5 * n) for n in range(1, 7)]
    with TestFlow(flow, 2, seed, faults=moves) as run:
        run.run()
    assert sink.values == [*range(RECORDS)]
