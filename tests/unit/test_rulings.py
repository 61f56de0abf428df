"""What sources rule is written in the order in which it was heard, one write at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dataflow import decisions
from dataflow.decisions import EVERY, Decision, Recorder, Ruled
from dataflow.protocols import Partition
from dataflow.rulings import Past, Ruling
from dataflow.sim import NOW_MS, SimClock
from tests.hand import lane_times
from tests.timed import IDLE, Timed, at
from tests.unit.conftest import Start


class Written:
    """A journal whose writes become durable when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Decision] = []
        self.durable = 0

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        self.begun.append(decision)
        number = len(self.begun)
        return lambda: self.durable >= number


def ruling(offset: int, time: int = 5) -> Ruling:
    return Ruling(0, Partition(1), offset, time)


def test_what_is_heard_while_one_write_is_under_way_goes_with_the_next() -> None:
    journal, clock = Written(), SimClock()
    recorder = Recorder(journal, clock)
    recorder.hear([ruling(1)])
    recorder.write(over=False)
    recorder.hear([ruling(2), ruling(3, 6)])
    recorder.hear([ruling(3, 7)])
    clock.advance(EVERY)
    recorder.write(over=False)
    assert journal.begun == [Ruled((ruling(1),))]
    journal.durable = 1
    recorder.write(over=False)
    assert journal.begun[1:] == [Ruled((ruling(2), ruling(3, 7)))]
    assert journal.begun[1].time == 5


def test_writes_keep_a_pace_until_the_flow_is_over() -> None:
    journal, clock = Written(), SimClock()
    recorder = Recorder(journal, clock)
    for n in range(2):
        recorder.hear([ruling(n)])
        recorder.write(over=False)
        journal.durable = n + 1
    assert len(journal.begun) == 1
    recorder.write(over=True)
    assert len(journal.begun) == 2


def test_all_is_durable_before_it_is_done() -> None:
    journal = Written()
    recorder = Recorder(journal, SimClock())
    done = [recorder.done]
    recorder.hear([ruling(1)])
    done.append(recorder.done)
    recorder.write(over=True)
    done.append(recorder.done)
    journal.durable = 1
    recorder.write(over=True)
    assert [*done, recorder.done] == [True, False, False, True]


def test_however_many_are_heard_a_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST", 3)
    journal = Written()
    recorder = Recorder(journal, SimClock())
    recorder.hear([ruling(n) for n in range(7)])
    for n in range(4):
        recorder.write(over=True)
        journal.durable = n + 1
    recorder.write(over=True)
    assert [len(one.rulings) for one in journal.begun if isinstance(one, Ruled)] == [3, 3, 1]
    assert recorder.done


def test_a_run_of_records_of_the_future_is_one_ruling(start: Start) -> None:
    flow = Timed(start)
    late = [(NOW_MS + 5000 + n, "x") for n in range(100)]
    flow.give(0, (10, "a"), *late, (12, "b"), late[0])
    flow.run.wait(EVERY)
    assert flow.run.counters["future"] == 101
    assert flow.run.sim.rulings == [
        Ruling(0, Partition(0), 1, at(10), last=100),
        Ruling(0, Partition(0), 102, at(12), last=102),
    ]


def test_the_first_record_behind_a_mark_is_judged_where_nobody_has(start: Start) -> None:
    """I7: its partition had moved past the mark before it came."""
    past = Past(at(50), [Ruling(0, Partition(0), 1, at(60))])
    flow = Timed(start, past=past)
    flow.give(0, (10, "a"), (NOW_MS + 10_000_000, "b"), (70, "c"))
    assert flow.times() == [at(10), at(60), at(70)]
    assert flow.run.counters["future"] == 1


def test_a_record_that_takes_its_partition_past_the_mark_has_been_judged(start: Start) -> None:
    past = Past(at(50))
    flow = Timed(start, past=past)
    flow.give(0, (10, "a"), (NOW_MS + 10_000_000, "b"))
    assert flow.times() == [at(10), at(NOW_MS + 10_000_000)]
    assert flow.run.counters["future"] == 0


def test_an_idle_partition_that_moves_is_ruled_about_and_a_record_that_is_bumped_is_not(
    start: Start,
) -> None:
    """The move has said it: what comes behind that offset has at least its time."""
    flow = Timed(start, partitions=2)
    flow.idle(1)
    flow.give(0, (7, "a"))
    flow.run.wait(2 * IDLE)
    assert flow.lanes[1] == at(7)
    flow.give(1, (3, "b"), (4, "c"))
    assert flow.run.counters["bumps"] == 2
    flow.run.wait(EVERY)
    assert Ruling(0, Partition(1), 0, at(7)) in flow.run.sim.rulings
    assert {one.offset for one in flow.run.sim.rulings if one.partition == 1} == {0, 2}


def test_a_known_past_is_followed_and_nothing_else_is_ruled_before_its_mark(start: Start) -> None:
    past = Past(at(50), [Ruling(0, Partition(1), 1, at(20))])
    flow = Timed(start, partitions=2, past=past)
    flow.give(0, (30, "a"))
    flow.idle(1)
    flow.run.wait(2 * IDLE)
    assert lane_times(flow.run)[1] == 0, "it waits for the record that was there"
    flow.give(1, (10, "b"))
    assert flow.lanes[1] == at(20), "behind which it moved"
    flow.give(1, (12, "c"), (70, "d"))
    assert flow.times()[1:] == [at(10), at(20), at(70)]
    assert flow.run.sim.rulings == []
