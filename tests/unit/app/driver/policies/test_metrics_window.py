"""The metrics of a window follow from two heartbeats of each worker, and say what is unknown."""

from __future__ import annotations

from math import inf

import pytest

from meander import Flow, Stream
from meander.app.common.clock import SystemClock
from meander.app.driver.policies.metrics_window import (
    LogEnds,
    MetricsWindow,
    Sample,
    bin_loads,
    upstreams_of,
)
from meander.app.protocol.messages import OperatorStats, SourceStats, WorkerHeartbeat
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.policies.metrics import BinLoad, Metrics, PartitionLoad
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.keys.ids import Bin, WorkerId
from tests.support.status.heartbeats import ONE, ZERO, durations


@pytest.fixture
def plan() -> Plan:
    flow = Flow("counts")
    lines = flow.source(ListSource([[]]), name="lines")
    counts = lines.key_by(str).fold("count", int, lambda n, _: (n + 1, n + 1))
    counts.sink(ListSink(), name="counts")
    return Plan(flow)


@pytest.fixture
def window(plan: Plan) -> MetricsWindow:
    return MetricsWindow(plan, {"lines": "lines"}, SystemClock())


def heartbeat(at: float, records: int, slow: int = 0) -> WorkerHeartbeat:
    """Return the heartbeat of a worker that has counted some records, of which `slow` took long."""
    took = durations(records - slow, *[0] * 11, slow, seconds=0.1)
    return WorkerHeartbeat(
        counters={"read": records}, inflight=7, at=at, active=at / 2, backpressure=at / 4, cpu=at,
        operators={
            "lines": OperatorStats(received=0, sent=records, busy=at / 10, durations=durations(
                seconds=0.0)),
            "count": OperatorStats(received=records, sent=2 * records, busy=at / 5, durations=took),
        },
        sources={"lines": SourceStats(partitions=[0], times=[0], states=["idle"], delays=took)},
    )  # fmt: skip


def ends(asked_at: float, end: int, lag: int | None) -> LogEnds:
    return LogEnds(asked_at, {("lines", 0): end}, {} if lag is None else {("lines", 0): lag})


def closed(window: MetricsWindow, *samples: Sample) -> Metrics:
    *_, first, last = samples
    assert window.seconds(first) == 0
    found = window.close(last, 30.0)
    assert found is not None
    return found


def test_rates_follow_from_the_clock_of_the_worker(window: MetricsWindow) -> None:
    """The heartbeats are 8 s apart there, and the samples 10 s here."""
    first = Sample(100.0, {ZERO: heartbeat(1000.0, 0)})
    found = closed(window, first, Sample(110.0, {ZERO: heartbeat(1008.0, 800)}))
    worker = found.workers[ZERO]
    assert (worker.cpu, worker.active, worker.backpressure) == (1.0, 0.5, 0.25)
    assert (worker.read, worker.in_flight) == (100.0, 7)
    count = worker.operators["count"]
    assert (count.received, count.sent) == (100.0, 200.0)
    assert count.busy == pytest.approx(0.2)
    assert count.true_rate == pytest.approx(500.0)
    assert worker.operators["lines"].true_rate == pytest.approx(1000.0)
    assert (found.seconds, found.now, found.since_change) == (10.0, 110.0, 30.0)


def test_latencies_are_those_of_the_window(window: MetricsWindow) -> None:
    first = Sample(0.0, {ZERO: heartbeat(0.0, 500, slow=500)})
    later = Sample(10.0, {ZERO: heartbeat(10.0, 1500, slow=505)})
    found = closed(window, first, later)
    assert (found.p50, found.p99) == (0.0001, 0.0001)
    window.restart()
    found = closed(window, later, Sample(20.0, {ZERO: heartbeat(20.0, 1600, slow=605)}))
    assert (found.p50, found.p99) == (inf, inf)
    window.restart()
    found = closed(window, first, Sample(10.0, {ZERO: heartbeat(10.0, 500, slow=500)}))
    assert found.p99 is None, "nothing was delivered"


