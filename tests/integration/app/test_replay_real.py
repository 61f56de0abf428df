"""What a real flow's sources have ruled is committed with its results: with that its logs give the
same results again, in the same order (I3)."""

from __future__ import annotations

import json
import time
from operator import attrgetter
from pathlib import Path

from meander import Flow
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.control.timestamp_overrides import OverrideHistory, TimestampOverride
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.testing import TestFlow
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, await_records, consume_all, create_topic, produce
from tests.support.process.flow_process import meander

PARTITIONS, FOREVER = 4, 1 << 62
FLOW = """
from meander import KafkaSink, KafkaSource
from meander import Flow

flow = Flow("trail", delivery="exactly_once")
lines = flow.source(KafkaSource("{prefix}lines", value="str"))
trail = lines.key_by(lambda line: 0)
trail = trail.fold("trail", init=lambda: 0, step=lambda n, line: (n + 1, [n, line]))
trail.sink(KafkaSink("{prefix}trail", value="json"))
"""


def test_logs_and_rulings_give_the_results_again(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for topic, partitions in (("lines", PARTITIONS), ("trail", 1)):
        create_topic(broker.bootstrap, prefix + topic, partitions)
    module = tmp_path / "flow.py"
    module.write_text(FLOW.format(prefix=prefix))
    with meander(tmp_path, broker.bootstrap, "run", str(module), "--prefix", prefix) as process:
        process.until_event("started")
        fed = 0
        for millis in (9_000, 2_000, 9_100, 5_000, 1_000, 9_200):
            fed += feed(broker, prefix, fed, millis)
            answered(broker, prefix, fed)
        # Those of the last round are of the future: once both workers' rulings about them are
        # there, so are all before.
        fed += feed(broker, prefix, fed, int(time.time() * 1000) + 3_600_000)
        answered(broker, prefix, fed)
        rulings = committed(broker, prefix, of_the_future=PARTITIONS)

    numbers, results = map(list, zip(*said(broker, prefix), strict=True))
    assert numbers == [*range(1, fed + 1)], "as they lie on the topic (I9)"
    assert replay(broker, prefix, OverrideHistory(FOREVER, rulings)) == results
    assert replay(broker, prefix, OverrideHistory()) != results, (
        "left to themselves they come otherwise"
    )


def feed(broker: Broker, prefix: str, fed: int, millis: int) -> int:
    """A line to each partition, each later than the one before; how many."""
    lines = [
        Record(f"line {fed + p}".encode(), partition=p, timestamp=millis + 7 * p)
        for p in range(PARTITIONS)
    ]
    produce(broker.bootstrap, prefix + "lines", lines)
    return len(lines)


def answered(broker: Broker, prefix: str, count: int) -> None:
    await_records(broker.bootstrap, prefix + "trail", lambda found: len(found) >= count)


def said(broker: Broker, prefix: str) -> list[tuple[int, str]]:
    found = consume_all(broker.bootstrap, prefix + "trail")
    return [tuple(json.loads(record.value or b"")) for record in found]


def committed(broker: Broker, prefix: str, of_the_future: int) -> list[TimestampOverride]:
    """All rulings, as soon as there are so many about records of the future."""

    def read(records: list[Record]) -> list[TimestampOverride]:
        markers = [CommitMarker.from_bytes(record.value or b"") for record in records]
        return [ruling for marker in markers for ruling in marker.overrides]

    topic = topic_names(prefix, "trail").commit_markers
    return read(
        await_records(
            broker.bootstrap,
            topic,
            lambda records: sum(one.last is not None for one in read(records)) >= of_the_future,
        )
    )


def replay(broker: Broker, prefix: str, past: OverrideHistory) -> list[str]:
    """The results in their order, from the log as it lies on the topic."""
    log: list[list[tuple[int, object]]] = [[] for _ in range(PARTITIONS)]
    for record in consume_all(broker.bootstrap, prefix + "lines"):
        assert record.partition is not None and record.timestamp is not None
        log[record.partition].append((record.timestamp, (record.value or b"").decode()))
    flow, sink = Flow("trail", bins=3), ListSink()
    lines = flow.source(ListSource(log))
    lines.key_by(lambda line: 0).fold("trail", lambda: 0, lambda n, s: (n + 1, s)).sink(sink)
    with TestFlow(flow, workers=3, seed=5, past=past) as run:
        run.run()
    return [
        str(result.value)
        for result in sorted(sink.results, key=attrgetter("time", "partition", "offset"))
    ]
