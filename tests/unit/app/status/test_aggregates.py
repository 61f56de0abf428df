"""What links, partitions and durations are shown follows from the workers' beats alone."""

from __future__ import annotations

from msgspec import structs

from meander.app.status.aggregates import latencies, operator_durations, partitions, queues
from meander.app.status.worker_stats import WorkerStats
from meander.schemas.status import Latency, LinkQueue, PartitionFrontier
from meander.state.keys.ids import WorkerId
from tests.support.status.heartbeats import ONE, ZERO, beat, durations

BOTH = WorkerStats({ZERO: beat(1, {1: 70}, {1: 30}), ONE: beat(2, {0: 35}, {0: 20})})


def test_what_a_peer_has_taken_is_on_its_link_no_more() -> None:
    assert queues(BOTH) == [
        LinkQueue(worker=0, to=1, bytes=50),
        LinkQueue(worker=1, to=0, bytes=5),
    ]


def test_a_link_to_one_that_has_left_is_none() -> None:
    assert queues(WorkerStats({ZERO: beat(1, {1: 70}, {1: 30})})) == []


def test_the_earliest_partition_comes_first() -> None:
    shown = partitions(BOTH)
    assert [one.millis for one in shown] == [5000, 5000, 7000, 7000]
    assert shown[0] == PartitionFrontier(source="lines", partition=1, worker=0, millis=5000)


def test_durations_are_those_of_all_workers_also_of_those_that_have_left() -> None:
    left = WorkerStats({ZERO: beat(1, {}, {})}).without(beat(2, {}, {}))
    assert (
        latencies(left)
        == latencies(BOTH)
        == [
            Latency(of="delivery", name="lines", count=4, seconds=0.001, p50=0.0003, p99=0.0003),
        ]
    )
    assert (
        operator_durations(left)
        == operator_durations(BOTH)
        == {"count": durations(8, 2, seconds=1.0)}
    )


def test_what_has_not_been_timed_is_left_out() -> None:
    quiet = structs.replace(beat(1, {}, {}), operators={}, sources={})
    assert latencies(WorkerStats({WorkerId(0): quiet})) == []
