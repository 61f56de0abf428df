"""Load that comes whatever happens, and what is made of the latencies it meets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.load import KEY
from benchmarks.open_loop import Lost, records, timed
from meander.app.measurement.latencies import Timeline, back
from meander.app.measurement.open_loop import Measured, Wave

WAVES = [Wave.fixed(7), Wave(3, 11, period=2), Wave(0, 40, period=0.5)]


@pytest.mark.parametrize("wave", WAVES, ids=str)
def test_a_record_is_due_at_its_time_and_not_before(wave: Wave) -> None:
    for number in range(200):
        at = wave.at(number)
        assert wave.due(at - 1e-6) <= number
        assert wave.due(at + 1e-6) >= number


@pytest.mark.parametrize("wave", WAVES, ids=str)
def test_a_wave_never_takes_a_record_back(wave: Wave) -> None:
    due = [wave.due(tick / 100) for tick in range(1000)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(due))


def test_a_square_wave_is_high_in_the_second_half_of_each_period() -> None:
    wave = Wave(300, 900, period=2)
    assert [wave.due(second + 1) - wave.due(second) for second in range(4)] == [300, 900, 300, 900]


def test_a_value_says_when_it_was_due_and_a_millisecond_goes_to_one_partition() -> None:
    dues = [1_700_000_000 + number / 10_000 for number in range(40)]
    sent = [*records(iter(dues), partitions=2, keys=100, skewed=False)]
    assert [int(one.value[KEY:]) for one in sent] == [int(due * 1e6) for due in dues]
    assert all(one.value.startswith(one.key) for one in sent)
    by_millisecond = {(int(one.value[KEY:]) // 1000, one.partition) for one in sent}
    assert len(by_millisecond) == len({millisecond for millisecond, _ in by_millisecond})
    assert {one.partition for one in sent} == {0, 1}


def timeline(p99: list[float]) -> Timeline:
    """Ten records in each second from 100 on, all equally late."""
    due = np.arange(100, 100 + len(p99), 0.1)
    return Timeline.of(due, np.repeat(np.array(p99, np.float64), 10))


def test_records_are_looked_at_by_when_they_were_due() -> None:
    found = Timeline.of(np.array([3.0, 1.0, 2.0]), np.array([30.0, 10.0, 20.0]))
    assert found.between(1, 3).took.tolist() == [10, 20]
    latency = found.summary()
    assert (latency.p50_ms, latency.max_ms) == (20, 30)


def test_a_run_that_loses_a_record_measures_nothing() -> None:
    due = np.array([1.0, 2.0])
    came = np.array([2_000_000, 1_000_000]), np.array([2.03, 1.01])
    assert timed(Measured(due, *came)).took == pytest.approx([10, 30])
    with pytest.raises(Lost, match="1 of 3 records have no result"):
        timed(Measured(np.array([1.0, 2.0, 3.0]), *came))


@pytest.mark.parametrize(
    ("p99", "disturbed"),
    [
        ([20, 30, 25, 60], False),
        # One second is enough,
        ([20, 30, 25, 100], True),
        # much to do in all of them is not,
        ([200, 300, 250, 600], False),
        # nor is a backlog that only grows.
        ([100, 200, 300, 400, 500], False),
    ],
)
def test_a_second_far_from_the_one_in_the_middle_disturbs_a_run(
    p99: list[float], disturbed: bool
) -> None:
    due = 100 + np.arange(1000 * len(p99)) / 1000
    assert Timeline.of(due, np.repeat(np.array(p99, np.float64), 1000)).disturbed == disturbed


def test_a_slice_without_a_record_has_no_latency() -> None:
    found = Timeline.of(np.array([0.05, 0.06, 0.25]), np.array([1.0, 3.0, 5.0]))
    slices = found.slices(0, 0.4, 0.1)
    assert slices.shape == (4, 3)
    assert slices[[0, 2]].tolist() == [[2, pytest.approx(2.98), 3], [5, 5, 5]]
    assert np.isnan(slices[[1, 3]]).all()


@pytest.mark.parametrize(
    ("p99", "busy", "seconds"),
    [
        ([5, 5, 5], 2, 0),
        ([5, 90, 5, 5], 2, 2),
        # Quiet between two bins is no recovery,
        ([5, 90, 5, 90, 5, 5], 4, 4),
        # a backlog that outlasts the move is none either,
        ([90, 90, 90, 90, 5], 1, 4),
        # what comes long after the move is not its doing,
        ([90, 5, 5, 5, 90, 5], 1, 1),
        # and a second in which nothing was due says nothing.
        ([90, float("nan"), 5], 1, 2),
        ([5, 90, 90], 2, None),
    ],
)
def test_latency_is_back_when_it_stays_back(
    p99: list[float], busy: float, seconds: float | None
) -> None:
    assert back(p99, busy, limit=6) == seconds


def test_latency_is_judged_by_whole_seconds_since_the_command() -> None:
    assert timeline([5, 5, 90, 90, 5, 5]).back(102, busy=1, limit=6) == 2