def test_a_window_follows_the_other(window: MetricsWindow) -> None:
    samples = [Sample(10.0 * n, {ZERO: heartbeat(10.0 * n, 100 * n * n)}) for n in range(3)]
    assert closed(window, *samples[:2]).read == 10
    assert window.seconds(samples[2]) == 10
    later = window.close(samples[2], None)
    assert later is not None
    assert later.read == 30


@pytest.mark.parametrize(
    "news",
    [{ZERO: heartbeat(10.0, 9)}, {ZERO: heartbeat(10.0, 9), ONE: heartbeat(1.0, 9)}],
    ids=["a worker has joined", "a worker is silent"],
)
def test_a_worker_without_news_makes_all_unknown(
    window: MetricsWindow, news: dict[WorkerId, WorkerHeartbeat]
) -> None:
    before = {ONE: heartbeat(0.0, 0)}
    window.seconds(Sample(0.0, before | ({ZERO: heartbeat(0.0, 0)} if ONE in news else {})))
    assert window.close(Sample(10.0, news), None) is None


def test_arrivals_are_what_the_log_has_grown(window: MetricsWindow) -> None:
    beats = [{ZERO: heartbeat(at, 0)} for at in (0.0, 10.0)]
    first = Sample(0.0, beats[0], ends(99.0, 100, 5))
    found = closed(window, first, Sample(10.0, beats[1], ends(107.0, 500, 40)))
    assert found.partitions == {("lines", 0): PartitionLoad(50.0, 40)}
    assert (found.arrived, found.lag, found.lag_seconds) == (50.0, 40, 0.8)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, ends(10.0, 500, 40), PartitionLoad(None, 40)),
        (ends(9.0, 500, 40), ends(9.0, 500, 40), PartitionLoad(None, 40)),
        (ends(0.0, 500, None), ends(10.0, 600, None), PartitionLoad(10.0, None)),
        (ends(0.0, 500, None), ends(10.0, 500, None), PartitionLoad(0.0, 0)),
    ],
    ids=["no answer before", "the broker is silent", "no commit", "nothing to commit"],
)
def test_what_the_broker_has_not_told_is_unknown(
    window: MetricsWindow, before: LogEnds | None, now: LogEnds, expected: PartitionLoad
) -> None:
    first = Sample(0.0, {ZERO: heartbeat(0.0, 0)}, before)
    found = closed(window, first, Sample(10.0, {ZERO: heartbeat(10.0, 0)}, now))
    assert found.partitions == {("lines", 0): expected}


def test_a_flow_without_topics_has_no_partitions(window: MetricsWindow) -> None:
    first = Sample(0.0, {ZERO: heartbeat(0.0, 0)})
    found = closed(window, first, Sample(10.0, {ZERO: heartbeat(10.0, 0)}))
    assert (found.partitions, found.arrived, found.lag) == ({}, None, None)


def test_upstreams_are_those_of_the_graph(plan: Plan) -> None:
    assert upstreams_of(plan) == {
        "lines": (), "key_by": ("lines",), "key_by exchange": ("key_by",),
        "count": ("key_by exchange",), "counts": ("count",),
    }  # fmt: skip


def test_a_loop_does_not_lead_back() -> None:
    flow = Flow("halves")
    numbers = flow.source(ListSource([[]]))

    def halved(some: Stream[int]) -> tuple[Stream[int], Stream[int]]:
        half = some.map(lambda one: one // 2, name="half")
        return half.filter(bool, name="more"), half.filter(lambda one: not one, name="done")

    numbers.iterate("halves", halved).sink(ListSink())
    found = upstreams_of(Plan(flow))
    assert found["halves"] == ("source",)
    assert found["half"] == ("halves",)
    assert {before for ups in found.values() for before in ups} <= found.keys()


def test_bins_of_all_groups_have_their_records_and_bytes() -> None:
    groups = ColocationGroups(2, {"count": False, "join": True})
    sizes = Sizes()
    sizes.note_heat("count", Bin(1), 40)
    sizes.note_heat("join", Bin(2), 20)
    sizes.note("join", Bin(2), 9)
    nothing = BinLoad()
    assert bin_loads(groups, sizes, 10.0) == {
        "": (nothing, BinLoad(4.0)), "join": (BinLoad(2.0, 9), nothing),
    }  # fmt: skip
