"""How a source gives records their times, and how it ends (design 2; I1, I7)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import Flow
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import NOW_MS
from meander.state.store.store import Databases
from meander.state.times.time import to_millis
from tests.support.sim.manual_flow import ManualFlow, ManualSource
from tests.support.sim.start import NAMESPACES, Start
from tests.support.sim.timed_flow import TimedFlow, at, pass_on

# -- records


def test_a_records_time_is_the_running_maximum_of_its_partition(start: Start) -> None:
    """I1: so a partition's times never decrease, and no record is late."""
    flow = TimedFlow(start, partitions=2)
    flow.give(0, (5, "a"), (3, "b"))
    flow.give(0, (7, "c"), (6, "d"))
    flow.give(1, (4, "e"))
    assert flow.times() == [at(5), at(5), at(7), at(7), at(4)]
    assert (flow.run.counters["late_adjusted"], flow.run.counters["late_adjusted_ms"]) == (2, 2 + 1)
    assert flow.run.counters["late_most_ms"] == 2
    assert flow.lanes == {0: at(7), 1: at(4)}


def test_what_is_older_than_1970_is_raised_to_it(start: Start) -> None:
    flow = TimedFlow(start)
    flow.give(0, (-5, "a"), (0, "b"))
    assert flow.times() == [0, 0]
    assert flow.run.counters["late_adjusted"] == 0


@settings(max_examples=20)
@given(steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4))))
def test_whatever_comes_times_never_decrease_and_bumps_are_counted(
    shared_databases: Databases, steps: list[tuple[int, int, int]]
) -> None:
    """I1: in the same milliseconds as asked, unless the partition had moved on."""
    source, raw = ManualSource(2), ListSink()
    source_flow = Flow("f", bins=0)
    stream = source_flow.source(source)
    stream.sink(raw)
    stream.key_by(lambda v: 0).fold("n", lambda: 0, pass_on).sink(ListSink())
    asked: list[list[int]] = [[], []]
    with ManualFlow(source_flow, shared_databases, next(NAMESPACES), workers=1) as run:
        for partition, ms, count in steps:
            asked[partition] += [ms] * count
            source.give(partition, *[(ms, None)] * count)
            run.wait(0.003)
        late_adjusted = late = most = 0
        for partition in (0, 1):
            mine = [r for r in raw.results if r.partition == partition]
            got = [r.time for r in sorted(mine, key=lambda r: r.offset)]
            assert got == sorted(got)
            maximum = 0
            for time, ms in zip(got, asked[partition], strict=True):
                maximum = max(maximum, at(ms))
                assert time >= maximum
                late_adjusted += to_millis(time) > ms
                late += to_millis(time) - ms
                most = max(most, to_millis(time) - ms)
        names = "late_adjusted", "late_adjusted_ms", "late_most_ms"
        assert [run.counters[name] for name in names] == [late_adjusted, late, most]


# -- the future


def test_a_time_far_in_the_future_does_not_move_the_maximum_and_is_counted(start: Start) -> None:
    """I7: one wrong clock must not take the whole flow along."""
    flow = TimedFlow(start)
    flow.give(0, (10, "a"), (NOW_MS + 1001, "b"), (12, "c"))
    assert flow.times() == [at(10), at(10), at(12)]
    assert flow.run.counters["future_ignored"] == 1
    assert flow.run.counters["late_adjusted"] == 0


def test_a_time_within_max_future_is_taken_as_it_is(start: Start) -> None:
    flow = TimedFlow(start)
    flow.give(0, (NOW_MS + 1000, "a"))
    assert flow.times() == [at(NOW_MS + 1000)]
    assert flow.run.counters["future_ignored"] == 0


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


def test_an_ended_partition_holds_no_frontier_back_and_waits_for_none(start: Start) -> None:
    """I7: its last records are answered though another partition goes on."""
    flow = TimedFlow(start, partitions=2)
    flow.source.feeds[0].ended = True
    flow.give(0, (1000, "a"))
    assert set(flow.lanes) == {1}
    flow.idle(1)
    flow.run.wait(0.02)
    assert flow.folded.values == ["a"]


def test_the_reader_learns_what_the_sinks_have_passed(start: Start) -> None:
    """For tools that look at lag: all results of the records before this offset are delivered."""
    flow = TimedFlow(start, partitions=2)
    flow.idle(0, 1)
    flow.give(0, (1000, "a"), (1001, "b"))
    assert flow.source.feeds[0].passed == 0
    flow.run.wait(0.02)
    assert flow.source.feeds[0].passed == 2
