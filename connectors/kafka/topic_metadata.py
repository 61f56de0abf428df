"""Topics of a cluster, as its brokers describe them.

Guarantees that no call creates a topic. Calls block, at most `REQUEST_TIMEOUT` seconds each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    TopicDescription,
)

from meander.connectors.kafka.client import REQUEST_TIMEOUT, Admin, missing_topic, translate
from meander.schemas.errors import SetupError


def group(prefix: str, flow: str) -> str:
    """Return the consumer group that shows a flow's progress to lag tools.

    >>> group("test.", "delays")
    'meander.test.delays'
    """
    return f"meander.{prefix}{flow}"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as a broker describes it."""

    partitions: int
    """The number of partitions; 0 where the topic does not exist."""
    id: str
    """The topic's id; a recreated topic has another one."""


def partitions_of(client: Admin, topic: str) -> int:
    """Return the number of partitions of a topic. Raise SetupError if it is missing or refused."""
    return expect_topic(client, topic).partitions


def expect_topic(client: Admin, topic: str) -> TopicInfo:
    """Return a topic. Raise SetupError if it is missing or refused."""
    topic_info = find_topic(client, topic)
    if not topic_info.partitions:
        raise missing_topic(f"topic {topic!r}")
    return topic_info


def find_topic(client: Admin, topic: str) -> TopicInfo:
    """Return a topic, without partitions where it does not exist. Raise SetupError if it is
    refused."""
    try:
        return describe_topic(client, topic, REQUEST_TIMEOUT)
    except KafkaException as error:
        raise translate(error, f"topic {topic!r}", client.bootstrap) from None


def topic_identity(client: Admin, topic: str) -> str:
    """Return a topic's name and id, which distinguish a recreated topic. Raise SetupError."""
    return f"{topic} {find_topic(client, topic).id}"


def describe_topic(client: AdminClient, topic: str, seconds: float) -> TopicInfo:
    """Return a topic, without partitions where it does not exist. Raise KafkaException for other
    errors.

    Unlike a client's metadata request, the call never creates the topic.
    """
    answers = client.describe_topics(TopicCollection([topic]), request_timeout=seconds)
    try:
        description = answers[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicInfo(0, "")
        raise
    return TopicInfo(len(description.partitions), str(description.topic_id))


def descriptions(client: Admin, topics: list[str]) -> dict[str, TopicDescription | None]:
    """Return the brokers' descriptions of topics. The call never creates a topic."""
    answers = client.describe_topics(TopicCollection(topics), request_timeout=REQUEST_TIMEOUT)
    found: dict[str, TopicDescription | None] = {}
    for name, future in answers.items():
        try:
            found[name] = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translate(error, f"topic {name!r}", client.bootstrap) from None
            found[name] = None
    return found


def visible_configs(client: Admin, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, except for settings that this user may not see."""
    found: dict[str, dict[str, str]] = {}
    for topic in topics:
        with contextlib.suppress(SetupError):
            found |= configs(client, [topic])
    return found


def is_compacted(settings: Mapping[str, str]) -> bool:
    """Return whether a topic is compacted, so that it refuses records without a key.

    >>> is_compacted({"cleanup.policy": "compact,delete"}), is_compacted({})
    (True, False)
    """
    return "compact" in settings.get("cleanup.policy", "").split(",")


def configs(client: Admin, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of existing topics, by topic. Raise SetupError if one is refused."""
    if not topics:
        return {}
    answers = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in topics],
        request_timeout=REQUEST_TIMEOUT,
    )
    return {
        resource.name: _config(client, resource.name, future)
        for resource, future in answers.items()
    }


def _config(client: Admin, topic: str, future: Future[dict[str, ConfigEntry]]) -> dict[str, str]:
    try:
        return {name: str(entry.value) for name, entry in future.result().items()}
    except KafkaException as error:
        raise translate(error, f"topic {topic!r}", client.bootstrap) from None
