"""Timers: one per key and time, in order, and with their bin wherever it goes (I2, I4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.operators.keyed.run_end import RunEnd
from meander.dataflow.operators.keyed.timer_queue import HEAP_SLACK, Timer
from meander.dataflow.operators.keyed.timers import Timers
from meander.state.encoding.timers import tag_of
from meander.state.keys.ids import Bin

A, B = Bin(0), Bin(1)


def fired(timers: Timers, before: int | None = None) -> list[Timer]:
    """All before a time, in the order in which they are taken."""
    found = []
    while timers.first is not None and (before is None or timers.first[0] < before):
        ahead = timers.peek(before, 3)
        found += [timers.pop() for _ in ahead]
        assert ahead == found[-len(ahead) :], "the first may be had before they are taken"
    return found


TIMER = st.tuples(st.integers(0, 9), st.sampled_from([b"\xa2a0", b"\xa2a1", b"\xa2b0"]))


def bin_of(key: bytes) -> Bin:
    return A if key.startswith(b"\xa2a") else B


@given(st.lists(TIMER), st.integers(0, 10))
def test_timers_fire_once_in_the_order_of_time_and_key_when_their_time_has_passed(
    given_: list[tuple[int, bytes]], frontier: int
) -> None:
    """I3: setting one twice is setting it once."""
    timers = Timers()
    for time, key in given_:
        timers.set(bin_of(key), time, key)
    assert timers.least == min((time for time, _ in given_), default=None)
    early = fired(timers, frontier)
    assert early == sorted({timer for timer in given_ if timer[0] < frontier})
    assert early + fired(timers) == sorted(set(given_))
    assert timers.least is None


def test_a_timer_may_be_set_again_after_it_has_fired() -> None:
    timers = Timers()
    for _ in range(2):
        timers.set(A, 5, b"a")
        assert fired(timers) == [(5, b"a")]


@given(st.lists(TIMER), st.lists(TIMER), st.integers(0, 10))
def test_timers_from_the_departure_on_travel_and_the_others_fire_here(
    before: list[tuple[int, bytes]], after: list[tuple[int, bytes]], departure: int
) -> None:
    """I2: none fires at the old owner from t on, and none is lost, whenever it was set."""
    timers = Timers()
    for time, key in before:
        timers.set(bin_of(key), time, key)
    timers.start_departure(A, departure)
    for time, key in after:
        timers.set(bin_of(key), time, key)
    every = set(before + after)
    travels = {timer for timer in every if bin_of(timer[1]) == A and timer[0] >= departure}
    assert timers.least == min((time for time, _ in every), default=None), "held until they leave"
    assert fired(timers) == sorted(every - travels)
    assert timers.departing(A) == sorted(travels)
    assert timers.departing(B) == []
    timers.remove_departed(A)
    assert timers.departing(A) == [] and timers.least is None
    arrived = Timers()
    arrived.install(A, sorted(travels))
    assert fired(arrived) == sorted(travels)


def test_a_bin_that_comes_back_and_leaves_again_takes_its_timers_each_time() -> None:
    """I2: departures at 3 and 9 are known at once, and the bin is back from 6 on."""
    timers = Timers()
    for time in (1, 4, 7, 12):
        timers.set(A, time, b"a")
    timers.start_departure(A, 3)
    timers.start_departure(A, 9)
    assert fired(timers) == [(1, b"a")]
    assert timers.departing(A) == [(4, b"a"), (7, b"a"), (12, b"a")]
    timers.remove_departed(A)
    timers.install(A, [(7, b"a"), (12, b"a")])
    assert timers.least == 7
    assert fired(timers) == [(7, b"a")]
    assert timers.departing(A) == [(12, b"a")]
    timers.remove_departed(A)
    timers.set(A, 20, b"a")
    assert fired(timers) == [(20, b"a")]


def test_timers_that_travel_to_and_fro_take_no_more_room_each_time() -> None:
    """I6, and each fires once."""
    timers, every = Timers(), [(time, b"\xa2a%d" % (time % 7)) for time in range(3000)]
    timers.install(A, every)
    for _ in range(20):
        timers.start_departure(A, 0)
        timers.remove_departed(A)
        timers.install(A, every)
    assert len(timers._here._heap) <= 2 * len(every) + HEAP_SLACK
    assert timers.peek(None, 1 << 20) == every == fired(timers)
    assert timers.size == 0


KEYS = st.sampled_from([b"\xa2a0", b"\xa2a1", b"\xa2b0"])
NAMES = st.sampled_from(["x", "xy", "ü"])


@given(st.lists(st.tuples(KEYS, NAMES, st.integers(0, 9) | st.none())), st.integers(0, 10))
def test_a_name_has_the_time_of_its_last_timer_and_none_once_cancelled(
    changes: list[tuple[bytes, str, int | None]], departure: int
) -> None:
    """I2: also where the bin leaves, and has arrived again."""
    timers, expected = Timers(), dict[bytes, int]()
    timers.start_departure(A, departure)
    for n, (key, name, time) in enumerate(changes):
        if n == len(changes) // 2:
            leaving = timers.departing(A)
            timers.remove_departed(A)
            timers.install(A, leaving)
        if time is None:
            timers.cancel(key, name)
            expected.pop(tag_of(key, name), None)
        else:
            timers.set(bin_of(key), time, key, name)
            expected[tag_of(key, name)] = time
    assert [*timers.all(A), *timers.all(B)] == [
        *sorted((time, tag) for tag, time in expected.items() if bin_of(tag) == A),
        *sorted((time, tag) for tag, time in expected.items() if bin_of(tag) == B),
    ]


def test_an_alarm_moves_with_its_bin_whenever_it_is_due() -> None:
    """I2"""
    timers, arrived = Timers(), Timers()
    timers.set_alarm(A, 7, b"a")
    timers.set_alarm(A, 9, b"a", "late")
    timers.set_alarm(B, 8, b"b")
    timers.start_departure(A, 3)
    assert (timers.may_ring(A, 2), timers.may_ring(A, 3)) == (True, False)
    leaving = timers.departing(A)
    timers.remove_departed(A)
    arrived.install(A, leaving)
    arrived.note_arrival(A, 3)
    assert (arrived.may_ring(A, 2), arrived.may_ring(A, 3)) == (False, True)
    assert fired_alarms(timers) == [(8, b"b")]
    assert fired_alarms(arrived) == [(7, b"a"), (9, b"alate")]
    assert (timers.size, arrived.size) == (0, 0)


def fired_alarms(timers: Timers) -> list[Timer]:
    return [timers.alarms.pop() for _ in range(len(timers.alarms))]


def test_a_timer_and_an_alarm_of_one_name_replace_each_other() -> None:
    timers = Timers()
    timers.set(A, 5, b"a", "x")
    timers.set_alarm(A, 9, b"a", "x")
    assert (timers.first, fired_alarms(timers)) == (None, [(9, b"ax")])
    timers.set_alarm(A, 9, b"a", "x")
    timers.set(A, 5, b"a", "x")
    assert (timers.first, len(timers.alarms)) == ((5, b"ax"), 0)
    timers.cancel(b"a", "x")
    assert timers.all(A) == []


def test_retired_timers_do_not_fire_and_stay_until_they_are_cancelled_or_replaced() -> None:
    """They go into the last checkpoint as the functions left them."""
    timers = Timers()
    for time, key, name in ((5, b"a", "x"), (6, b"b", "x"), (7, b"c", "x"), (8, b"d", "")):
        timers.set(A, time, key, name)
    timers.start_departure(A, 7)
    timers.retired = True
    assert (timers.first, timers.least, timers.peek(None, 9)) == (None, None, [])
    timers.cancel(b"a", "x")
    timers.cancel(b"c", "x")
    timers.set(A, 9, b"b", "x")
    assert timers.all(A) == [(8, b"d"), (9, tag_of(b"b", "x"))] == timers.departing(A)
    assert (timers.first, timers.least) == (None, None)


def test_a_worker_learns_of_the_end_from_a_bin_whose_timers_are_due_before_its_move() -> None:
    """I1: the worker has no capability for their times."""
    furthest: list[int | None] = [5]
    context: Any = SimpleNamespace(fires_timers=lambda: False, furthest=lambda: furthest[0])
    timers = Timers()
    end = RunEnd(context, timers)
    assert (end.step(), end.limits) == (False, (5,))
    furthest[0] = 3
    assert (end.step(), end.limits) == (False, (5,))
    timers.install(A, [(7, b"a")])
    end.note_arrival(A, 7)
    assert not timers.retired
    end.note_arrival(A, 8)
    assert (timers.retired, timers.least, end.limits) == (True, None, ())


def test_timers_retire_once_no_source_reads() -> None:
    context: Any = SimpleNamespace(fires_timers=lambda: False, furthest=lambda: None)
    timers = Timers()
    end = RunEnd(context, timers)
    assert (end.step(), timers.retired, end.step()) == (True, True, False)
