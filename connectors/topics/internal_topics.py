"""The internal topics of a flow: their names, their purposes, and their required settings.

Guarantees that `ensure_internal` returns only when every internal topic exists with the required
cleanup policy. Compaction of a decision log, or deletion of state, would lose data silently. The
module never creates or changes a user's topic. Calls block; they run at a start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    NewTopic,
    TopicDescription,
)

from meander.connectors.kafka.client import REQUEST_TIMEOUT, Admin, missing_topic, translate
from meander.connectors.kafka.topic_metadata import configs, descriptions, find_topic
from meander.schemas.dead_letter import MAX_DEAD_RECORD
from meander.schemas.errors import SetupError
from meander.state.layers.topic import MAX_STATE_RECORD

STATE_PARTITIONS = 8
_UNLIMITED = -1
_HOUR = 3600 * 1000
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names that the internal topics of a flow have."""

    control: str
    status: str
    state: str
    decisions: str
    commit_markers: str
    checkpoints: str
    in_flight: str
    dead: str
    plans: str


def topic_names(prefix: str, flow: str) -> TopicNames:
    """Return the names of a flow's internal topics. Raise SetupError if Kafka does not allow them.

    >>> topic_names("test.", "delays").control
    'test.delays.control'
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", prefix + flow):
        raise SetupError(
            f"flow {prefix + flow!r}",
            "its topics cannot be named after it",
            "use letters, digits, '.', '_' and '-' only, at most 200",
        )
    return TopicNames(*(f"{prefix}{flow}.{kind}" for kind in TopicNames.__slots__))


def stems(present: Collection[str]) -> set[str]:
    """Return the prefixes and names of the flows all of whose internal topics are present.

    >>> from dataclasses import astuple
    >>> stems({*astuple(topic_names("test.", "delays")), "lines", "other.control"})
    {'test.delays'}
    """
    found = {name.removesuffix(".control") for name in present if name.endswith(".control")}
    return {
        one for one in found if all(f"{one}.{kind}" in present for kind in TopicNames.__slots__)
    }


def without_internal(present: Iterable[str]) -> set[str]:
    """Return the topics that are no internal topics of a flow.

    >>> from dataclasses import astuple
    >>> without_internal([*astuple(topic_names("test.", "delays")), "lines"])
    {'lines'}
    """
    topics = {*present}
    return topics - {f"{stem}.{kind}" for stem in stems(topics) for kind in TopicNames.__slots__}


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic that has a purpose and required settings."""

    name: str
    purpose: str
    partitions: int
    exactly: dict[str, str]
    """Settings with exactly one allowed value."""
    least: dict[str, int]
    """Settings with a least allowed value; `_UNLIMITED` exceeds all."""


