"""How a source gives records their times, and when it moves on without any (design 2; I1, I7)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import Flow
from dataflow.migrate.command import Migrate
from dataflow.operators.source import ROWS
from dataflow.protocols import SourceOptions
from dataflow.sim import NOW_MS
from dataflow.testing import ListSink, ListSource
from state.ids import Bin, WorkerId
from state.store import Database
from state.time import from_millis, to_millis
from tests.hand import HandFlow, HandSink, HandSource, lane_times, source_operator, until
from tests.unit.conftest import NAMESPACES, Start

IDLE = 0.002


def at(ms: int, sequence: int = 0) -> int:
    return from_millis(ms, sequence)


class Timed:
    """A flow whose records are shown as they leave the source, and again after a fold on one key,
    where they wait for the flow's time."""

    def __init__(
        self,
        start: Start,
        partitions: int = 1,
        workers: int = 1,
        options: SourceOptions | None = None,
        waits: bool = True,
        control_lead: float = 0.0,
    ) -> None:
        self.source = HandSource(partitions, options)
        self.raw, self.folded = HandSink(), HandSink()
        flow = Flow("f", bins=1, control_lead=control_lead)
        stream = flow.source(self.source)
        stream.sink(self.raw, "raw")
        if waits:
            stream.key_by(lambda v: 0).fold("n", lambda: 0, _pass_on).sink(self.folded, "folded")
        self.run: HandFlow = start(flow, workers)
        for feed in self.source.feeds:
            feed.busy = True
        self.run.settle()

    def idle(self, *partitions: int) -> None:
        for partition in partitions:
            self.source.feeds[partition].busy = False

    def give(self, partition: int, *records: tuple[int, object]) -> None:
        self.source.give(partition, *records)
        self.run.settle()

    def times(self) -> list[int]:
        """The logical times of the records in the order of their partition and offset."""
        ordered = sorted(self.raw.results, key=lambda r: (r.partition, r.offset))
        return [result.time for result in ordered]

    @property
    def lanes(self) -> dict[int, int]:
        return lane_times(self.run)


def _pass_on(n: int, value: object) -> tuple[int, object]:
    return n + 1, value


# -- records


def test_a_records_time_is_the_running_maximum_of_its_partition(start: Start) -> None:
    """I1: so a partition's times never decrease, and no record is late."""
    flow = Timed(start, partitions=2)
    flow.give(0, (5, "a"), (3, "b"))
    flow.give(0, (7, "c"), (6, "d"))
    flow.give(1, (4, "e"))
    assert flow.times() == [at(5), at(5), at(7), at(7), at(4)]
    assert flow.run.counters["bumps"] == 0
    assert flow.lanes == {0: at(7), 1: at(4)}


def test_what_is_older_than_1970_is_raised_to_it(start: Start) -> None:
    flow = Timed(start)
    flow.give(0, (-5, "a"), (0, "b"))
    assert flow.times() == [0, 0]
    assert flow.run.counters["bumps"] == 0


@settings(max_examples=20)
@given(steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4))))
def test_whatever_comes_times_never_decrease_and_bumps_are_counted(
    shared_database: Database, steps: list[tuple[int, int, int]]
) -> None:
    """I1: in the same milliseconds as asked, unless the partition had moved on."""
    source, raw = HandSource(2), ListSink()
    source_flow = Flow("f", bins=0)
    stream = source_flow.source(source)
    stream.sink(raw)
    stream.key_by(lambda v: 0).fold("n", lambda: 0, _pass_on).sink(ListSink())
    asked: list[list[int]] = [[], []]
    with HandFlow(source_flow, shared_database, next(NAMESPACES), workers=1) as run:
        for partition, ms, count in steps:
            asked[partition] += [ms] * count
            source.give(partition, *[(ms, None)] * count)
            run.wait(0.003)
        bumps = 0
        for partition in (0, 1):
            mine = [r for r in raw.results if r.partition == partition]
            got = [r.time for r in sorted(mine, key=lambda r: r.offset)]
            assert got == sorted(got)
            maximum = 0
            for time, ms in zip(got, asked[partition], strict=True):
                maximum = max(maximum, at(ms))
                assert time >= maximum
                bumps += time > maximum
        assert run.counters["bumps"] == bumps


