"""Times are a partial order, antichains are lower bounds, and counts give the right one (I1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.schemas.control import MAX_MILLIS
from meander.state.times import antichain
from meander.state.times.antichain import STALE_TIMES, Antichain, MutableAntichain, minimal
from meander.state.times.time import (
    Time,
    checked_millis,
    from_millis,
    join,
    less_equal,
    less_than,
    meet,
    to_millis,
)

SMALL = st.integers(0, 4)
Scope = st.SearchStrategy[Time]
SCOPES: list[Scope] = [SMALL, st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL, SMALL)]


@st.composite
def times(draw: st.DrawFn, most: int = 8) -> list[Time]:
    """Some times of one scope."""
    scope: Scope = draw(st.sampled_from(SCOPES))
    return draw(st.lists(scope, min_size=1, max_size=most))


@st.composite
def three(draw: st.DrawFn) -> tuple[Time, Time, Time]:
    scope: Scope = draw(st.sampled_from(SCOPES))
    return draw(scope), draw(scope), draw(scope)


def covers(bound: Antichain, time: Time) -> bool:
    """By definition: some element is before the time or at it."""
    return any(less_equal(element, time) for element in bound.times)


# -- times


@given(three())
def test_less_equal_is_a_partial_order(some: tuple[Time, Time, Time]) -> None:
    a, b, c = some
    assert less_equal(a, a)
    if less_equal(a, b) and less_equal(b, a):
        assert a == b
    if less_equal(a, b) and less_equal(b, c):
        assert less_equal(a, c)
    assert less_than(a, b) == (less_equal(a, b) and a != b)


@given(three())
def test_join_and_meet_are_the_least_and_the_greatest_bound(
    some: tuple[Time, Time, Time],
) -> None:
    a, b, c = some
    assert less_equal(a, join(a, b)) and less_equal(b, join(a, b))
    assert less_equal(meet(a, b), a) and less_equal(meet(a, b), b)
    if less_equal(a, c) and less_equal(b, c):
        assert less_equal(join(a, b), c)
    if less_equal(c, a) and less_equal(c, b):
        assert less_equal(c, meet(a, b))


def test_the_outer_scope_is_totally_ordered_and_a_nested_one_is_not() -> None:
    assert less_equal(1, 2) or less_equal(2, 1)
    assert not less_equal((1, 2), (2, 1)) and not less_equal((2, 1), (1, 2))


@pytest.mark.parametrize("operation", [less_equal, join, meet])
@pytest.mark.parametrize(("left", "right"), [(1, (1, 0)), ((1, 0), 1)])
def test_times_of_different_scopes_are_not_compared(
    operation: object, left: Time, right: Time
) -> None:
    assert callable(operation)
    with pytest.raises(TypeError, match="different scopes"):
        operation(left, right)


def test_times_of_different_depths_are_not_compared() -> None:
    with pytest.raises(ValueError):
        less_equal((1, 2), (1, 2, 3))


@given(st.integers(-(1 << 42), 1 << 42), st.integers(0, (1 << 20) - 1))
def test_milliseconds_and_a_sequence_make_one_time_in_their_order(ms: int, sequence: int) -> None:
    time = from_millis(ms, sequence)
    assert to_millis(time) == ms
    assert from_millis(ms) <= time < from_millis(ms + 1)
    assert -(1 << 63) <= time < 1 << 63


def test_milliseconds_that_somebody_says_are_kept_within_what_a_time_can_hold() -> None:
    assert checked_millis(MAX_MILLIS) == MAX_MILLIS
    assert from_millis(checked_millis(MAX_MILLIS), (1 << 20) - 1) == (1 << 63) - 1
    assert checked_millis(-1) == 0
    with pytest.raises(ValueError, match="beyond the year 2248"):
        checked_millis(MAX_MILLIS + 1)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
def test_an_integer_of_another_library_is_a_time_as_a_plain_int(kind: type[np.integer]) -> None:
    assert (checked_millis(kind(7)), type(checked_millis(kind(7)))) == (7, int)


@pytest.mark.parametrize("said", [7.0, np.float64(7), "7", None, True, np.True_, np.array([7, 8])])
def test_what_is_no_whole_number_is_no_time(said: object) -> None:
    with pytest.raises(ValueError, match="a time is whole milliseconds since 1970, not "):
        checked_millis(said)


# -- antichains


@given(times())
def test_an_antichain_holds_the_minimal_elements_each_once(some: list[Time]) -> None:
    bound = Antichain.of(*some)
    assert set(bound) == {t for t in some if not any(less_than(other, t) for other in some)}
    assert len(bound.times) == len(set(bound.times))
    assert minimal(reversed(some)) is not None and set(minimal(reversed(some))) == set(bound)


@given(times(), st.data())
def test_a_bound_says_what_may_still_come(some: list[Time], data: st.DataObject) -> None:
    time = data.draw(st.sampled_from(some))
    rest = data.draw(st.lists(st.sampled_from(some)))
    bound = Antichain.of(*rest)
    assert bound.less_equal(time) == covers(bound, time)
    assert bound.less_than(time) == any(less_than(element, time) for element in rest)
    assert bool(bound) == bool(rest)


@given(times(), times(), st.data())
def test_meet_is_the_greatest_lower_bound(
    left: list[Time], right: list[Time], data: st.DataObject
) -> None:
    right = [data.draw(st.sampled_from(left)) for _ in right]
    a, b = Antichain.of(*left[: len(left) // 2]), Antichain.of(*right)
    both = a.meet(b)
    assert both.dominates(a) and both.dominates(b)
    for time in left:
        assert both.less_equal(time) == (a.less_equal(time) or b.less_equal(time))


def test_the_empty_antichain_bounds_nothing() -> None:
    nothing = Antichain()
    assert not nothing.less_equal(0) and not nothing.less_than(1 << 62)
    assert Antichain.of(3).meet(nothing) == Antichain.of(3)
    assert Antichain.of(3).dominates(nothing) and not nothing.dominates(Antichain.of(3))


# -- counts


def test_the_least_of_many_times_is_found_without_a_look_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sink with a pointstamp per record has to be no slower by the record."""
    looked = 0

    def counted(times: Iterable[Time]) -> tuple[Time, ...]:
        nonlocal looked
        given = tuple(times)
        looked += len(given)
        return minimal(given)

    monkeypatch.setattr(antichain, "minimal", counted)
    for every in ([*range(2000)], [(time, time % 3) for time in range(2000)]):
        looked, held = 0, MutableAntichain()
        for time in every:
            held.update(time, 1)
        for time in every:
            held.update(time, -1)
        assert held.is_empty() and looked <= 12 * len(every)


def test_times_that_come_and_go_behind_the_least_leave_nothing() -> None:
    """I6."""
    held = MutableAntichain()
    held.update(0, 1)
    for time in range(1, 5000):
        held.update(time, 1)
        held.update(time, -1)
    assert held._queued == sum(map(len, held._heaps.values())) <= 2 * STALE_TIMES


@given(times(), st.data())
def test_counts_bound_what_is_positive_through_any_order_of_updates(
    some: list[Time], data: st.DataObject
) -> None:
    """I1: counts may be negative for a while; only positive ones bound, and all of them do."""
    updates = data.draw(
        st.lists(st.tuples(st.sampled_from(some), st.sampled_from([-2, -1, 1, 2])), max_size=30)
    )
    held = MutableAntichain()
    counts: Counter[Time] = Counter()
    for time, delta in updates:
        before = set(held.frontier)
        changed = held.update(time, delta)
        counts[time] += delta
        positive = [t for t, n in counts.items() if n > 0]
        assert set(held.frontier) == set(minimal(positive))
        assert set(held.positive()) == set(positive)
        assert changed == (set(held.frontier) != before)
        assert held.is_empty() == (not any(counts.values()))
