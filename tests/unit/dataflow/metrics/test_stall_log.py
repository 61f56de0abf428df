"""A wait is explained once when it has become long, and once when it is over."""

from __future__ import annotations

import pytest

from meander.dataflow.metrics.stall_log import GRACE, StallLog, Wait
from meander.dataflow.simulation.simulator import SimClock

SLOT = Wait("spark_slot", "another task has ended", {"worker": 1})
BIN = Wait("bin", "worker 1 has installed it", {"bin": 7})


class Watched:
    """Waits whose lines are read here."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = SimClock(now_ms=1_700_000_000_000)
        self.waits = StallLog(self.clock)
        self._caplog = caplog

    def look(self, *waits: Wait, kind: str = "any") -> list[str]:
        """What is said at a look."""
        self._caplog.clear()
        self.waits.update(kind, {wait.what: wait for wait in waits})
        return self._caplog.messages


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level("INFO", "meander.waits")
    return Watched(caplog)


def test_a_short_wait_is_not_worth_a_word(watched: Watched) -> None:
    assert watched.look(SLOT) == []
    watched.clock.advance(0.9 * GRACE)
    assert watched.look(SLOT) == []
    assert watched.look() == []


def test_a_long_wait_is_explained_once_and_its_end_is_logged(watched: Watched) -> None:
    watched.look(SLOT)
    watched.clock.advance(GRACE)
    assert watched.look(SLOT) == [
        'waiting for=spark_slot worker=1 since=22:13:20 until="another task has ended"'
    ]
    for _ in range(100):
        watched.clock.advance(1)
        assert watched.look(SLOT) == []
    assert watched.look() == ["waited for=spark_slot worker=1 seconds=101.0"]
    assert watched.look() == []


def test_a_wait_that_comes_again_is_another(watched: Watched) -> None:
    for _ in range(2):
        assert watched.look(SLOT) == []
        watched.clock.advance(GRACE)
        assert len(watched.look(SLOT)) == 1
        assert watched.look() == ["waited for=spark_slot worker=1 seconds=1.0"]


def test_short_waits_one_after_another_do_not_add_up(watched: Watched) -> None:
    for _ in range(10):
        assert watched.look(SLOT) == []
        watched.clock.advance(0.9 * GRACE)
        assert watched.look() == []


def test_concurrent_waits_are_distinguished(watched: Watched) -> None:
    watched.look(SLOT)
    watched.clock.advance(0.5 * GRACE)
    watched.look(SLOT, BIN)
    watched.clock.advance(0.5 * GRACE)
    assert [line.split('"')[-2] for line in watched.look(SLOT, BIN)] == [SLOT.until]
    watched.clock.advance(0.5 * GRACE)
    assert [line.split('"')[-2] for line in watched.look(SLOT, BIN)] == [BIN.until]
    assert watched.look(SLOT) == ["waited for=bin bin=7 seconds=1.0"]


def test_a_look_at_one_kind_ends_no_wait_of_another(watched: Watched) -> None:
    watched.look(SLOT, kind="Spark")
    watched.clock.advance(GRACE)
    assert watched.look(kind="bins") == []
    assert len(watched.look(SLOT, kind="Spark")) == 1


def test_it_is_explained_as_it_is_when_it_has_become_long(watched: Watched) -> None:
    watched.waits.update("any", {"m1": Wait("3 bins", "...")})
    watched.clock.advance(GRACE)
    watched.waits.update("any", {"m1": Wait("2 bins", "...")})
    assert watched.look() == ['waited for="2 bins" seconds=1.0']
