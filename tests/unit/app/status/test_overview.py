"""What `meander status` says follows from the events alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from meander.app.status.overview import MAX_WORKER_CHANGES, Overview, note, overview
from meander.connectors.topics.status import StatusRecord
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinMoved,
    Claimed,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Joined,
    JoinFailed,
    Latency,
    Left,
    LinkQueue,
    Migration,
    PartitionFrontier,
    Started,
)


def seen(*events: Event) -> Overview:
    return overview("f", [StatusRecord(i, 1000 + i, event) for i, event in enumerate(events)])


def beat(
    *moving: Migration,
    bins: Sequence[int] = (),
    driver: str = "d",
    omitted: int = 0,
    **counters: int,
) -> Heartbeat:
    return Heartbeat(
        driver=driver, execution=1, workers=2, registered=len(bins), heartbeat_timeout=10.0,
        lag=7, counters=counters, frontiers={"per.plane": 5} if bins else {}, bins=list(bins),
        inflight=[0] * len(bins), moving=list(moving), omitted=omitted,
    )  # fmt: skip


def accepted(name: str) -> Accepted:
    return Accepted(id=name, offset=0, time=5, at=5 << 20, strategy="fluid", bins=[1, 2])


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
    return msgspec.convert(fields, BinMoved)


CLAIMED = Claimed(driver="d", execution=1, heartbeat_timeout=10.0)
STARTED = Started(driver="d", execution=1, workers=2)
FINISHED = Finished(driver="d", execution=1, counters={"read": 9})
FAILED = Failed(driver="d", execution=1, reason="worker 1 died")


def test_a_flow_is_starting_running_and_then_ended() -> None:
    assert seen().state == "never started"
    assert seen(beat()).state == "starting"
    assert seen(beat(), STARTED).state == "running"
    assert seen(beat(bins=[1, 1])).state == "running"
    assert seen(beat(), STARTED, FINISHED).state == "finished"
    failed = seen(beat(), STARTED, FAILED)
    assert (failed.state, failed.reason) == ("failed", "worker 1 died")
    assert seen(beat(), STARTED, FAILED, beat()).state == "starting"


def test_a_flow_starts_with_the_claim_of_a_driver() -> None:
    claimed = seen(CLAIMED)
    assert claimed.state == "starting"
    assert not claimed.silent(1_000 + 9_999) and claimed.silent(1_000 + 10_001)
    assert seen(CLAIMED, FAILED).state == "failed"
    again = Claimed(driver="e", execution=2, heartbeat_timeout=10.0)
    assert seen(CLAIMED, beat(), FAILED, again).state == "starting"


def test_an_interrupted_start_reads_as_stopped() -> None:
    assert seen(CLAIMED, beat(), FINISHED).state == "stopped"
    assert seen(CLAIMED, beat(), STARTED, FINISHED).state == "finished"


def test_a_claim_without_a_run_leaves_the_state_of_the_flow() -> None:
    claim = Claimed(driver="e", execution=2, heartbeat_timeout=60.0)
    end = Finished(driver="e", execution=2, counters={})
    failed = seen(CLAIMED, beat(), STARTED, FAILED, claim, end)
    assert (failed.state, failed.reason) == ("failed", "worker 1 died")
    assert seen(claim, end).state == "never started"


def test_worker_changes_of_this_execution_are_known() -> None:
    came, lost = Joined(id="r1", worker=2), JoinFailed(id="r1", worker=3, reason="it died")
    left = Left(id="r2", worker=2, counters={})
    known = seen(CLAIMED, beat(bins=[1, 1]), came, lost, left)
    assert known.worker_changes == [came, lost, left]
    assert seen(beat(), came, beat(driver="next")).worker_changes == []
    many = seen(beat(), *[Joined(id="r1", worker=n) for n in range(100)])
    assert [one.worker for one in many.worker_changes] == list(range(100 - MAX_WORKER_CHANGES, 100))


def test_workers_are_known_by_their_numbers() -> None:
    later = structs.replace(beat(bins=[100, 156]), worker_ids=[0, 3])
    assert seen(later).heartbeat.worker_ids == [0, 3]


def test_the_last_heartbeat_says_counters_frontiers_bins_and_lag() -> None:
    last = seen(beat(bins=[1, 255], read=2), beat(bins=[100, 156], read=3))
    assert last.heartbeat.counters == {"read": 3}
    assert last.heartbeat.frontiers == {"per.plane": 5}
    assert last.heartbeat.bins == [100, 156]
    assert last.heartbeat.lag == 7


def test_links_partitions_and_durations_are_those_of_the_last_heartbeat() -> None:
    said = {
        "queues": [LinkQueue(worker=0, to=1, bytes=70)],
        "partitions": [PartitionFrontier(source="in", partition=3, worker=1, millis=5)],
        "latencies": [Latency(of="delivery", name="n", count=2, seconds=0.5, p50=0.3, p99=None)],
    }
    omitted = {f"{name}_omitted": n for n, name in enumerate(said, 1)}
    known = seen(structs.replace(beat(bins=[1, 1]), **(said | omitted)))
    assert {name: getattr(known.heartbeat, name) for name in said | omitted} == said | omitted


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


def test_of_a_completed_migration_it_is_known_which_bins_had_not_to_move() -> None:
    done = Completed(id="m", ms=3.0, bins=1, bytes=10)
    known = seen(accepted("m"), moved("m", 1), done).migrations["m"]
    assert (known.bins, known.moved, known.already_there) == (2, 1, 1)
    left = structs.replace(done, unmoved=[2])
    assert seen(accepted("m"), moved("m", 1), left).migrations["m"].already_there == 0


def test_an_aborted_migration_says_why_where_its_moves_are_unknown() -> None:
    aborted = Aborted(id="m", by="", reason="the flow has ended", offset=0)
    known = seen(accepted("m"), moved("m", 1), aborted).migrations["m"]
    assert (known.state, known.reason) == ("aborted", "the flow has ended")
    assert (known.moved, known.already_there, known.ms) == (1, 0, None)
    waited = Aborted("n", "a", 0.0, 0, 0, [1], "command 'a' has aborted it before it began", 1)
    assert seen(waited).migrations["n"].state == "aborted"
    assert not seen(structs.replace(aborted, id="rescale")).migrations


def test_a_second_command_under_an_id_does_not_hide_the_first() -> None:
    twice = seen(accepted("m"), CommandRejected(id="m", offset=1, reason="its id was used before"))
    assert twice.migrations["m"].state == "moving"
    other = seen(CommandRejected(id="n", offset=2, reason="no such bin")).migrations["n"]
    assert (other.state, other.reason) == ("rejected", "no such bin")


def test_reading_may_begin_at_any_heartbeat_without_losing_what_moves() -> None:
    """A migration under way is shown however long ago it was accepted."""
    events: list[Event] = [accepted("early"), moved("early", 1)]
    known: dict[str, Migration] = {}
    for event in events:
        note(known, event)
    later: list[Event] = [beat(*known.values(), bins=[1, 1]), moved("early", 2), accepted("late")]

    whole, part = seen(CLAIMED, beat(), *events, *later), seen(*later)

    assert part.migrations == whole.migrations
    assert (part.migrations["early"].moved, part.migrations["early"].bytes) == (2, 20)
    assert [one.state for one in part.migrations.values()] == ["moving", "moving"]


def test_the_start_of_known_migrations_is_reported() -> None:
    done = Completed(id="m", ms=3.0, bins=2, bytes=20)
    assert seen(CLAIMED, beat(), accepted("m"), done, beat()).since_ms is None
    in_midst = seen(done, beat(), beat())
    assert (in_midst.since_ms, in_midst.migrations) == (1001, {})


def test_a_new_execution_starts_without_earlier_migrations() -> None:
    before: list[Event] = [CLAIMED, beat(), accepted("m"), FAILED]
    assert seen(*before).migrations["m"].state == "ended"
    claim = Claimed(driver="e", execution=2, heartbeat_timeout=10.0)
    again = seen(*before, claim, beat(driver="e"))
    assert (again.state, again.reason, again.migrations) == ("starting", "", {})
    assert again.since_ms is None


def test_another_drivers_claim_changes_nothing() -> None:
    alone = seen(CLAIMED, beat(), STARTED, beat(bins=[1, 1]))
    claim = Claimed(driver="e", execution=2, heartbeat_timeout=10.0)
    claimed = seen(CLAIMED, beat(), STARTED, beat(bins=[1, 1]), claim)
    for one in (claimed, alone):
        assert (one.state, one.heartbeat.bins, one.heartbeat_ms) == ("running", [1, 1], 1003)


def test_how_many_more_migrations_move_than_heartbeats_tell_of_is_known() -> None:
    one = Migration(id="a", state="moving", bins=2)
    assert seen(beat(one, omitted=3)).omitted == 3
    known = seen(CLAIMED, beat(), accepted("a"), accepted("b"), beat(one, omitted=3))
    assert known.omitted == 2