# -- the future


def test_a_time_far_in_the_future_does_not_move_the_maximum_and_is_counted(start: Start) -> None:
    """I7: one wrong clock must not take the whole flow along."""
    flow = Timed(start)
    flow.give(0, (10, "a"), (NOW_MS + 1001, "b"), (12, "c"))
    assert flow.times() == [at(10), at(10), at(12)]
    assert flow.run.counters["future"] == 1
    assert flow.run.counters["bumps"] == 0


def test_a_time_within_max_future_is_taken_as_it_is(start: Start) -> None:
    flow = Timed(start)
    flow.give(0, (NOW_MS + 1000, "a"))
    assert flow.times() == [at(NOW_MS + 1000)]
    assert flow.run.counters["future"] == 0


# -- idle partitions


def test_an_idle_partition_moves_to_what_waits_and_its_holder_just_past_it(start: Start) -> None:
    """I7: by the sequence only; no wall clock is involved, so old data replays like today's."""
    flow = Timed(start, partitions=3, workers=2)
    flow.idle(0, 1, 2)
    flow.give(1, (1000, "a"))
    assert flow.folded.values == []
    flow.run.wait(2 * IDLE + 0.001)
    assert flow.folded.values == ["a"]
    assert flow.lanes[1] == at(1000, 1)
    assert {flow.lanes[0], flow.lanes[2]} <= {at(1000), at(1000, 1)}


def test_nothing_moves_where_nothing_waits(start: Start) -> None:
    flow = Timed(start, partitions=2, waits=False)
    flow.idle(0, 1)
    flow.run.wait(0.02)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    assert flow.raw.values == ["a"]
    assert flow.lanes == {0: at(1000), 1: 0}
    assert flow.run.counters["moves"] == 0


def test_a_flow_that_has_caught_up_comes_to_rest(start: Start) -> None:
    """I7: moves do not call for further moves."""
    flow = Timed(start, partitions=3, workers=2)
    flow.idle(0, 1, 2)
    flow.give(1, (1000, "a"))
    flow.run.wait(0.02)
    before, moves = flow.lanes, flow.run.counters["moves"]
    flow.run.wait(0.2)
    assert (flow.lanes, flow.run.counters["moves"]) == (before, moves)
    assert moves <= 2 * 3
    assert all(to_millis(time) == 1000 for time in before.values())


def test_a_partition_counts_as_idle_only_after_a_while(start: Start) -> None:
    flow = Timed(start, partitions=2, options=SourceOptions(idle_after=0.01))
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.009)
    assert flow.folded.values == []
    flow.run.wait(0.02)
    assert flow.folded.values == ["a"]


