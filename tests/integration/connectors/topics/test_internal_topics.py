"""Internal topics are as their purpose needs them, or the flow does not start."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from meander.connectors.kafka.client import Admin, admin
from meander.connectors.kafka.topic_metadata import partitions_of
from meander.connectors.topics.internal_topics import (
    describe,
    ensure_internal,
    internal_topics,
    topic_names,
)
from meander.schemas.errors import SetupError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, create_topic

PURPOSES = {
    "control",
    "status",
    "state",
    "decisions",
    "commit_markers",
    "checkpoints",
    "in_flight",
    "dead",
    "plans",
}


@pytest.fixture
def client(broker: Broker) -> Admin:
    return admin({"bootstrap.servers": broker.bootstrap})


def test_all_are_created_with_their_policy_and_nothing_changes_at_the_next_start(
    client: Admin, prefix: str
) -> None:
    assert not any(row.exists for row in describe(client, prefix, "flow"))
    made = ensure_internal(client, prefix, "flow")
    rows = describe(client, prefix, "flow")
    assert ensure_internal(client, prefix, "flow") == made
    assert describe(client, prefix, "flow") == rows
    assert {row.name.removeprefix(f"{prefix}flow.") for row in rows} == PURPOSES
    assert {row.name: row.cleanup for row in rows} == {
        made.control: "delete",
        made.status: "delete",
        made.state: "compact",
        made.decisions: "delete",
        made.commit_markers: "delete",
        made.checkpoints: "delete",
        made.in_flight: "compact",
        made.dead: "delete",
        made.plans: "delete",
    }
    assert all(row.exists and row.replication == 1 and row.purpose for row in rows)
    logs = {row.name for row in rows if row.cleanup == "delete"}
    asked = [ConfigResource(ResourceType.TOPIC, row.name) for row in rows]
    for resource, found in client.describe_configs(asked).items():
        for name in ["retention.bytes", *(["retention.ms"] if resource.name in logs else [])]:
            entry = found.result(PATIENCE)[name]
            assert not entry.is_default, f"{resource.name}: a broker's default {name} says nothing"


@pytest.mark.parametrize(
    ("topic", "config", "sentence"),
    [
        ("state", {"cleanup_policy": "delete"}, "its cleanup.policy is delete, not compact"),
        ("decisions", {"cleanup_policy": "compact"}, "its cleanup.policy is compact, not delete"),
        ("decisions", {"retention_ms": "1000"}, "its retention.ms is 1000, not -1"),
        ("dead", {"retention_ms": "1000"}, "its retention.ms is 1000, not -1"),
        ("commit_markers", {"retention_bytes": "9000"}, "its retention.bytes is 9000, not -1"),
        ("checkpoints", {"retention_bytes": "9000"}, "its retention.bytes is 9000, not -1"),
    ],
)
def test_one_that_exists_otherwise_is_refused_with_the_command_that_mends_it(
    broker: Broker, client: Admin, prefix: str,
    topic: str, config: dict[str, str], sentence: str,
) -> None:  # fmt: skip
    name = f"{prefix}flow.{topic}"
    (wanted,) = (one for one in internal_topics(prefix, "flow") if one.name == name)
    least = {key.replace(".", "_"): str(value) for key, value in wanted.least.items()}
    create_topic(broker.bootstrap, name, wanted.partitions, **(least | config))
    with pytest.raises(SetupError) as refusal:
        ensure_internal(client, prefix, "flow")
    assert f"topic '{name}'" in str(refusal.value)
    assert sentence in str(refusal.value)
    assert f"kafka-configs.sh --alter --topic {name}" in str(refusal.value)


def test_in_flight_a_longer_compaction_lag_is_taken_as_it_is_and_a_shorter_one_refused(
    broker: Broker, client: Admin, prefix: str
) -> None:
    """A new one has an hour: what is written anew by each checkpoint would fill disks in a day."""
    name, hour = topic_names(prefix, "flow").in_flight, 3600 * 1000
    (wanted,) = (one for one in internal_topics(prefix, "flow") if one.name == name)
    assert wanted.least["min.compaction.lag.ms"] == hour
    longer = {"cleanup_policy": "compact", "max_message_bytes": str(32 << 20)}
    create_topic(
        broker.bootstrap, name, wanted.partitions, **longer, min_compaction_lag_ms=str(24 * hour)
    )
    ensure_internal(client, prefix, "flow")
    other = topic_names(prefix, "other").in_flight
    create_topic(broker.bootstrap, other, wanted.partitions, **longer, min_compaction_lag_ms="1000")
    with pytest.raises(SetupError, match="its min.compaction.lag.ms is 1000, not 3600000"):
        ensure_internal(client, prefix, "other")


def test_one_with_more_partitions_is_refused_as_its_order_is_not_total(
    broker: Broker, client: Admin, prefix: str
) -> None:
    create_topic(broker.bootstrap, f"{prefix}flow.control", 2, retention_ms="-1")
    with pytest.raises(SetupError, match="its partitions is 2, not 1"):
        ensure_internal(client, prefix, "flow")


def test_a_flow_whose_name_kafka_cannot_take_is_refused() -> None:
    with pytest.raises(SetupError, match="its topics cannot be named after it; use letters"):
        topic_names("", "my flow")


def test_partitions_are_counted_and_a_missing_topic_is_a_sentence(
    broker: Broker, client: Admin, prefix: str
) -> None:
    create_topic(broker.bootstrap, prefix + "three", 3)
    assert partitions_of(client, prefix + "three") == 3
    with pytest.raises(SetupError, match=f"topic '{prefix}none': it does not exist"):
        partitions_of(client, prefix + "none")