def internal_topics(prefix: str, flow: str) -> list[InternalTopic]:
    """Return a flow's internal topics with their required settings."""
    names = topic_names(prefix, flow)
    log = {"cleanup.policy": "delete"}
    # A broker with a default byte limit would otherwise delete records ahead of their time.
    week: dict[str, int] = {"retention.ms": _WEEK, "retention.bytes": _UNLIMITED}
    ever: dict[str, int] = {"retention.ms": _UNLIMITED, "retention.bytes": _UNLIMITED}
    compacted = {"retention.bytes": _UNLIMITED, "max.message.bytes": MAX_STATE_RECORD}
    return [
        InternalTopic(names.control, "commands to the running flow", 1, log, week),
        # The topic is not compacted, as a command has several events under one key. It has the
        # broker's clock, so the age of a heartbeat does not depend on the driver's clock.
        InternalTopic(
            names.status, "events of commands; heartbeats", 1,
            log | {"message.timestamp.type": "LogAppendTime"}, week,
        ),
        # The lag must exceed the longest restore: a reader must find all records that a manifest
        # names.
        InternalTopic(
            names.state, "keyed state, in layers", STATE_PARTITIONS,
            {"cleanup.policy": "compact"},
            compacted | {"min.compaction.lag.ms": _DAY},
        ),
        InternalTopic(
            names.decisions, "decisions, in order, before they take effect", 1, log, ever
        ),
        InternalTopic(names.commit_markers, "commit markers of all workers", 1, log, ever),
        InternalTopic(names.checkpoints, "checkpoints that a flow may start from", 1, log, ever),
        # A shorter lag suffices, as each checkpoint writes its in-flight records again. It still
        # far exceeds the time in which a driver notices that another has replaced it.
        InternalTopic(
            names.in_flight, "in-flight records of checkpoints, and parts of large checkpoints",
            STATE_PARTITIONS,
            {"cleanup.policy": "compact"},
            compacted | {"min.compaction.lag.ms": _HOUR},
        ),
        InternalTopic(
            names.dead, "records that could not be read or processed, with the reason", 1,
            log, ever | {"max.message.bytes": MAX_DEAD_RECORD},
        ),
        InternalTopic(names.plans, "plans that were applied, with their outcomes", 1, log, ever),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A row that shows a topic in `meander topics`; zeros and '' where it does not exist."""

    name: str
    purpose: str
    partitions: int
    cleanup: str
    replication: int
    exists: bool


def expect_started(client: Admin, topic: str, flow: str) -> None:
    """Raise SetupError where a flow lacks an internal topic, as before its first start."""
    if not find_topic(client, topic).partitions:
        raise SetupError(
            f"flow {flow!r}",
            f"no flow of that name has run on Kafka at {client.bootstrap}",
            "start it with meander run, or correct the name, --prefix or --bootstrap",
        )


def ensure_internal(client: Admin, prefix: str, flow: str) -> TopicNames:
    """Create missing topics and verify existing topics; return all names. Raise SetupError."""
    wanted = internal_topics(prefix, flow)
    existing = descriptions(client, [topic.name for topic in wanted])
    absent = [topic for topic in wanted if existing[topic.name] is None]
    if absent:
        _create(client, absent)
    settings = configs(client, [topic.name for topic in wanted if topic not in absent])
    for topic in wanted:
        found = existing[topic.name]
        if found is not None:
            _verify(topic, found, settings[topic.name])
    return topic_names(prefix, flow)


def delete(client: Admin, topics: list[str]) -> None:
    """Delete existing topics one after the other, and wait until none exists. Raise SetupError
    where the broker refuses."""
    for topic in topics:
        try:
            client.delete_topics([topic], request_timeout=REQUEST_TIMEOUT)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translate(error, f"topic {topic!r}", client.bootstrap) from None
    if (late := _await(client, topics, exist=False)) is not None:
        raise SetupError(f"topic {late!r}", "it still exists", "see the broker's log, and retry")


def describe(client: Admin, prefix: str, flow: str) -> list[TopicRow]:
    """Return a row for each of a flow's internal topics."""
    wanted = internal_topics(prefix, flow)
    existing = descriptions(client, [topic.name for topic in wanted])
    settings = configs(client, [name for name, found in existing.items() if found is not None])
    return [_row(topic, existing[topic.name], settings.get(topic.name, {})) for topic in wanted]


def _row(
    topic: InternalTopic, found: TopicDescription | None, config: Mapping[str, str]
) -> TopicRow:
    if found is None:
        return TopicRow(topic.name, topic.purpose, 0, "", 0, exists=False)
    replication = min(len(partition.replicas) for partition in found.partitions)
    cleanup = config["cleanup.policy"]
    return TopicRow(
        topic.name, topic.purpose, len(found.partitions), cleanup, replication, exists=True
    )


def _create(client: Admin, topics: list[InternalTopic]) -> None:
    replicas = min(_REPLICAS, len(client.list_topics(timeout=REQUEST_TIMEOUT).brokers))
    # With three replicas, two must hold a record before it counts as durable.
    shared = {"min.insync.replicas": str(max(1, replicas - 1))}
    made = client.create_topics(
        [
            NewTopic(
                topic.name,
                topic.partitions,
                replicas,
                config=shared | topic.exactly | {k: str(v) for k, v in topic.least.items()},
            )
            for topic in topics
        ],
        operation_timeout=REQUEST_TIMEOUT,
        request_timeout=REQUEST_TIMEOUT,
    )
    for name, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translate(error, f"topic {name!r}", client.bootstrap) from None
    # A broker may briefly deny a topic that it has just created.
    if absent := _await(client, [topic.name for topic in topics], exist=True):
        raise missing_topic(f"topic {absent!r}")


def _await(client: Admin, topics: list[str], *, exist: bool) -> str | None:
    """Wait until all topics exist, or none does; return a topic where that fails, else None."""
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while late := [
        name for name, found in descriptions(client, topics).items() if (found is not None) != exist
    ]:
        if time.monotonic() > deadline:
            return late[0]
        time.sleep(0.05)
    return None


def _verify(topic: InternalTopic, found: TopicDescription, config: Mapping[str, str]) -> None:
    if len(found.partitions) != topic.partitions:
        raise _mismatch(topic, "partitions", str(len(found.partitions)), str(topic.partitions))
    for name, value in topic.exactly.items():
        if config[name] != value:
            raise _mismatch(topic, name, config[name], value)
    for name, least in topic.least.items():
        found_value = int(config[name])
        if found_value != _UNLIMITED and (least == _UNLIMITED or found_value < least):
            raise _mismatch(topic, name, config[name], str(least))


def _mismatch(topic: InternalTopic, setting: str, found: str, required: str) -> SetupError:
    remedy = (
        "choose another name or prefix for the flow, or delete the topic if it is not needed"
        if setting == "partitions"
        else f"set it with kafka-configs.sh --alter --topic {topic.name} "
        f"--add-config {setting}={required}"
    )
    return SetupError(
        f"topic {topic.name!r} ({topic.purpose})",
        f"its {setting} is {found}, not {required}",
        remedy,
    )
