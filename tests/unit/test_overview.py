"""What `meander status` says follows from the events alone."""

from __future__ import annotations

from app.overview import Overview, overview
from connectors.status import Told
from schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
)


def seen(*events: Event) -> Overview:
    return overview("f", [Told(i, 1000 + i, event) for i, event in enumerate(events)])


def beat(*bins: int, frontiers: dict[str, int] | None = None, **counters: int) -> Heartbeat:
    return Heartbeat(
        driver="d", incarnation=1, workers=2, lease=10.0, lag=7, counters=counters,
        frontiers=frontiers or {}, bins=list(bins),
    )  # fmt: skip


def accepted(name: str) -> Accepted:
    return Accepted(id=name, time=5, at=5 << 20, strategy="fluid", bins=[1, 2])


def moved(name: str, bin: int) -> BinMoved:
    fields = {
        "id": name,
        "bin": bin,
        "from": 0,
        "to": 1,
        "at": 1,
        "bytes": 10,
        "keys": 2,
        "ms": 1.0,
    }
    return BinMoved.model_validate(fields)


STARTED = Started(driver="d", incarnation=1, workers=2)
FINISHED = Finished(driver="d", incarnation=1, counters={"read": 9})
FAILED = Failed(driver="d", incarnation=1, reason="worker 1 died")


def test_a_flow_is_starting_running_and_then_ended() -> None:
    assert seen().state == "never started"
    assert seen(beat()).state == "starting"
    assert seen(beat(), STARTED).state == "running"
    assert seen(beat(1, 1)).state == "running"
    assert seen(beat(), STARTED, FINISHED).state == "finished"
    failed = seen(beat(), STARTED, FAILED)
    assert (failed.state, failed.reason) == ("failed", "worker 1 died")
    assert seen(beat(), STARTED, FAILED, beat()).state == "starting"


def test_the_last_heartbeat_says_counters_frontiers_bins_and_lag() -> None:
    last = seen(beat(1, 255, read=2), beat(100, 156, frontiers={"per.plane": 5}, read=3))
    assert last.counters == {"read": 3}
    assert last.frontiers == {"per.plane": 5}
    assert last.bins == [100, 156]
    assert last.lag == 7


def test_only_a_flow_that_should_be_alive_can_be_silent() -> None:
    assert seen(beat()).silent(now_ms=1000 + 10_001)
    assert not seen(beat()).silent(now_ms=1000 + 10_000)
    assert not seen(beat(), FINISHED).silent(now_ms=10**9)


def test_a_migration_is_followed_bin_by_bin() -> None:
    moving = seen(accepted("m"), moved("m", 1)).migrations["m"]
    assert (moving.state, moving.moved, moving.bins) == ("moving", 1, 2)
    assert (moving.bytes, moving.keys) == (10, 2)
    done = Completed(id="m", ms=3.0, bins=2, bytes=20)
    assert seen(accepted("m"), moved("m", 1), done).migrations["m"].state == "completed"
    assert seen(accepted("m"), moved("m", 1), FAILED).migrations["m"].state == "ended"


def test_a_second_command_under_an_id_does_not_hide_the_first() -> None:
    twice = seen(accepted("m"), CommandRejected(id="m", reason="its id was used before"))
    assert twice.migrations["m"].state == "moving"
    other = seen(CommandRejected(id="n", reason="no such bin")).migrations["n"]
    assert (other.state, other.reason) == ("rejected", "no such bin")
