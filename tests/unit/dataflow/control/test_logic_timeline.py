"""A record has the last version whose time is not behind its own time."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.control.logic_timeline import LogicTimeline
from meander.state.times.time import MIN_TIME

TIMES = st.lists(st.integers(MIN_TIME, 20), max_size=6)


def timeline_of(changes: list[int]) -> LogicTimeline[int]:
    """Version n + 1 begins at `changes[n]`, and version 0 at the beginning."""
    timeline = LogicTimeline(0)
    for n, time in enumerate(changes, 1):
        timeline.add(time, n)
    return timeline


def expected(changes: list[int], time: int) -> int:
    """The version of the latest time; of one time, that which was added last."""
    known = [(MIN_TIME, 0), *((at, n) for n, at in enumerate(changes, 1))]
    return max(one for one in known if one[0] <= time)[1]


@given(TIMES)
def test_each_time_has_the_last_version_that_began_before_or_at_it(changes: list[int]) -> None:
    timeline = timeline_of(changes)
    for time in range(MIN_TIME, 23):
        assert timeline.at(time) == expected(changes, time)


@given(TIMES, st.integers(MIN_TIME, 22))
def test_the_next_change_is_the_least_later_time(changes: list[int], time: int) -> None:
    later = min((at for at in changes if at > time), default=None)
    assert timeline_of(changes).next_change(time) == later


@given(TIMES, st.lists(st.integers(MIN_TIME, 22), max_size=9))
def test_a_slice_ends_before_the_first_record_of_another_version(
    changes: list[int], times: list[int]
) -> None:
    """Also where times are in no order, as on arrival."""
    begins = [bisect_right(sorted(changes), time) for time in times]
    same = [begin == begins[0] for begin in begins]
    count = timeline_of(changes).count_equal(np.array(times, np.int64))
    assert count == (same.index(False) if False in same else len(times))


def test_a_later_decision_for_the_same_time_replaces_the_earlier_one() -> None:
    assert timeline_of([5, 5]).at(5) == 2
    assert timeline_of([5, 5]).at(4) == 0
