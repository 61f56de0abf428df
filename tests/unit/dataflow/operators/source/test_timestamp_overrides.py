"""What sources rule about records of the future, of idle partitions and of a past that is known."""

from __future__ import annotations

from meander.dataflow.control.timestamp_overrides import OverrideHistory, TimestampOverride
from meander.dataflow.interfaces import Partition
from meander.dataflow.simulation.simulator import NOW_MS
from tests.support.sim.manual_flow import lane_times
from tests.support.sim.start import Start
from tests.support.sim.timed_flow import IDLE, TimedFlow, at


def test_a_run_of_records_of_the_future_is_one_ruling(start: Start) -> None:
    flow = TimedFlow(start)
    late = [(NOW_MS + 5000 + n, "x") for n in range(100)]
    flow.give(0, (10, "a"), *late, (12, "b"), late[0])
    assert flow.run.counters["future_ignored"] == 101
    assert flow.rulings == [
        TimestampOverride(0, Partition(0), 1, at(10), last=100),
        TimestampOverride(0, Partition(0), 102, at(12), last=102),
    ]


def test_the_first_record_behind_a_mark_is_checked_without_an_override(start: Start) -> None:
    """I7: its partition had moved past the mark before it came."""
    past = OverrideHistory(at(50), [TimestampOverride(0, Partition(0), 1, at(60))])
    flow = TimedFlow(start, past=past)
    flow.give(0, (10, "a"), (NOW_MS + 10_000_000, "b"), (70, "c"))
    assert flow.times() == [at(10), at(60), at(70)]
    assert flow.run.counters["future_ignored"] == 1


def test_a_record_that_takes_its_partition_past_the_mark_has_been_judged(start: Start) -> None:
    past = OverrideHistory(at(50))
    flow = TimedFlow(start, past=past)
    flow.give(0, (10, "a"), (NOW_MS + 10_000_000, "b"))
    assert flow.times() == [at(10), at(NOW_MS + 10_000_000)]
    assert flow.run.counters["future_ignored"] == 0


def test_an_idle_partition_that_moves_is_ruled_about_and_a_late_record_is_not(
    start: Start,
) -> None:
    """The move has said it: what comes behind that offset has at least its time."""
    flow = TimedFlow(start, partitions=2)
    flow.idle(1)
    flow.give(0, (7, "a"))
    flow.run.wait(2 * IDLE)
    assert flow.lanes[1] == at(7)
    flow.give(1, (3, "b"), (4, "c"))
    assert flow.run.counters["late_adjusted"] == 2
    flow.run.wait(2 * IDLE)
    assert TimestampOverride(0, Partition(1), 0, at(7)) in flow.rulings
    assert {one.offset for one in flow.rulings if one.partition == 1} == {0, 2}


def test_a_known_past_is_followed_and_nothing_else_is_ruled_before_its_mark(start: Start) -> None:
    past = OverrideHistory(at(50), [TimestampOverride(0, Partition(1), 1, at(20))])
    flow = TimedFlow(start, partitions=2, past=past)
    flow.give(0, (30, "a"))
    flow.idle(1)
    flow.run.wait(2 * IDLE)
    assert lane_times(flow.run)[1] == 0, "it waits for the record that was there"
    flow.give(1, (10, "b"))
    assert flow.lanes[1] == at(20), "behind which it moved"
    flow.give(1, (12, "c"), (70, "d"))
    assert flow.times()[1:] == [at(10), at(20), at(70)]
    assert flow.rulings == []


def test_a_known_advance_at_an_offset_without_a_record_holds_behind_it(start: Start) -> None:
    """I7: the partition goes on behind an unreadable record, at whose offset it had moved."""
    past = OverrideHistory(at(50), [TimestampOverride(0, Partition(1), -1, at(60))])
    flow = TimedFlow(start, partitions=2, past=past)
    flow.idle(1)
    flow.give(0, (70, "a"))
    flow.run.wait(2 * IDLE)
    assert flow.lanes[1] == at(70)
    flow.give(1, (55, "b"))
    assert flow.times()[-1] == at(70)
