"""What a driver tells of itself, and that a flow is prepared for one driver only."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import closing
from pathlib import Path

import pytest

from meander.app.config.options import Options
from meander.app.loading.preflight import PreparedFlow, prepare
from meander.app.protocol.messages import Durations, SourceStats, WorkerHeartbeat
from meander.app.recovery.claiming import claim
from meander.app.status.metrics import MetricsCollector
from meander.app.status.observer import StatusSnapshot
from meander.app.status.overview import Overview, overview
from meander.app.status.publisher import MAX_MIGRATIONS, FlowStatus
from meander.app.status.worker_stats import WorkerStats
from meander.connectors.topics.status import StatusReader, StatusTopic
from meander.dataflow.metrics.histogram import BOUNDS
from meander.schemas.errors import SetupError
from meander.schemas.status import (
    Accepted,
    BlockedFrontier,
    Completed,
    Heartbeat,
    LongCall,
    Throughput,
)
from meander.state.keys.ids import WorkerId
from meander.state.times.time import from_millis
from tests.support.process.flow_process import flow_folder, lines


@pytest.fixture
def module(bootstrap: str, prefix: str, tmp_path: Path) -> Path:
    lines(bootstrap, prefix, [])
    return flow_folder(tmp_path / "flow", prefix)


@pytest.fixture
def options(bootstrap: str, prefix: str) -> Options:
    return Options({"bootstrap.servers": bootstrap}, prefix=prefix, heartbeat_timeout=600.0)


@pytest.fixture
def prepared(module: Path, options: Options) -> PreparedFlow:
    return prepare(module, options)


@pytest.fixture
def topic(prepared: PreparedFlow) -> Iterator[StatusTopic]:
    with closing(StatusTopic(prepared.options.kafka, prepared.names.status)) as opened:
        claim(prepared, opened)
        yield opened


@pytest.fixture
def told(prepared: PreparedFlow, topic: StatusTopic) -> FlowStatus:
    return FlowStatus(prepared, topic, lambda _: None, MetricsCollector())


def accepted(number: int) -> Accepted:
    return Accepted(id=f"m{number}", offset=number, time=5, at=5 << 20, strategy="fluid", bins=[1])


def held_back(probe: str) -> BlockedFrontier:
    by = f"partition 1234 of source 'flights' on worker 0: {'waits' * 5}"
    return BlockedFrontier(
        probe=probe, by=by, since_ms=1_700_000_000_000, awaited=True, kind="source",
        name="flights", worker=0, partition=1234,
    )  # fmt: skip


BINS = {WorkerId(0): 128, WorkerId(1): 128}


TIMED = Durations(counts=[1] * (len(BOUNDS) + 1), seconds=46.5)
MANY = WorkerStats(
    {
        WorkerId(worker): WorkerHeartbeat(
            sources={
                f"flights-{n}": SourceStats(
                    partitions=[*range(worker, worker + 1)],
                    times=[from_millis(1_700_000_000_000)],
                    states=["idle"],
                    delays=TIMED,
                )
                for n in range(100)
            },
            sent={peer: 4_000_000 for peer in range(30) if peer != worker},
        )
        for worker in range(30)
    }
)


def seen(prepared: PreparedFlow) -> tuple[list[Heartbeat], Overview]:
    """The heartbeats, and what is known from the last of them alone."""
    reader = StatusReader(prepared.options.kafka, prepared.names.status, prepared.flow)
    with closing(reader):
        events = list(reader.all())
    beats = [one for one in events if isinstance(one.event, Heartbeat)]
    found = [one.event for one in beats if isinstance(one.event, Heartbeat)]
    return found, overview(prepared.flow, beats[-1:])


def test_heartbeats_tell_of_what_is_under_way_and_of_nothing_that_has_ended(
    prepared: PreparedFlow, topic: StatusTopic, told: FlowStatus
) -> None:
    told.starting()
    for number in range(3):
        told.write(accepted(number))
    told.write(Completed(id="m1", ms=1.0, bins=1, bytes=1))
    told.alive(StatusSnapshot(2, 2, bins=BINS))
    topic.flush(30)

    (first, last), known = seen(prepared)
    assert (first.moving, first.bins, first.heartbeat_timeout) == ([], [], 600.0)
    assert [one.id for one in last.moving] == ["m0", "m2"]
    assert known.migrations.keys() == {"m0", "m2"}
    assert (last.migrations_completed, last.bins_moved) == (1, 0)
    assert (known.state, known.omitted) == ("running", 0)


def test_counters_go_on_over_executions(
    prepared: PreparedFlow, topic: StatusTopic, told: FlowStatus
) -> None:
    def worked(read: int) -> StatusSnapshot:
        heard = WorkerStats({WorkerId(0): WorkerHeartbeat(counters={"read": read})})
        return StatusSnapshot(1, 1, heard, bins=BINS)

    told.alive(worked(5))
    for _ in range(2):
        told.execution_lost()
        told.starting()
        told.alive(worked(2))
    topic.flush(30)

    beats, _ = seen(prepared)
    assert [one.counters["read"] for one in beats] == [5, 5, 7, 7, 9]
    assert told.counters({"read": 3}) == {"read": 10}


def test_heartbeats_stay_small_however_much_is_under_way(
    prepared: PreparedFlow, topic: StatusTopic, told: FlowStatus
) -> None:
    for number in range(MAX_MIGRATIONS + 7):
        told.write(accepted(number))
    lags = {("some.source.topic", partition): partition for partition in range(5000)}
    held = [held_back(f"probe-{number}") for number in range(300)]
    rates = [
        Throughput(operator=f"fold-{n}", received=1234.5, sent=56.7, count=10**9, p50=0.3, p99=None)
        for n in range(300)
    ]
    calls = [LongCall(worker=n, operator="ask", seconds=12.5) for n in range(300)]
    told.alive(StatusSnapshot(2, 2, MANY, {}, lags, BINS, held, calls, rates))
    topic.flush(30)

    (beat,), known = seen(prepared)
    assert (len(beat.moving), beat.omitted) == (MAX_MIGRATIONS, 7)
    assert len(beat.to_bytes()) < 33_792
    assert (len(known.migrations), known.omitted) == (MAX_MIGRATIONS, 7)
    assert beat.lag == sum(range(5000))
    assert [one.partition for one in beat.lags[:3]] == [4999, 4998, 4997]
    shown_last = known.heartbeat
    assert len(beat.lags) + beat.lags_omitted == 5000
    assert len(shown_last.lags) + shown_last.lags_omitted == 5000
    assert len(beat.frontier_blockers) + beat.frontier_blockers_omitted == 300
    assert len(beat.throughput) + beat.throughput_omitted == 300
    assert len(beat.queues) + beat.queues_omitted == 30 * 29
    assert len(beat.partitions) + beat.partitions_omitted == 30 * 100
    assert len(beat.latencies) + beat.latencies_omitted == 100
    shown: list[Sized] = [beat.lags, beat.frontier_blockers, beat.throughput]
    shown += [beat.queues, beat.partitions, beat.latencies]
    assert min(map(len, shown)) > 10


def test_a_flow_is_prepared_for_one_driver_whatever_lease_the_next_would_have(
    topic: StatusTopic, module: Path, options: Options
) -> None:
    shorter = Options(options.kafka, prefix=options.prefix, heartbeat_timeout=1.0)
    with pytest.raises(SetupError, match="a driver runs it .* dead, wait 600 s"):
        claim(prepare(module, shorter), topic)
