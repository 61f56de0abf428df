"""Each assigner puts a record into the windows that hold its own time, whatever came before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from meander import SetupError, Window, count, hopping, session, sliding, tumbling
from meander.dataflow.windows.window import Hopping, Sessions

DAY = 86_400
SEEDS = range(200)


@pytest.mark.parametrize(
    ("windows", "event_ms", "wanted"),
    [
        (tumbling(60), 0, [(0, 60_000)]),
        (tumbling(60), 59_999, [(0, 60_000)]),
        (tumbling(60), 60_000, [(60_000, 120_000)]),
        (tumbling(0.001), 7, [(7, 8)]),
        (tumbling(DAY, offset=-3600), 0, [(-3_600_000, 82_800_000)]),
        (tumbling(DAY, offset=-3600), 82_800_000, [(82_800_000, 169_200_000)]),
        (hopping(2, every=1), 999, [(-1000, 1000), (0, 2000)]),
        (hopping(2, every=1), 1000, [(0, 2000), (1000, 3000)]),
        (hopping(3, every=2), 1999, [(0, 3000)]),
        (hopping(3, every=2), 2000, [(0, 3000), (2000, 5000)]),
        (hopping(3, every=2), 3000, [(2000, 5000)]),
        (hopping(60, every=60), 61_000, [(60_000, 120_000)]),
        (session(30), 7, [(7, 30_007)]),
    ],
)
def test_a_record_lies_in_the_windows_of_its_own_time(
    windows: Hopping | Sessions, event_ms: int, wanted: list[tuple[int, int]]
) -> None:
    assert [*windows.assign(event_ms)] == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_hopping_windows_are_all_that_hold_the_time(seed: int) -> None:
    rng = random.Random(seed)
    every = rng.randint(1, 50)
    size, offset = every + rng.randint(0, 200), rng.randrange(every)
    at = rng.randint(0, 1000)
    starts = [s for s in range(at - size - 1, at + 2) if (s - offset) % every == 0]
    wanted = [Window(s, s + size) for s in starts if Window(s, s + size).holds(at)]
    assert [*Hopping(size, every, offset_ms=offset).assign(at)] == wanted
    assert wanted, "each time lies in a window"


def test_a_sliding_window_ends_with_its_record() -> None:
    windows = sliding(2, late=1)
    window = windows.window(5000)
    assert [at for at in range(2990, 5010) if window.holds(at)] == [*range(3001, 5001)]
    assert windows.close(5000) == 6001
    assert windows.last(3001) == windows.close(5000)


@pytest.mark.parametrize(
    ("event_ms", "opened", "wanted", "joined"),
    [
        (50, [], (50, 80), []),
        (29, [(0, 30)], (0, 59), [(0, 30)]),
        (30, [(0, 30)], (30, 60), []),
        (20, [(50, 80)], (20, 50), []),
        (21, [(50, 80)], (21, 80), [(50, 80)]),
        (20, [(0, 30), (40, 70), (100, 130)], (0, 70), [(0, 30), (40, 70)]),
        (5, [(0, 90)], (0, 90), [(0, 90)]),
        # The longest has 100 ms.
        (99, [(0, 100)], (0, 100), [(0, 100)]),
        (100, [(0, 100)], (100, 130), []),
        (80, [(0, 95)], (0, 100), [(0, 95)]),
        (20, [(30, 125)], (20, 50), []),
        (50, [(0, 60), (70, 130)], (0, 80), [(0, 60)]),
        (20, [(0, 30), (25, 100)], (0, 100), [(0, 30), (25, 100)]),
        (99, [(0, 100), (90, 120)], (0, 100), [(0, 100)]),
    ],
)
def test_a_record_joins_the_sessions_that_it_touches(
    event_ms: int, opened: list[tuple[int, int]], wanted: tuple[int, int],
    joined: list[tuple[int, int]],
) -> None:  # fmt: skip
    sessions = Sessions(30, 100)
    (alone,) = sessions.assign(event_ms)
    windows = [Window(*one) for one in opened]
    assert sessions.join(alone, windows) == (wanted, joined)


def sessions_of(sessions: Sessions, times: Sequence[int]) -> list[Window]:
    """The sessions of some records in order, none of which closes."""
    opened = list[Window]()
    for at in times:
        (alone,) = sessions.assign(at)
        window, joined = sessions.join(alone, opened)
        opened = sorted([window, *(one for one in opened if one not in joined)])
    return opened


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_do_not_depend_on_the_order_of_records(seed: int) -> None:
    rng = random.Random(seed)
    gap, times = rng.randint(1, 40), [rng.randint(0, 500) for _ in range(rng.randint(1, 30))]
    wanted, ordered = list[Window](), sorted(times)
    start = ordered[0]
    for before, after in pairwise([*ordered, ordered[-1] + gap]):
        if after - before >= gap:
            wanted.append(Window(start, before + gap))
            start = after
    assert sessions_of(Sessions(gap), times) == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_no_session_is_longer_than_the_longest(seed: int) -> None:
    rng = random.Random(seed)
    gap, times = rng.randint(1, 40), [rng.randint(0, 500) for _ in range(rng.randint(1, 60))]
    longest = gap + rng.randint(0, 60)
    found = sessions_of(Sessions(gap, longest), times)
    assert all(one.end - one.start <= longest for one in found)
    assert all(any(one.holds(at) for one in found) for at in times)
    assert {one.start for one in found} <= {*times}
    assert len({one.start for one in found}) == len(found), "the start tells sessions apart"


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_of_records_in_order_follow_each_other(seed: int) -> None:
    rng = random.Random(seed)
    gap, times = rng.randint(1, 40), sorted(rng.randint(0, 500) for _ in range(40))
    found = sessions_of(Sessions(gap, gap + rng.randint(0, 60)), times)
    assert all(before.end <= after.start for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: tumbling(0), "its size is 0"),
        (lambda: tumbling(True), "its size is True"),
        (lambda: tumbling(float("nan")), "its size is nan"),
        (lambda: tumbling(60, late=-1), "its late is -1"),
        (lambda: tumbling(60, offset="1"), "its offset is '1'"),  # type: ignore[arg-type]
        (lambda: hopping(60, every=61), "one of 60 seconds starts every 61"),
        (lambda: hopping(60, every=0.001), "one of 60 seconds starts every 0.001"),
        (lambda: session(0), "its gap is 0"),
        (lambda: session(30, longest=29), "the longest has 29 seconds"),
        (lambda: sliding(-1), "its size is -1"),
        (lambda: count(0), "its size is 0"),
        (lambda: count(2.0), "its size is 2.0"),  # type: ignore[arg-type]
    ],
)
def test_windows_that_cannot_be_are_refused(make: Callable[[], object], cause: str) -> None:
    with pytest.raises(SetupError, match=cause):
        make()
