"""A flow restarts after failures that lie apart, and fails after too many that lie together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meander.app.driver.restarts import LONGEST_PAUSE, Restarts


def pauses(restarts: Restarts, times: Sequence[float]) -> list[float | None]:
    return [restarts.pause_after(now, progressed=False) for now in times]


def test_pauses_double_up_to_the_longest_one() -> None:
    found = pauses(Restarts(attempts=9, backoff=2.0, window=600.0), range(10))
    assert found == [0, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE, None]


def test_a_failure_counts_for_the_seconds_of_the_window() -> None:
    restarts = Restarts(attempts=2, backoff=1.0, window=100.0)
    assert pauses(restarts, [0.0, 50.0, 100.0, 151.0, 152.0, 153.0]) == [0, 1, 1, 1, None, None]


def test_a_checkpoint_begins_the_count_anew() -> None:
    restarts = Restarts(attempts=1, backoff=1.0, window=100.0)
    assert restarts.pause_after(0.0, progressed=False) == 0
    assert restarts.pause_after(1.0, progressed=True) == 0
    assert restarts.pause_after(2.0, progressed=False) is None


@pytest.mark.parametrize("backoff", [0.0, 1.0])
def test_a_flow_without_attempts_fails_at_its_first_failure(backoff: float) -> None:
    assert (
        Restarts(attempts=0, backoff=backoff, window=1.0).pause_after(0, progressed=False) is None
    )
