"""What sources rule is written in the order in which it was heard, one write at a time."""

from __future__ import annotations

from collections.abc import Callable

from dataflow.decisions import EVERY, Decision, Recorder, Ruled
from dataflow.protocols import Partition
from dataflow.rulings import Past, Ruling
from dataflow.sim import SimClock
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
