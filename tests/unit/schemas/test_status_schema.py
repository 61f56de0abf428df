"""Status events: what is written is read back, and old readers bear newer writers."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from meander.schemas.status import (
    Accepted,
    BinMoved,
    BlockedFrontier,
    CheckpointAccepted,
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
    Migration,
    PartitionAdded,
    PartitionMoved,
    Rescaled,
    Rescaling,
    Started,
    parse_event,
)

EVENTS: list[Event] = [
    Accepted(id="m1", offset=3, time=5, at=5 << 20, strategy="fluid", bins=[0, 1]),
    BinMoved(id="m1", bin=0, source=0, target=1, at=5 << 20, bytes=100, keys=3, ms=1.5),
    Completed(id="m1", ms=12.5, bins=2, bytes=200),
    CommandRejected(id="m2", offset=4, reason="there is no worker 7"),
    Heartbeat(
        driver="d", execution=1, workers=2, heartbeat_timeout=10.0, lag=0, counters={"read": 5},
        frontiers={"sink": 6}, registered=2, bins=[128, 128], inflight=[0, 7], omitted=1,
        moving=[Migration(id="m1", state="moving", strategy="fluid", at_ms=5, bins=2, moved=1)],
    ),
    CheckpointAccepted(id="c1", offset=6),
    Rescaling(id="r1", offset=5, workers=2, joining=[2, 3], leaving=[]),
    Joined(id="r1", worker=2),
    JoinFailed(id="r1", worker=3, reason="worker 3: its process was killed, or crashed"),
    PartitionMoved(id="r1/0.1", source="lines", partition=1, worker=2),
    PartitionAdded(source="lines", partition=4, worker=1, time=5, at=5 << 20),
    Left(id="r2", worker=2, counters={"read": 7}),
    Rescaled(id="r1", workers=3, ms=812.5, reason="the joined workers get no share: it is over"),
    Claimed(driver="d", execution=1, heartbeat_timeout=10.0),
    Started(driver="d", execution=1, workers=2),
    Finished(driver="d", execution=1, counters={"read": 5}),
    Failed(driver="d", execution=1, reason="worker 1 died"),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_events_come_back_as_they_were_written(event: Event) -> None:
    assert parse_event(event.to_bytes()) == event


def test_a_moved_bin_says_from_and_to_in_json() -> None:
    written = json.loads(EVENTS[1].to_bytes())
    assert (written["from"], written["to"]) == (0, 1)


def test_fields_of_newer_writers_are_passed_over() -> None:
    newer = json.loads(EVENTS[3].to_bytes()) | {"hint": "later"}
    assert parse_event(json.dumps(newer).encode()) == EVENTS[3]


def test_kinds_of_newer_writers_are_kept_as_they_are() -> None:
    """An older `meander status` shows all else that a newer flow says."""
    blocked = BlockedFrontier(
        probe="s", by="the moon", since_ms=5, awaited=True, kind="moon", name=""
    )
    took = Latency(of="eclipse", name="s", count=1, seconds=0.1, p50=0.1, p99=0.1)
    newer = structs.replace(EVENTS[4], frontier_blockers=[blocked], latencies=[took])
    assert parse_event(newer.to_bytes()) == newer


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="party"):
        parse_event(b'{"type":"party"}')