def test_a_partition_that_has_more_to_read_does_not_move(start: Start) -> None:
    """I3: its next record may be earlier than all that waits."""
    flow = Timed(start, partitions=2)
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
    flow = Timed(start, partitions=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    frontier = flow.lanes[1]
    flow.give(1, (400, "old"), (1000, "too"), (1001, "new"))
    assert flow.times()[1:] == [frontier, max(frontier, at(1000)), at(1001)]
    assert flow.run.counters["bumps"] == 1 + (frontier > at(1000))


def test_one_source_moves_for_what_waits_of_another(start: Start) -> None:
    """I7."""
    first, second, sink = HandSource(), HandSource(), ListSink()
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
    flow = Timed(start, partitions=2, options=SourceOptions(idle_after=0.05))
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
    """I7: the rest of its records go on at the next sequence, and are counted as bumps."""
    flow = Timed(start, partitions=2)
    flow.idle(0, 1)
    many = 8 * ROWS
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
    assert flow.run.counters["bumps"] == sum(time > at(1000) for time in times)
    flow.run.finish(flow.source)
    assert flow.folded.values == list(range(many))


# -- skew


def skewed(start: Start, waits: bool = True) -> Timed:
    flow = Timed(start, partitions=2, options=SourceOptions(max_skew=0.1), waits=waits)
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
    assert flow.run.counters["bumps"] == 0


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


def test_the_earliest_partition_sends_first(start: Start) -> None:
    flow = Timed(start, partitions=3)
    for partition, ms in ((0, 300), (1, 100), (2, 200)):
        flow.source.give(partition, (ms, ms))
    flow.run.settle()
    assert flow.raw.values == [100, 200, 300]


# -- commands and timers


def test_a_command_without_a_time_moves_idle_partitions_just_past_it(start: Start) -> None:
    """I7: it is carried out though no data comes, and by the sequence only."""
    flow = Timed(start, partitions=2, workers=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    flow.run.sim.submit(Migrate("m", (Bin(0), Bin(1)), WorkerId(1), None, "sudden"))
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"
    assert {to_millis(time) for time in flow.lanes.values()} == {1000}
    before = flow.lanes
    flow.run.wait(0.1)
    assert flow.lanes == before


def test_a_command_without_a_time_waits_for_a_partition_that_has_data(start: Start) -> None:
    """I2: its records may belong before it."""
    flow = Timed(start, partitions=2, workers=2)
    flow.idle(0)
    flow.give(0, (1000, "a"))
    flow.run.sim.submit(Migrate("m", (Bin(0), Bin(1)), WorkerId(1), None, "sudden"))
    flow.run.wait(0.05)
    assert flow.run.said("m") == ["accepted"]
    flow.idle(1)
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"


def test_a_command_for_a_later_time_moves_nobody(start: Start) -> None:
    """I2: data reaches it, or the end of a bounded run."""
    flow = Timed(start, partitions=2, workers=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"))
    flow.run.wait(0.02)
    before = flow.lanes
    flow.run.sim.submit(Migrate("m", (Bin(0), Bin(1)), WorkerId(1), at(2000), "sudden"))
    flow.run.wait(0.1)
    assert flow.lanes == before and flow.run.said("m") == ["accepted"]
    flow.give(0, (2000, "b"))
    flow.run.wait(0.02)
    assert flow.run.said("m")[-1] == "completed"
    assert [(r.value, r.worker) for r in flow.folded.results][1:] == [("b", 1)]


def test_a_timer_for_a_later_time_moves_nobody(start: Start) -> None:
    source, sink = HandSource(2), ListSink()
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


# -- the end


@pytest.mark.parametrize("partitions", [[[]], [[], [(5, "a")]], [[(5, "a")], [(9, "b"), (7, "c")]]])
def test_a_bounded_run_ends_and_leaves_no_time_to_come(
    start: Start, partitions: list[list[tuple[int, object]]]
) -> None:
    """I7."""
    raw = ListSink()
    flow = Flow("f", bins=1)
    flow.source(ListSource(partitions)).sink(raw)
    run = start(flow)
    run.run()
    assert sorted(map(str, raw.values)) == sorted(v for p in partitions for _, v in p)  # type: ignore[type-var]
    assert not run.workers[0].frontiers()["sink"]
    assert run.forsworn is None


def test_an_ended_partition_holds_nobody_back_and_waits_for_nobody(start: Start) -> None:
    """I7: its last records are answered though another partition goes on."""
    flow = Timed(start, partitions=2)
    flow.source.feeds[0].ended = True
    flow.give(0, (1000, "a"))
    assert set(flow.lanes) == {1}
    flow.idle(1)
    flow.run.wait(0.02)
    assert flow.folded.values == ["a"]


def test_what_the_sinks_have_passed_is_told_to_the_reader(start: Start) -> None:
    """For tools that look at lag: all results of the records before this offset are delivered."""
    flow = Timed(start, partitions=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"), (1001, "b"))
    assert flow.source.feeds[0].passed == 0
    flow.run.wait(0.02)
    assert flow.source.feeds[0].passed == 2
