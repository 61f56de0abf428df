"""What happens to a flow's topics while it runs ends it with a sentence and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from tests.brokers import Broker
from tests.flow_process import FlowProcess, flow_folder, lines, meander
from tests.kafka_tools import PATIENCE, admin


@pytest.fixture
def running(broker: Broker, prefix: str, tmp_path: Path) -> Iterator[FlowProcess]:
    lines(broker.bootstrap, prefix, ["to be or not to be"])
    module = flow_folder(tmp_path, prefix)
    words = ["run", str(module), "--prefix", prefix, "--patience", str(PATIENCE)]
    with meander(tmp_path, broker.bootstrap, *words) as process:
        process.until_event("started")
        yield process


def test_partitions_that_are_added(running: FlowProcess, broker: Broker, prefix: str) -> None:
    topic = prefix + "lines"
    client = admin(broker.bootstrap)
    client.create_partitions([NewPartitions(topic, 5)])[topic].result()

    assert running.exit_code() == 2
    last = running.said.splitlines()[-1]
    assert f"topic '{topic}': it had 4 partitions when the flow started and has 5 now" in last
    assert "start the flow anew" in last
    running.until_gone()


def test_a_topic_that_is_deleted(running: FlowProcess, broker: Broker, prefix: str) -> None:
    topic = prefix + "lines"
    client = admin(broker.bootstrap)
    client.delete_topics([topic])[topic].result()

    assert running.exit_code() == 2
    assert f"topic '{topic}': it does not exist" in running.said.splitlines()[-1]
    running.until_gone()
