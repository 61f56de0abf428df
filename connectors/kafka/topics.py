"""Topics of a cluster, as its brokers describe them.

Guarantees that no call here creates a topic. Calls block, at most `ANSWER` seconds each.
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
    """The consumer group under which a flow's progress is shown to lag tools.

    >>> group("test.", "delays")
    'meander.test.delays'
    """
    return f"meander.{prefix}{flow}"


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as a broker knows it."""

    partitions: int
    """0 where there is no such topic."""
    id: str
    """Another one, made anew under the same name, has another."""


def partitions_of(client: Admin, topic: str) -> int:
    """How many partitions a topic has. Raises SetupError if it is missing or refused."""
    return found(client, topic).partitions


def found(client: Admin, topic: str) -> Found:
    """A topic as it is. Raises SetupError if it is missing or refused."""
    known = seen(client, topic)
    if not known.partitions:
        raise missing(f"topic {topic!r}")
    return known


def seen(client: Admin, topic: str) -> Found:
    """A topic as it is, with no partitions where there is none. Raises SetupError if refused."""
    try:
        return look(client, topic, ANSWER)
    except KafkaException as error:
        raise translate(error, f"topic {topic!r}", client.bootstrap) from None


def identity(client: Admin, topic: str) -> str:
    """A topic's name and id: one that is made anew under the same name is another. Raises
    SetupError."""
    return f"{topic} {seen(client, topic).id}"


def look(client: AdminClient, topic: str, seconds: float) -> Found:
    """A topic as it is, if there is any; raises KafkaException.

    Unlike a client's own look at its metadata, it never creates the topic.
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
    """What the broker knows; asking for a topic here never creates it."""
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
    """The settings of topics; none of one that the broker does not show to this user."""
    found: dict[str, dict[str, str]] = {}
    for topic in topics:
        with contextlib.suppress(SetupError):
            found |= configs(client, [topic])
    return found


def compacted(settings: Mapping[str, str]) -> bool:
    """Whether a topic keeps the last record of each key, and so takes none without one.

    >>> compacted({"cleanup.policy": "compact,delete"}), compacted({})
    (True, False)
    """
    return "compact" in settings.get("cleanup.policy", "").split(",")


def configs(client: Admin, topics: list[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that exist, by topic. Raises SetupError if one is refused."""
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
