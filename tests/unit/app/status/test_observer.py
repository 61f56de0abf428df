"""What is seen of a running flow, look by look."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from meander.app.protocol.messages import Durations, OperatorStats, SourceStats, WorkerHeartbeat
from meander.app.status.metrics import MetricsCollector
from meander.app.status.observer import Observer, StatusSnapshot
from meander.app.status.worker_stats import WorkerStats
from meander.dataflow.coordinator.frontier_blockers import FrontierBlocker, Kind
from meander.dataflow.metrics.histogram import BOUNDS
from meander.dataflow.simulation.simulator import NOW_MS, SimClock
from meander.state.keys.ids import WorkerId
from tests.support.status.heartbeats import durations, read, text

NONE = Durations(counts=[0] * (len(BOUNDS) + 1), seconds=0.0)


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def observer(clock: SimClock) -> Observer:
    return Observer(clock)


def beat(*lanes: tuple[int, int, str], received: int = 0, sent: int = 0) -> WorkerHeartbeat:
    """Of a worker with (partition, time, state) of source `in`, and an operator `n`."""
    reading = msgspec.convert(
        {
            "partitions": [lane[0] for lane in lanes],
            "times": [lane[1] for lane in lanes],
            "states": [lane[2] for lane in lanes],
            "delays": NONE,
        },
        SourceStats,
    )
    work = OperatorStats(received=received, sent=sent, busy=0.0, durations=NONE)
    return WorkerHeartbeat(
        counters={"read": received}, sources={"in": reading}, operators={"n": work}
    )


def heard(*beats: WorkerHeartbeat) -> WorkerStats:
    """Of workers 0, 1, ..."""
    return WorkerStats({WorkerId(worker): beat for worker, beat in enumerate(beats)})


BEATS = heard(beat((0, 70, "sending"), (2, 50, "idle")), beat((1, 90, "paused")))


def test_the_partition_that_is_earliest_is_named_with_its_reason(observer: Observer) -> None:
    (held,) = observer.frontier_blockers({"out": FrontierBlocker("source", "in", 50)}, 90, BEATS)
    assert (held.worker, held.partition, held.awaited) == (0, 2, True)
    assert held.by == "partition 2 of source 'in' on worker 0: it has been read to its end"


def test_no_frontier_is_blocked_where_all_records_have_passed(observer: Observer) -> None:
    (held,) = observer.frontier_blockers({"out": FrontierBlocker("source", "in", 90)}, 90, BEATS)
    assert not held.awaited
    (held,) = observer.frontier_blockers({"out": FrontierBlocker("source", "in", 90)}, None, BEATS)
    assert not held.awaited


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("operator", "operator 'n': it has not processed its records yet"),
        ("sink", "sink 'n': its results are not delivered yet"),
        ("input", "operator 'n': it has not received all messages yet"),
        ("migration", "operator 'n': state of bins is on its way"),
        ("partition_move", "a partition of source 'n' is on its way to another worker"),
        ("commands", "commands of that time have not been ruled out yet"),
    ],
)
def test_each_other_frontier_blocker_is_named(observer: Observer, kind: Kind, says: str) -> None:
    (held,) = observer.frontier_blockers({"out": FrontierBlocker(kind, "n", 5)}, 90, BEATS)
    assert (held.by, held.worker, held.partition) == (says, None, None)


def test_a_frontier_blocker_has_the_time_of_its_start(observer: Observer, clock: SimClock) -> None:
    def since(time: int) -> int:
        (held,) = observer.frontier_blockers(
            {"out": FrontierBlocker("operator", "n", time)}, 90, BEATS
        )
        return held.since_ms - NOW_MS

    assert since(5) == 0
    clock.advance(1)
    assert since(5) == 0
    clock.advance(1)
    assert since(6) == 2000, "it has moved"
    clock.advance(3)
    assert since(6) == 2000


def test_the_frontier_that_stands_longest_comes_first(observer: Observer, clock: SimClock) -> None:
    early, late = FrontierBlocker("operator", "n", 5), FrontierBlocker("operator", "m", 7)
    observer.frontier_blockers({"b": early}, 90, WorkerStats())
    clock.advance(1)
    assert [
        one.probe for one in observer.frontier_blockers({"a": late, "b": early}, 90, WorkerStats())
    ] == [
        "b",
        "a",
    ]


def test_throughput_is_taken_over_the_last_looks_of_all_workers(
    observer: Observer, clock: SimClock
) -> None:
    (first,) = observer.throughput(heard(beat(received=1000, sent=500), beat()))
    assert (first.received, first.sent) == (0, 0), "nothing is known yet"
    clock.advance(2)
    later = heard(beat(received=1100, sent=500), beat(received=60, sent=4))
    (rate,) = observer.throughput(later)
    assert (rate.operator, rate.received, rate.sent) == ("n", 80.0, 2.0)
    for _ in range(10):
        clock.advance(1)
        (rate,) = observer.throughput(later)
    assert (rate.received, rate.sent) == (0, 0), "what came long before does not count"


def test_records_of_a_worker_that_left_still_count(observer: Observer, clock: SimClock) -> None:
    two = heard(beat(received=1000, sent=500), beat(received=40))
    observer.throughput(two)
    clock.advance(2)
    left = WorkerStats({WorkerId(0): beat(received=1100, sent=500)}).without(
        beat(received=60, sent=4)
    )
    (rate,) = observer.throughput(left)
    assert (rate.received, rate.sent) == (60.0, 2.0)
    assert left.counters == {"read": 1160}


def test_counters_are_summed_over_the_workers() -> None:
    three = heard(
        beat(received=3), beat(received=4), WorkerHeartbeat(counters={"late_adjusted": 1})
    )
    assert three.counters == {"read": 7, "late_adjusted": 1}


def test_of_an_operator_that_has_timed_nothing_no_time_is_known(observer: Observer) -> None:
    idle = OperatorStats(received=0, sent=0, busy=0.0, durations=durations(seconds=0.0))
    (shown,) = observer.throughput(heard(WorkerHeartbeat(operators={"n": idle})))
    assert (shown.count, shown.p50, shown.p99) == (0, None, None)


def test_status_and_metrics_say_the_same_of_how_long_records_are_in_an_operator(
    observer: Observer,
) -> None:
    quick, slow = (
        OperatorStats(received=9, sent=9, busy=0.1, durations=durations(*counts, seconds=1.0))
        for counts in ([90], [0, 9, 0, 0, 1])
    )
    both = heard(WorkerHeartbeat(operators={"n": quick}), WorkerHeartbeat(operators={"n": slow}))
    (shown,) = observer.throughput(both)
    board = MetricsCollector()
    board.show(StatusSnapshot(2, 2, both, throughput=[shown]), 0, {})
    samples = read(text(board))
    assert shown.count == sum(samples["meander_operator_seconds_count"].values()) == 100
    upto = Counter[float]()
    for (bound, *_), count in samples["meander_operator_seconds_bucket"].items():
        upto[float(bound)] += int(count)
    half, most = (min(le for le, n in upto.items() if n >= wanted) for wanted in (50, 99))
    assert (shown.p50, shown.p99) == (half, most) == (0.0001, 0.0003)


def test_a_restore_is_reported_with_its_rate_and_its_rest(
    observer: Observer, clock: SimClock
) -> None:
    assert observer.restoring(heard(WorkerHeartbeat(), WorkerHeartbeat())) is None, (
        "a flow that begins restores nothing"
    )
    told = observer.restoring(heard(WorkerHeartbeat(restoring=300), WorkerHeartbeat(restoring=100)))
    assert told is not None and (told.bytes, told.total, told.eta) == (0, 400, None)
    clock.advance(2.0)
    told = observer.restoring(
        heard(
            WorkerHeartbeat(restored=60, restoring=300), WorkerHeartbeat(restored=40, restoring=100)
        )
    )
    assert told is not None and (told.bytes, told.rate, told.eta) == (100, 50.0, 6.0)
    assert observer.restoring(heard(WorkerHeartbeat(restored=300, restoring=300))) is None
