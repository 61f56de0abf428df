"""When a partition moves on without a record, and when it waits (design 2; I1, I7)."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow
from meander.dataflow.backpressure.inflight import LEAST_BYTES, ROW_BYTES
from meander.dataflow.control.command import MoveBins
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.operators.source.operator import MAX_ROWS
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import to_millis
from tests.support.sim.manual_flow import ManualSource, lane_times, source_operator, until
from tests.support.sim.start import Start
from tests.support.sim.timed_flow import IDLE, TimedFlow, at

# -- idle partitions


def test_an_idle_partition_moves_to_what_waits_and_its_holder_just_past_it(start: Start) -> None:
    """I7: by the sequence only; no wall clock is involved, so old data replays like today's."""
    flow = TimedFlow(start, partitions=3, workers=2)
    flow.idle(0, 1, 2)
    flow.give(1, (1000, "a"))
    assert flow.folded.values == []
    flow.run.wait(2 * IDLE + 0.001)
    assert flow.folded.values == ["a"]
    assert flow.lanes[1] == at(1000, 1)
    assert {flow.lanes[0], flow.lanes[2]} <= {at(1000), at(1000, 1)}


def test_nothing_moves_where_nothing_waits(start: Start) -> None:
    flow = TimedFlow(start, partitions=2, waits=False)
    flow.idle(0, 1)
    flow.run.wait(0.02)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    assert flow.raw.values == ["a"]
    assert flow.lanes == {0: at(1000), 1: 0}
    assert flow.run.counters["idle_advances"] == 0


def test_a_flow_that_has_caught_up_comes_to_rest(start: Start) -> None:
    """I7: moves do not call for further moves."""
    flow = TimedFlow(start, partitions=3, workers=2)
    flow.idle(0, 1, 2)
    flow.give(1, (1000, "a"))
    flow.run.wait(0.02)
    before, moves = flow.lanes, flow.run.counters["idle_advances"]
    flow.run.wait(0.2)
    assert (flow.lanes, flow.run.counters["idle_advances"]) == (before, moves)
    assert moves <= 2 * 3
    assert all(to_millis(time) == 1000 for time in before.values())


def test_a_partition_counts_as_idle_only_after_a_while(start: Start) -> None:
    flow = TimedFlow(start, partitions=2, options=SourceOptions(idle_after=0.01))
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.009)
    assert flow.folded.values == []
    flow.run.wait(0.02)
    assert flow.folded.values == ["a"]


def test_a_partition_that_has_more_to_read_does_not_move(start: Start) -> None:
    """I3: its next record may be earlier than all that waits."""
    flow = TimedFlow(start, partitions=2)
    flow.idle(0)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.05)
    assert flow.folded.values == [] and flow.lanes[1] == 0
    flow.give(1, (500, "b"))
    flow.idle(1)
    flow.run.wait(0.02)
    assert flow.folded.values == ["b", "a"]


