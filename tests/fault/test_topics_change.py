"""A flow reads the partitions that its topics get while it runs; whatever else happens to them ends
it with a sentence and exit code 2."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

from confluent_kafka.admin import NewPartitions

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    admin,
    await_records,
    partitions_of,
    produce,
    until,
)
from tests.support.process.flow_process import flow_folder, last_beat, lines, meander
from tests.support.process.word_counts import each_once, word_counts


def test_added_partitions_are_read_and_a_deleted_topic_ends_the_flow(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """I2, I3: each partition is read by one worker, from its first record, and each record counts
    once."""
    topic, results = prefix + "lines", prefix + "counts"
    lines(broker.bootstrap, prefix, ["to be or not to be"])
    module, client = flow_folder(tmp_path, prefix), admin(broker.bootstrap)
    words = ["run", str(module), "--prefix", prefix, "--startup-timeout", str(PATIENCE)]
    with meander(tmp_path, broker.bootstrap, *words) as running:
        running.until_event("started")
        client.create_partitions([NewPartitions(topic, 6)])[topic].result()
        until(lambda: len(partitions_of(client, topic)) == 6, "the topic has grown")
        # Some of it lies there before the flow knows of it, also of a time that has gone by.
        produce(broker.bootstrap, topic, [Record(b"be", partition=p, timestamp=1) for p in (4, 5)])

        until(lambda: len(running.of("partition_added")) == 2, "both are read")
        added = running.of("partition_added")
        assert {(one["source"], one["partition"]) for one in added} == {
            ("source", 4),
            ("source", 5),
        }
        produce(broker.bootstrap, topic, [Record(b"be or", partition=p) for p in (0, 4, 5)])
        counts = Counter({"to": 2, "be": 2 + 5, "or": 1 + 3, "not": 1})
        found = await_records(broker.bootstrap, results, lambda some: len(some) >= counts.total())
        assert each_once(word_counts(found)) == counts

        until(
            lambda: read_by(broker.bootstrap, prefix) == set(range(6)), "status shows who reads it"
        )
        until(
            lambda: lags(broker.bootstrap, prefix) == dict.fromkeys(range(6), 0),
            "and that all has passed",
        )
        assert len(running.of("started")) == 1

        client.delete_topics([topic])[topic].result()
        assert running.exit_code() == 2
        told = f"topic '{topic}': it was deleted while the flow read it; create it again"
        assert told in running.said.splitlines()[-1]
        running.until_gone()


def read_by(bootstrap: str, prefix: str) -> set[object]:
    """The partitions that are read, by the last heartbeat."""
    beat = cast(list[dict[str, object]], last_beat(bootstrap, prefix)["partitions"])
    assert len({one["partition"] for one in beat}) == len(beat), "by one worker each (I2)"
    return {one["partition"] for one in beat}


def lags(bootstrap: str, prefix: str) -> dict[object, object]:
    """Records by partition that have not passed, by the last heartbeat."""
    beat = cast(list[dict[str, object]], last_beat(bootstrap, prefix)["lags"])
    return {one["partition"]: one["records"] for one in beat}
