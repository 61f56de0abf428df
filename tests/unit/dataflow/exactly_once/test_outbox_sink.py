"""I5 where no replay gives results again: they wait for the checkpoints that hold them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import cast
from unittest import mock

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource, nondeterministic
from meander.dataflow.api.checkpointing import Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.compatibility import duplicated_results, expect_fits
from meander.dataflow.checkpoint.restore_plan import without_sent_results
from meander.dataflow.control.decisions import StartDecision
from meander.dataflow.exactly_once.commit_history import History
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.simulation import transactions
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Leave, TakeCheckpoint
from meander.schemas.errors import SetupError
from meander.state.checkpoint.checkpoint import Checkpoint, Cut, Piece
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation
from meander.testing import TestFlow

LONG = Checkpointing(1_000)
SEEDS = range(4)
ONE = WorkerId(0)


def counting(source: ListSource, sink: ListSink, checkpoints: Checkpointing = LONG) -> Flow:
    """Each word's n-th is told, in the order in which words arrive."""
    flow = Flow("counts", bins=2, delivery="exactly_once", checkpoints=checkpoints)
    words = flow.source(source).key_by(lambda word: word)
    counts = words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1]), order="processing")
    counts.sink(sink, "counts")
    return flow


def words(count: int) -> list[tuple[int, object]]:
    return [(n, f"w{n % 5}") for n in range(count)]


def told(sink: ListSink) -> list[tuple[object, int]]:
    return [(one, n) for one, n in cast(list[tuple[object, int]], sink.values)]


def until_taken(run: TestFlow, number: int) -> None:
    while not any(event.get("number") == number for event in run.events):
        run.act()


@pytest.mark.parametrize("seed", SEEDS)
def test_results_leave_with_the_checkpoint_that_holds_them(seed: int) -> None:
    sink, source = ListSink(), ListSource([words(40), words(40)])
    with TestFlow(counting(source, sink), 2, seed) as run:
        until_taken(run, 1)
        out = len(sink.values)
        while sum(worker.counters["written"] for worker in run.workers) < out + 20:
            run.act()
        assert len(sink.values) == out, "what has come since waits"
        run.inject(TakeCheckpoint("unaligned"))
        until_taken(run, 2)
        assert len(sink.values) >= out + 20
        run.run()
    assert sorted(told(sink)) == [(f"w{k}", n + 1) for k in range(5) for n in range(16)]


