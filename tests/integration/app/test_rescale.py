"""Workers join and leave a running flow, with real processes, links and Spark jobs: every record is
counted once, in order, by the one that owns it at its time (I2, I3)."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from pyspark import SparkContext

from meander.connectors.topics.internal_topics import topic_names
from meander.schemas import status
from meander.schemas.status import (
    CommandRejected,
    Finished,
    Heartbeat,
    Joined,
    Left,
    PartitionMoved,
    Rescaling,
    Started,
)
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all
from tests.support.process.rescaled_flow import RescaledFlow


def test_a_flow_goes_from_one_worker_to_three_and_back_while_records_flow(
    broker: Broker, prefix: str, tmp_path: Path, context: SparkContext
) -> None:
    flow = RescaledFlow(broker, prefix, tmp_path / "flow")
    result = flow.run(
        context,
        lambda: flow.rescale(3),
        lambda: flow.until(lambda: flow.answering() == {0, 1, 2}, "all three answer"),
        lambda: flow.rescale(1),
    )

    assert flow.ends == [(0, "rescaled")] * 2
    flow.check()
    up, down = flow.of(Rescaling)
    assert (up.joining, up.leaving, down.joining, down.leaving) == ([1, 2], [], [], [1, 2])
    assert sorted(event.worker for event in flow.of(Joined)) == [1, 2]
    assert sorted(event.worker for event in flow.of(Left)) == [1, 2]
    readers = [event.worker for event in flow.of(PartitionMoved)]
    assert sorted(readers[:2]) == [1, 2], "each newcomer reads a partition"
    assert readers[2:] == [0, 0], "and gives it back"
    shares = {tuple(zip(beat.worker_ids, beat.bins, strict=True)) for beat in flow.of(Heartbeat)}
    assert any(sorted(bins for _, bins in share) == [85, 85, 86] for share in shares)
    assert flow.of(Heartbeat)[-1].worker_ids == [0]
    left = sum(event.counters["read"] for event in flow.of(Left))
    assert 0 < left < flow.fed == result.counters["read"], "what leavers have read counts"
    assert isinstance(flow.events[-1], Finished)
    (started,) = flow.of(Started)
    life = f"counts-{started.driver}-{started.execution}"
    assert [spark_says(context, f"{life}-{worker}") for worker in (1, 2)] == [
        ["SUCCEEDED"], ["SUCCEEDED"]
    ], "a leaver's job has finished, not failed"  # fmt: skip
    decided = [parsed["type"] for parsed in decisions(broker, prefix)]
    assert decided.count("join") == decided.count("leave") == 2
    assert decided.count("reassign_partition") == 4


WAITS = """
import time
from pathlib import Path

while Path({gate!r}).exists():
    time.sleep(0.01)
"""
HOUR = 3_600_000


def test_a_migration_has_its_worker_started_and_one_whose_time_has_passed_sends_it_back(
    broker: Broker, prefix: str, tmp_path: Path, context: SparkContext
) -> None:
    flow = RescaledFlow(broker, prefix, tmp_path / "flow")
    # A newcomer does not come any further while there is a gate.
    gate = flow.gated(WAITS)
    time = flow.begin + HOUR

    def comes_too_late() -> None:
        gate.touch()
        words = ["--bins", "200", "--worker", "2", "--time", str(time), "--id", "late"]
        command = threading.Thread(target=flow.command, args=("migrate", "counts", *words))
        command.start()
        flow.until(lambda: len(flow.of(Rescaling)) == 2, "the second worker starts")
        flow.begin += 2 * HOUR
        flow.until(
            lambda: flow.of(Heartbeat)[-1].frontiers["sink"] > time, "the data has passed the time"
        )
        gate.unlink()
        command.join()

    flow.run(
        context,
        lambda: flow.command("migrate", "counts", "--bins", "0-99", "--worker", "1"),
        lambda: flow.until(lambda: flow.answering() == {0, 1}, "both answer"),
        comes_too_late,
        lambda: flow.until(lambda: bool(flow.of(Left)), "the second newcomer has gone"),
    )

    assert flow.ends == [(0, "completed"), (1, "rejected")]
    flow.check()
    assert [event.worker for event in flow.of(Joined)] == [1, 2]
    (left,), (rejected,), (ended,) = (
        flow.of(Left),
        flow.of(CommandRejected),
        flow.of(status.Rescaled),
    )
    assert (left.worker, left.id, ended.id, ended.reason) == (2, "late", "late", "")
    assert f"time {time} ms is closed" in rejected.reason
    (owned,) = {(*beat.bins,) for beat in flow.of(Heartbeat)[-1:]}
    assert owned == (156, 100)


def spark_says(context: SparkContext, group: str) -> list[str]:
    """How the jobs of a group have ended."""
    tracker = context.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    return [job.status for job in jobs if job is not None]


def decisions(broker: Broker, prefix: str) -> list[dict[str, object]]:
    """What was written before it took effect."""
    records = consume_all(broker.bootstrap, topic_names(prefix, "counts").decisions)
    return [json.loads(record.value or b"") for record in records]
