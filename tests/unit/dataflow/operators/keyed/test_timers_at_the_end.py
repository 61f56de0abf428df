"""The end of a bounded run fires the timers up to its last record, and later ones where asked."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.state.times.time import from_millis
from meander.testing import TestFlow


def remind(context: Any, state: int, value: int) -> int:
    context.timer(context.time_ms + value)
    return state


def ring(context: Any, state: int) -> int:
    context.emit(context.time_ms)
    return state


def chained() -> Flow:
    """Two operators with timers in a row; the second one sets a timer for each that has fired."""
    flow = Flow("timers", bins=4)
    stream = flow.source(KafkaSource("in")).key_by(lambda v: v % 3)
    first = stream.process("first", lambda: 0, remind, ring)
    rung = first.map(lambda ms: 50).key_by(lambda v: v)
    first.sink(KafkaSink("first"), "first sink")
    rung.process("second", lambda: 0, remind, ring).sink(KafkaSink("second"), "second sink")
    return flow


def run_to_end(seed: int, workers: int, partitions: int, *, fire: bool) -> list[list[object]]:
    with TestFlow(chained(), workers, seed, partitions=partitions) as run:
        run.feed("in", 100, ms=1000)
        run.feed("in", 200, ms=1050, partition=partitions - 1)
        run.feed("in", 300, ms=1160)
        run.run(fire_timers=fire)
        return [run.values("first"), run.values("second")]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_the_end_fires_timers_up_to_the_last_record(
    seed: int, workers: int, partitions: int
) -> None:
    """1,100 comes before the last record at 1,160; what it sets (1,150) does, too."""
    assert run_to_end(seed, workers, partitions, fire=False) == [[1100], [1150]]


@pytest.mark.parametrize("seed", range(3))
def test_the_end_fires_all_timers_where_asked(seed: int) -> None:
    assert run_to_end(seed, 2, 2, fire=True) == [[1100, 1250, 1460], [1150, 1300, 1510]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [1, 3])
def test_the_end_fires_timers_up_to_the_last_record_of_any_source(seed: int, workers: int) -> None:
    """The control frontier alone, far ahead of the sources, holds back operators behind one that
    has ended."""
    flow = Flow("timers", bins=4, control_lead=3600)
    short = ListSource([[(1000, later) for later in (100, 440, 460, 2000)]])
    stream = flow.source(short, "short").key_by(lambda v: v)
    first = stream.process("first", lambda: 0, remind, ring)
    second = first.key_by(str).process("second", lambda: 0, lambda c, s, v: remind(c, s, 50), ring)
    second.sink(KafkaSink("out"))
    flow.source(KafkaSource("long"), "long").sink(KafkaSink("copies"), "copies")
    with TestFlow(flow, workers, seed, partitions=1) as run:
        run._fire_timers = False
        for n in range(10):
            run.feed("long", n, ms=1050 + 50 * n)
            run.advance(0.5)
        closed = run.sim.coordinator.closed_before
        assert closed is not None
        assert closed > from_millis(10_000)
        run.run(fire_timers=False)
        assert run.values("out") == [1150, 1490]


def test_a_test_flow_fires_all_timers_by_default() -> None:
    with TestFlow(chained()) as run:
        run.feed("in", 100, ms=1000)
        run.run()
    assert run.values("second") == [1150]


def test_a_flow_without_records_ends() -> None:
    with TestFlow(chained()) as run:
        run.run(fire_timers=False)
    assert run.values("first") == []


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", range(5))
def test_bins_that_move_at_the_end_fire_the_same_timers(delivery: Any, seed: int) -> None:
    flow = Flow("timers", bins=4, delivery=delivery)
    stream = flow.source(KafkaSource("in")).key_by(lambda v: v)
    stream.process("p", lambda: 0, remind, ring).sink(KafkaSink("out"))
    with TestFlow(flow, workers=2, seed=seed) as run:
        for n in range(20):
            run.feed("in", 100 + n, ms=1000 + n, partition=n % 2)
        run.run_until_idle()
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
        run.feed("in", 500, ms=1105)
        run.run(fire_timers=False)
    assert run.values("out") == [1100, 1102, 1104]


def counted(source: ListSource, sink: ListSink, order: Order = "event") -> Flow:
    """Counts per window of 100 ms, which close by timers, and of which late records are shown."""
    checkpoints = Checkpointing(interval=0.03 if order == "processing" else None)
    flow = Flow("windows", bins=4, delivery="exactly_once", checkpoints=checkpoints)

    def add(context: Any, state: dict[int, int], value: str) -> dict[int, int]:
        end = context.event_ms // 100 * 100 + 100
        if end <= context.time_ms:
            context.emit("late")
            return state
        context.timer(end)
        return {**state, end: state.get(end, 0) + 1}

    def close(context: Any, state: dict[int, int]) -> dict[int, int]:
        context.emit([context.time_ms, state.pop(context.time_ms)])
        return state

    stream = flow.source(source).key_by(lambda v: v)
    stream.process("p", dict, add, close, uses=["event_ms"], order=order).sink(sink)
    return flow


def window_counts(seed: int, *, fire: bool, order: Order = "event") -> list[object]:
    """The results of two bounded runs, between which further records come; the first one fires
    its timers or not."""
    sink, source = ListSink(), ListSource([[(1000, "a"), (1050, "a")]])
    with TestFlow(counted(source, sink, order), 2, seed, commands=[TakeCheckpoint()]) as run:
        run.run(fire_timers=fire)
        world = run.world
    assert sink.values == ([[1100, 2]] if fire else [])
    source.partitions[0] = [*source.partitions[0], (1060, "a"), *[(1150, "a")] * 3, (1300, "b")]
    with TestFlow(counted(source, sink, order), 2, seed, world=world) as run:
        run.run(fire_timers=False)
    return sink.values


@pytest.mark.parametrize("seed", range(4))
def test_the_next_run_completes_the_windows_that_the_end_has_left_open(seed: int) -> None:
    """I5: the windows lie behind the commit marker of the first run, so their results come."""
    assert window_counts(seed, fire=False) == [[1100, 3], [1200, 3]]


@pytest.mark.parametrize("seed", range(4))
def test_the_checkpoint_at_the_end_holds_the_timers_that_have_not_fired(seed: int) -> None:
    """Results wait in outboxes, which a checkpoint behind the last record empties."""
    found = window_counts(seed, fire=False, order="processing")
    assert sorted(found, key=str) == [[1100, 3], [1200, 3]]


@pytest.mark.parametrize("seed", range(4))
def test_a_record_of_a_window_that_the_end_has_closed_is_late_in_the_next_run(seed: int) -> None:
    assert window_counts(seed, fire=True) == [[1100, 2], "late", [1200, 3]]