@pytest.mark.parametrize("policy", ["aligned", "unaligned"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_goes_on_where_its_outboxes_are_full(seed: int, policy: Policy) -> None:
    """And a checkpoint does not wait for what they have no room for."""
    sink = ListSink()
    flow = counting(ListSource([words(60)]), sink, Checkpointing(0.01, policy))
    with mock.patch.object(transactions, "MAX_DEFERRED", 1), TestFlow(flow, 2, seed) as run:
        run.run()
    assert len(sink.values) == 60


@pytest.mark.parametrize("seed", SEEDS)
def test_who_leaves_leaves_nothing_in_its_outbox(seed: int) -> None:
    """Though it takes a checkpoint that nobody else has asked for."""
    sink = ListSink()
    flow = counting(ListSource([words(400)]), sink, Checkpointing(0.05))
    room = mock.patch.object(transactions, "MAX_DEFERRED", 1 + seed % 3)
    with room, TestFlow(flow, 2, seed) as run:
        until_taken(run, 1)
        run.inject(Leave("l", run.owner("w0")))
        run.run()
        assert [event["type"] for event in run.events].count("left") == 1
    assert len(sink.values) == 400


@pytest.mark.parametrize("seed", SEEDS)
def test_what_lay_in_an_outbox_comes_ahead_of_all_else(seed: int) -> None:
    """Also where its worker is no more."""
    sink, source = ListSink(), ListSource([words(60), words(60)])
    with TestFlow(counting(source, sink), 3, seed) as run:
        until_taken(run, 1)
        while sum(worker.counters["written"] for worker in run.workers) < 50:
            run.act()
        run.inject(TakeCheckpoint("unaligned"))
        world = run.world
        while len(world.checkpoints) < 2:
            run.act()
    held = [piece for piece in world.checkpoints[-1].cut.pieces if piece.input]
    assert held, "something lay there"
    with TestFlow(counting(source, sink), 1, seed, world=world) as run:
        run.run()
    for key in range(5):
        assert [n for word, n in told(sink) if word == f"w{key}"] == [*range(1, 25)]


def drawing() -> tuple[Flow, ListSink, ListSink]:
    """One sink's results come through a function that gives others each time."""
    steady, drawn, drawing = ListSink(), ListSink(), itertools.count()
    flow = Flow("drawn", bins=2, delivery="exactly_once", checkpoints=LONG)
    words = flow.source(ListSource([[(n, n) for n in range(30)]]))
    words.sink(steady, "steady")
    words.map(nondeterministic(lambda n: (n, next(drawing)))).sink(drawn, "drawn")
    return flow, steady, drawn


def test_only_sinks_behind_a_function_that_gives_others_wait() -> None:
    flow, steady, drawn = drawing()
    plan = Plan(flow)
    assert plan.outboxes == {"drawn"}
    assert [*plan.ordered_sinks] == ["steady"]
    with TestFlow(flow) as run:
        until_taken(run, 1)
        while len(steady.values) < 30:
            run.act()
        assert len(drawn.values) < 30
        run.run()
    assert [n for n, _ in told(drawn)] == [*range(30)]


def test_decoders_and_encoders_count_among_the_functions() -> None:
    varying = nondeterministic(lambda data: data)
    flow = Flow("read", delivery="exactly_once", checkpoints=LONG)
    steady, read = flow.source(KafkaSource("a")), flow.source(KafkaSource("b", value=varying))
    steady.sink(KafkaSink("c"), "steady")
    steady.sink(KafkaSink("c", value=varying), "written")
    read.sink(KafkaSink("c"), "read")
    assert Plan(flow).outboxes == {"read", "written"}


def test_columns_and_parts_of_functions_count_among_the_functions() -> None:
    step = nondeterministic(lambda state, value: ((state[0] + value,), value))
    flow = Flow("columns", delivery="exactly_once", checkpoints=LONG)
    keyed = flow.source(ListSource([[]])).key_by(lambda n: n)
    keyed.fold("a", ColumnFold((0,), step, ("int64",), "int64")).sink(ListSink(), "columns")
    keyed.map(partial(nondeterministic(lambda a, b: a), 3)).sink(ListSink(), "parts")
    keyed.map(partial(min, 3)).sink(ListSink(), "steady")
    assert Plan(flow).outboxes == {"columns", "parts"}


def test_at_least_once_nothing_waits() -> None:
    flow = Flow("drawn")
    flow.source(ListSource([[]])).map(nondeterministic(lambda n: n)).sink(ListSink())
    assert not Plan(flow).outboxes


def test_a_flow_that_takes_no_checkpoint_by_itself_is_refused() -> None:
    flow = counting(ListSource([[]]), ListSink(), Checkpointing())
    with pytest.raises(SetupError, match=r"sink 'counts': .* the flow takes none by itself"):
        Plan(flow)


LIFE, AFTER = ExecutionId(7), ExecutionId(8)


def history(*markers: CommitMarker) -> History:
    begins = StartDecision(0, (ONE,) * 4, 1, checkpoint=4)
    return History(BinSpace(2), [(LIFE, begins), (AFTER, begins)], markers)


def checkpoint(*pieces: Piece) -> Checkpoint:
    return Checkpoint(4, LIFE, BinSpace(2), 5, (), Cut(members=(ONE,), pieces=pieces))


def piece(input: int, key: str) -> Piece:
    return Piece("counts", input, ONE, 3, 6, (RecordLocation(key.encode(), 0, 1, 9),), False)


HELD, COMING = piece(1, "in flight/7/4/0/0"), piece(0, "in flight/7/4/0/1")


def test_what_is_out_is_not_put_back() -> None:
    plan, cut = Plan(counting(ListSource([[]]), ListSink())), checkpoint(HELD, COMING).cut
    for mark, left in (
        (CommitMarker(LIFE, ONE, {}, sent=4), (COMING,)),
        (CommitMarker(LIFE, ONE, {}, sent=3), (HELD, COMING)),
        (CommitMarker(AFTER, ONE, {}, sent=4), (HELD, COMING)),
        (CommitMarker(LIFE, WorkerId(1), {}, sent=4), (HELD, COMING)),
    ):
        assert without_sent_results(plan, cut, history(mark)).pieces == left


def test_a_flow_does_not_go_back_behind_what_has_left_an_outbox() -> None:
    plan = Plan(counting(ListSource([[]]), ListSink()))
    assert not duplicated_results(checkpoint(), plan, history(CommitMarker(LIFE, ONE, {}, sent=4)))
    twice = duplicated_results(checkpoint(), plan, history(CommitMarker(LIFE, ONE, {}, sent=5)))
    said = "outbox contents of checkpoint 5 are committed, .*twice with --allow-nondeterminism"
    with pytest.raises(SetupError, match=said):
        expect_fits(checkpoint(), plan, twice=twice)


def test_a_sink_does_not_begin_to_wait_where_results_are_out_already() -> None:
    """In the life that has taken the checkpoint, or a later one."""
    plan = Plan(counting(ListSource([[]]), ListSink()))
    (said,) = duplicated_results(
        checkpoint(), plan, history(CommitMarker(AFTER, ONE, {"counts": 9}))
    )
    assert said.startswith("sink 'counts' has committed results since without an outbox")
    assert not duplicated_results(
        checkpoint(), plan, history(CommitMarker(AFTER, ONE, {"other": 9}))
    )


def test_an_outbox_that_the_flow_has_no_more_is_missed_where_anything_lies_there() -> None:
    flow = Flow("counts", bins=2, delivery="exactly_once")
    flow.source(ListSource([[]])).sink(ListSink(), "counts")
    said = "6 records are on their way to an outbox of sink 'counts'"
    with pytest.raises(SetupError, match=said):
        expect_fits(checkpoint(HELD, COMING), Plan(flow))


def test_a_sink_of_another_name_may_be_one_that_has_sent() -> None:
    """Then all would leave again; where none is new nothing can be meant."""
    flow = Flow("counts", bins=2, delivery="exactly_once")
    source = flow.source(ListSource([[]]))
    source.sink(ListSink(), "old")
    left = history(CommitMarker(AFTER, ONE, {"counts": 9, "old": 9}))
    assert not duplicated_results(checkpoint(), Plan(flow), left)
    source.sink(ListSink(), "new")
    (said,) = duplicated_results(checkpoint(), Plan(flow), left)
    assert said.startswith("sink 'counts' has committed results since, and the flow has no such")
