"""Topics of a cluster, as its brokers describe them.

Guarantees that no call creates a topic. Calls block, at most `ANSWER` seconds each.
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

from meander.connectors.kafka.client import ANSWER, Admin, missing, translate
from meander.schemas.errors import SetupError


def group(prefix: str, flow: str) -> str:
    """Return the consumer group that shows a flow's progress to lag tools.

    >>> group("test.", "delays")
    'meander.test.delays'
    """
    return f"meander.{prefix}{flow}"


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as a broker describes it."""

    partitions: int
    """The number of partitions; 0 where the topic does not exist."""
    id: str
    """The topic's id; a recreated topic has another one."""


def partitions_of(client: Admin, topic: str) -> int:
    """Return the number of partitions of a topic. Raise SetupError if it is missing or refused."""
    return found(client, topic).partitions


def found(client: Admin, topic: str) -> Found:
    """Return a topic. Raise SetupError if it is missing or refused."""
    known = seen(client, topic)
    if not known.partitions:
        raise missing(f"topic {topic!r}")
    return known


def seen(client: Admin, topic: str) -> Found:
    """Return a topic, without partitions where it does not exist. Raise SetupError if it is
    refused."""
    try:
        return look(client, topic, ANSWER)
    except KafkaException as error:
        raise translate(error, f"topic {topic!r}", client.bootstrap) from None


def identity(client: Admin, topic: str) -> str:
    """Return a topic's name and id, which tell a recreated topic apart. Raise SetupError."""
    return f"{topic} {seen(client, topic).id}"


def look(client: AdminClient, topic: str, seconds: float) -> Found:
    """Return a topic, without partitions where it does not exist. Raise KafkaException for other
    errors.

    Unlike a client's metadata request, the call never creates the topic.
    """
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=seconds)
    try:
        described = asked[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return Found(0, "")
        raise
    return Found(len(described.partitions), str(described.topic_id))


def descriptions(client: Admin, topics: list[str]) -> dict[str, TopicDescription | None]:
    """Return the brokers' descriptions of topics. The call never creates a topic."""
    asked = client.describe_topics(TopicCollection(topics), request_timeout=ANSWER)
    found: dict[str, TopicDescription | None] = {}
    for name, future in asked.items():
        try:
            found[name] = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translate(error, f"topic {name!r}", client.bootstrap) from None
            found[name] = None
    return found


def configs_of(client: Admin, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, none for a topic whose settings this user may not see."""
    found: dict[str, dict[str, str]] = {}
    for topic in topics:
        with contextlib.suppress(SetupError):
            found |= configs(client, [topic])
    return found


def compacted(settings: Mapping[str, str]) -> bool:
    """Return whether a topic is compacted, so that it refuses records without a key.

    >>> compacted({"cleanup.policy": "compact,delete"}), compacted({})
    (True, False)
    """
    return "compact" in settings.get("cleanup.policy", "").split(",")


def configs(client: Admin, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of existing topics, by topic. Raise SetupError if one is refused."""
    if not topics:
        return {}
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in topics], request_timeout=ANSWER
    )
    return {
        resource.name: _config(client, resource.name, future) for resource, future in asked.items()
    }


def _config(client: Admin, topic: str, future: Future[dict[str, ConfigEntry]]) -> dict[str, str]:
    try:
        return {name: str(entry.value) for name, entry in future.result().items()}
    except KafkaException as error:
        raise translate(error, f"topic {topic!r}", client.bootstrap) from None
