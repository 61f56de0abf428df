"""Runs of records are the sessions that the records make one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from meander.dataflow.windows.session_runs import runs_of
from meander.dataflow.windows.window import Sessions, Window


def one_by_one(
    windows: Sessions, times: list[tuple[int, int]], before: Window | None
) -> Window | None:
    """Return the one session of a key behind records of own and logical times, or None where it has
    another number of sessions, a record is late, or the session is cut at its greatest length."""
    opened = before
    for at, now in times:
        alone = Window(at, at + windows.gap_ms)
        held = [] if opened is None else [opened]
        window, joined = windows.join(
            alone, [one for one in held if one.end + windows.late_ms > now]
        )
        if len(joined) != len(held) or window.end + windows.late_ms <= now:
            return None
        if opened is not None and max(opened.end, alone.end) > window.end:
            return None
        opened = window
    return opened


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_those_of_single_records(seed: int) -> None:
    rng = random.Random(seed)
    windows = Sessions(10, rng.choice([10, 25, 1 << 40]), rng.choice([0, 15]))
    keys, now = rng.randrange(1, 6), 100
    before = [
        Window(start, start + rng.randrange(10, 26)) if rng.random() < 0.6 else None
        for start in (rng.randrange(70, 100) for _ in range(keys))
    ]
    before = [one if one and one.end - one.start <= windows.longest_ms else None for one in before]
    numbers, own, logical = list[int](), list[int](), list[int]()
    for number in [*range(keys), *(rng.randrange(keys) for _ in range(12))]:
        now += rng.randrange(3)
        numbers.append(number)
        own.append(now - rng.choice([0, 0, 0, 4, 12]))
        logical.append(now)
    has = np.array([one is not None for one in before])
    starts, ends = (np.array([one[n] if one else 0 for one in before]) for n in (0, 1))
    runs = runs_of(windows, np.array(numbers), np.array(own), np.array(logical), has, starts, ends)
    for number in range(keys):
        times = [(a, n) for k, a, n in zip(numbers, own, logical, strict=True) if k == number]
        wanted = one_by_one(windows, times, before[number])
        found = Window(int(runs.starts[number]), int(runs.ends[number]))
        assert (found if runs.found[number] else None) == wanted
        assert runs.last[number] == times[-1][1]
