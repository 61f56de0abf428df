"""I7: records come before what is moved ahead of its time, and what is due before both."""

from __future__ import annotations

from meander.dataflow.backpressure.throttle import (
    FIRST,
    LEAST,
    MOST,
    SLICE,
    TURN,
    MemoryBudget,
    MoveThrottle,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def undisturbed(self) -> float:
        return self.monotonic()

    def now_ms(self) -> int:
        return round(self.now * 1000)


def paced(latency: float = 0.1) -> tuple[MoveThrottle, Clock]:
    clock = Clock()
    return MoveThrottle(clock, latency, lambda: 100), clock


def spend(pace: MoveThrottle, clock: Clock, seconds: float) -> None:
    with pace.measure():
        clock.now += seconds


def test_in_the_long_run_a_busy_worker_spends_its_share_on_what_is_moved_ahead() -> None:
    pace, clock = paced()
    records = ahead = 0.0
    for _ in range(1000):
        spent = 0.0
        while pace.open:
            spend(pace, clock, 0.0007)
            spent += 0.0007
        clock.now += 0.03
        records, ahead = records + 0.03, ahead + spent
        pace.end_turn(busy=0.03 + spent)
    assert abs(ahead / (ahead + records) - FIRST) < 0.02


def test_no_turn_is_long_for_what_is_moved_ahead() -> None:
    pace, _ = paced()
    pace.end_turn(busy=1.0)
    assert pace.seconds_left <= SLICE


def test_a_turn_without_records_is_filled_and_what_was_too_much_made_up_for() -> None:
    pace, clock = paced()
    spend(pace, clock, 1.5 * TURN)
    assert not pace.open
    pace.end_turn(busy=1.5 * TURN)
    assert abs(pace.seconds_left - TURN / 2) < 1e-6
    pace.end_turn(busy=0)
    assert pace.seconds_left == TURN


def test_the_share_halves_once_for_all_records_that_were_under_way() -> None:
    pace, clock = paced(latency=0.1)
    first = pace.share
    clock.now += 1
    for late in (0.2, 0.3, 0.25):
        pace.note_passed(clock.now - late)
    assert pace.share == first / 2
    clock.now += 0.5
    pace.note_passed(clock.now - 0.2)
    assert pace.share == max(LEAST, first / 4)
    for _ in range(9):
        clock.now += 0.5
        pace.note_passed(clock.now - 0.2)
    assert pace.share == LEAST, "it goes on, however late records are"


def test_the_share_grows_by_time_while_records_are_in_time() -> None:
    few, many = paced(), paced()
    for (pace, clock), times in ((few, 2), (many, 1000)):
        for _ in range(times):
            clock.now += 1 / times
            pace.note_passed(clock.now - 0.05)
    assert abs(few[0].share - many[0].share) < 1e-6
    pace, clock = few
    clock.now += 60
    pace.note_passed(clock.now)
    assert pace.share == MOST


def test_what_was_read_while_bins_were_on_their_way_says_nothing_of_the_share() -> None:
    pace, clock = paced(latency=0.1)
    first = pace.share
    pace.bins_in_transit = True
    read_at = clock.now
    clock.now += 0.2
    pace.note_passed(read_at)
    pace.end_turn(busy=0)
    pace.bins_in_transit = False
    clock.now += 0.05
    pace.note_passed(read_at + 0.1)
    assert pace.share == first
    clock.now += 0.2
    pace.note_passed(clock.now - 0.15)
    assert pace.share == first / 2


def test_nothing_is_moved_ahead_while_bins_are_on_their_way() -> None:
    pace, _ = paced()
    pace.bins_in_transit = True
    assert not pace.open
    pace.bins_in_transit = False
    assert pace.open


def test_what_is_due_is_hurried_for_some_of_a_turn_and_at_least_one() -> None:
    pace, clock = paced()
    done = []
    for n in pace.run_due(range(100)):
        clock.now += SLICE / 4
        done.append(n)
    assert done == [0, 1, 2, 3]
    for n in pace.run_due([7, 8]):
        clock.now += 2 * SLICE
        done.append(n)
    assert done[4:] == [7]


class Moved:
    def __init__(self, memory_bound: int) -> None:
        self.memory_bound = memory_bound


def test_a_bin_beyond_all_memory_is_let_in_alone() -> None:
    """I6, and I7: else it would never move."""
    room = MemoryBudget(lambda: 100)
    large = room.admit(Moved(1000))
    assert not room.open
    large.memory_bound = 0
    assert room.open


def test_the_room_follows_the_number_of_workers() -> None:
    """I6: it is one bound for all of them."""
    workers = [2]
    room = MemoryBudget(lambda: 100 // workers[0])
    room.admit(Moved(20))
    assert room.open
    workers[0] = 8
    assert not room.open