def test_a_record_behind_its_partition_gets_its_frontier_and_is_counted(start: Start) -> None:
    """I1: a bump, to the frontier and no further."""
    flow = TimedFlow(start, partitions=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    frontier = flow.lanes[1]
    flow.give(1, (400, "old"), (1000, "too"), (1001, "new"))
    assert flow.times()[1:] == [frontier, max(frontier, at(1000)), at(1001)]
    assert flow.run.counters["late_adjusted"] == 1 + (to_millis(frontier) > 1000)
    assert flow.run.counters["late_adjusted_ms"] >= 600


def test_one_source_moves_for_what_waits_of_another(start: Start) -> None:
    """I7."""
    first, second, sink = ManualSource(), ManualSource(), ListSink()
    flow = Flow("f", bins=1)
    left = flow.source(first, "first").key_by(lambda v: 0)
    right = flow.source(second, "second").key_by(lambda v: 0)

    def keep(context: Any, state: int, value: object) -> int:
        context.emit(value)
        return state

    left.connect(right, "both", lambda: 0, keep, keep).sink(sink)
    run = start(flow, workers=2)
    first.give(0, (1000, "a"))
    run.wait(0.02)
    assert sink.values == ["a"]


def test_the_loop_naps_no_longer_than_until_the_next_move(start: Start) -> None:
    """I7: and as long as nothing waits, no partition wakes it."""
    flow = TimedFlow(start, partitions=2, options=SourceOptions(idle_after=0.05))
    flow.idle(0, 1)
    source = source_operator(flow.run.workers[0])
    assert source.wait_seconds() is None
    flow.give(0, (1000, "a"))
    flow.run.wait(0.03)
    nap = source.wait_seconds()
    assert nap is not None and 0 < nap <= 0.0201
    flow.run.wait(0.1)
    assert source.wait_seconds() is None


# -- one time held for long


def test_a_partition_that_holds_one_time_lets_others_pass_it(start: Start) -> None:
    """I7: the rest of its records go on at the next sequence, which is no bump: their milliseconds
    stay."""
    flow = TimedFlow(start, partitions=2)
    flow.idle(0, 1)
    many = 8 * MAX_ROWS
    flow.source.give(0, *[(1000, n) for n in range(many)])

    def tick() -> None:
        flow.run.sim.clock.advance(0.003)
        flow.run.turn()

    until(lambda: bool(flow.folded.values), tick)
    assert flow.run.counters["written"] < 2 * many
    until(lambda: len(flow.raw.values) == many, tick)
    times = flow.times()
    assert times == sorted(times) and to_millis(times[-1]) == 1000
    assert 0 < times[-1] - times[0] <= 8
    assert times[-1] > at(1000) and flow.run.counters["late_adjusted"] == 0
    flow.run.finish(flow.source)
    assert flow.folded.values == list(range(many))


# -- skew


def skewed(start: Start, waits: bool = True) -> TimedFlow:
    options = SourceOptions(max_skew=0.1)
    flow = TimedFlow(
        start, partitions=2, options=options, waits=waits, record_size=LEAST_BYTES * 2 // 5
    )
    flow.give(0, (10, "floor"))
    flow.give(1, (10, "a"), (110, "b"), (111, "c"))
    return flow


def test_a_partition_that_is_far_ahead_waits_while_others_have_data(start: Start) -> None:
    """I6: what it would send could only wait elsewhere."""
    flow = skewed(start)
    assert flow.raw.values == ["floor", "a", "b"]
    flow.run.wait(0.05)
    assert flow.raw.values == ["floor", "a", "b"], "the other partition is not idle"
    flow.give(0, (11, "next"))
    assert flow.raw.values[3:] == ["next", "c"]
    assert flow.run.counters["late_adjusted"] == 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_partition_that_is_far_ahead_goes_on_when_the_others_are_idle(
    start: Start, waits: bool
) -> None:
    """I7: it says that it waits, and they move up to it, also where nothing else waits."""
    flow = skewed(start, waits)
    flow.idle(0)
    flow.run.wait(0.02)
    assert flow.raw.values == ["floor", "a", "b", "c"]
    assert flow.times()[-1] == at(111)


def test_a_partition_may_be_far_ahead_with_little(start: Start) -> None:
    """I6: as many bytes, whatever their times, until all sinks have passed them."""
    flow = TimedFlow(start, partitions=2)
    flow.give(0, (10, "floor"))
    flow.give(1, *((10 + 500 * n, n) for n in range(5000)))
    few = LEAST_BYTES // (100 + ROW_BYTES)
    assert flow.raw.values == ["floor", *range(few)]
    flow.run.wait(0.05)
    assert len(flow.raw.values) == few + 1, "the other partition is not idle"
    flow.give(0, (10 + 500 * few, "next"))
    assert flow.raw.values[few + 1 :] == ["next", *range(few, 2 * few)]


def turns(start: Start, apart_ms: int, partitions: int) -> int:
    """How many it takes until a history is read, and all that follows from it is out."""
    flow = TimedFlow(start, partitions)
    for p in range(partitions):
        flow.source.give(p, *((1000 + apart_ms * n, n) for n in range(4000)))
    for count in range(100_000):
        if len(flow.folded.values) == 4000 * partitions:
            return count
        flow.source.end()
        flow.run.sim.clock.advance(0.001)
        flow.run.turn()
    raise AssertionError("it does not come to its end")


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_sparse_history_takes_no_more_turns_than_a_dense_one(
    start: Start, partitions: int
) -> None:
    """Neither the source nor the word of the coordinator is waited for more often."""
    assert turns(start, 500, partitions) <= 2 * turns(start, 1, partitions)


def test_the_earliest_partition_sends_first(start: Start) -> None:
    flow = TimedFlow(start, partitions=3)
    for partition, ms in ((0, 300), (1, 100), (2, 200)):
        flow.source.give(partition, (ms, ms))
    flow.run.run_until_idle()
    assert flow.raw.values == [100, 200, 300]


# -- commands and timers


def test_a_command_without_a_time_moves_idle_partitions_just_past_it(start: Start) -> None:
    """I7: it is carried out though no data comes, and by the sequence only."""
    flow = TimedFlow(start, partitions=2, workers=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    flow.run.sim.submit(MoveBins("m", (Bin(0), Bin(1)), WorkerId(1), None, "all-at-once"))
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"
    assert {to_millis(time) for time in flow.lanes.values()} == {1000}
    before = flow.lanes
    flow.run.wait(0.1)
    assert flow.lanes == before


def test_a_command_without_a_time_waits_for_a_partition_that_has_data(start: Start) -> None:
    """I2: its records may belong before it."""
    flow = TimedFlow(start, partitions=2, workers=2)
    flow.idle(0)
    flow.give(0, (1000, "a"))
    flow.run.sim.submit(MoveBins("m", (Bin(0), Bin(1)), WorkerId(1), None, "all-at-once"))
    flow.run.wait(0.05)
    assert flow.run.said("m") == ["accepted"]
    flow.idle(1)
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"


def test_a_command_for_a_later_time_advances_no_partition(start: Start) -> None:
    """I2: data reaches it, or the end of a bounded run."""
    flow = TimedFlow(start, partitions=2, workers=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    before = flow.lanes
    flow.run.sim.submit(MoveBins("m", (Bin(0), Bin(1)), WorkerId(1), at(2000), "all-at-once"))
    flow.run.wait(0.1)
    assert flow.lanes == before and flow.run.said("m") == ["accepted"]
    flow.give(0, (2000, "b"))
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"
    assert [(r.value, r.worker) for r in flow.folded.results][1:] == [("b", 1)]


def test_a_timer_for_a_later_time_advances_no_partition(start: Start) -> None:
    source, sink = ManualSource(2), ListSink()
    flow = Flow("f", bins=1)

    def remind(context: Any, state: int, value: object) -> int:
        context.timer(2000)
        return state

    def ring(context: Any, state: int) -> int:
        context.emit("ring")
        return state

    stream = flow.source(source).key_by(lambda v: 0)
    stream.process("p", lambda: 0, remind, ring).sink(sink)
    run = start(flow)
    source.give(0, (1000, "a"))
    run.wait(0.1)
    assert {to_millis(time) for time in lane_times(run).values()} == {1000}
    assert sink.values == []
    run.finish(source)
    assert sink.values == ["ring"]
