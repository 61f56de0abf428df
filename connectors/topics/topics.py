"""The topics of a flow: their names, what each is for, and that they are as they must be.

Guarantees that `ensure_internal` returns only when every internal topic exists with the cleanup
policy that its purpose rests on: compaction of a log of decisions, or deletion of state, would lose
data in silence. Never creates or changes a user's topic. Calls block; they are made at start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    NewTopic,
    TopicDescription,
)

from meander.connectors.kafka.client import ANSWER, Admin, missing, translate
from meander.connectors.kafka.dead_letter import MAX_DEAD_RECORD
from meander.connectors.kafka.topics import configs, descriptions, seen
from meander.schemas.errors import SetupError
from meander.state.layers.layer_writer import STATE_LIMIT

MAX_STATE_RECORD = STATE_LIMIT + (64 << 10)
"""Bytes of one record on the state topic: the greatest state alone in its chunk, and its head."""
STATE_PARTITIONS = 8
_FOR_EVER = -1
_HOUR = 3600 * 1000
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Names:
    """What a flow's internal topics are called."""

    control: str
    status: str
    state: str
    decisions: str
    marks: str
    checkpoints: str
    in_flight: str
    dead: str


def names(prefix: str, flow: str) -> Names:
    """The names of a flow's internal topics. Raises SetupError if Kafka could not take them.

    >>> names("test.", "delays").control
    'test.delays.control'
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", prefix + flow):
        raise SetupError(
            f"flow {prefix + flow!r}",
            "its topics cannot be named after it",
            "use letters, digits, '.', '_' and '-' only, at most 200",
        )
    return Names(*(f"{prefix}{flow}.{kind}" for kind in Names.__slots__))


@dataclass(frozen=True, slots=True)
class Internal:
    """One internal topic as it must be."""

    name: str
    purpose: str
    partitions: int
    exactly: dict[str, str]
    """Settings that no other value may take the place of."""
    least: dict[str, int]
    """Settings that may be greater, but not less; `_FOR_EVER` exceeds all."""


def internal(prefix: str, flow: str) -> list[Internal]:
    """A flow's internal topics as they must be."""
    called = names(prefix, flow)
    log = {"cleanup.policy": "delete"}
    # Else a broker whose default bounds logs by bytes deletes what their times keep.
    week: dict[str, int] = {"retention.ms": _WEEK, "retention.bytes": _FOR_EVER}
    ever: dict[str, int] = {"retention.ms": _FOR_EVER, "retention.bytes": _FOR_EVER}
    return [
        Internal(called.control, "commands to the running flow", 1, log, week),
        # Not compacted: a command has several events under one key, and all are wanted. The
        # broker's clock, so that the age of a heartbeat does not depend on the driver's.
        Internal(
            called.status, "what became of commands; heartbeats", 1,
            log | {"message.timestamp.type": "LogAppendTime"}, week,
        ),
        # The lag has to exceed the longest restore: a reader must find what a manifest names.
        Internal(
            called.state, "keyed state, in layers", STATE_PARTITIONS,
            {"cleanup.policy": "compact"},
            {"min.compaction.lag.ms": _DAY, "max.message.bytes": MAX_STATE_RECORD},
        ),
        Internal(
            called.decisions, "what was decided, in order, before it took effect", 1,
            log, ever,
        ),
        Internal(
            called.marks, "how far each worker's committed results go", 1,
            log, ever,
        ),
        Internal(
            called.checkpoints, "which layers of the state topic a flow starts from", 1,
            log, ever,
        ),
        # Shorter, as each checkpoint writes all anew; still far longer than a driver takes to see
        # that another goes on from what it has retired.
        Internal(
            called.in_flight, "records in flight of checkpoints, and parts of large checkpoints",
            STATE_PARTITIONS,
            {"cleanup.policy": "compact"},
            {"min.compaction.lag.ms": _HOUR, "max.message.bytes": MAX_STATE_RECORD},
        ),
        Internal(
            called.dead, "records that could not be read or processed, with the reason", 1,
            log, ever | {"max.message.bytes": MAX_DEAD_RECORD},
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as `meander topics` shows it; zeros and '' where it does not exist."""

    name: str
    purpose: str
    partitions: int
    cleanup: str
    replication: int
    exists: bool


def expect_ran(client: Admin, topic: str, flow: str) -> None:
    """Raises SetupError where a flow lacks an internal topic, as before its first start."""
    if not seen(client, topic).partitions:
        raise SetupError(
            f"flow {flow!r}",
            f"no flow of that name has run on Kafka at {client.bootstrap}",
            "start it with meander run, or correct the name, --prefix or --bootstrap",
        )


def ensure_internal(client: Admin, prefix: str, flow: str) -> Names:
    """Create what is missing and verify what is there. Raises SetupError."""
    wanted = internal(prefix, flow)
    existing = descriptions(client, [topic.name for topic in wanted])
    absent = [topic for topic in wanted if existing[topic.name] is None]
    if absent:
        _create(client, absent)
    settings = configs(client, [topic.name for topic in wanted if topic not in absent])
    for topic in wanted:
        found = existing[topic.name]
        if found is not None:
            _verify(topic, found, settings[topic.name])
    return names(prefix, flow)


def delete(client: Admin, topics: list[str]) -> None:
    """Delete topics, one after the other, and wait until they are gone; those that there are not
    are left out. Raises SetupError where the broker refuses."""
    for topic in topics:
        try:
            client.delete_topics([topic], request_timeout=ANSWER)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise translate(error, f"topic {topic!r}", client.bootstrap) from None
    if (late := _late(client, topics, there=False)) is not None:
        raise SetupError(f"topic {late!r}", "it is still there", "see the broker's log, and retry")


def describe(client: Admin, prefix: str, flow: str) -> list[TopicRow]:
    """A flow's internal topics as they are."""
    wanted = internal(prefix, flow)
    existing = descriptions(client, [topic.name for topic in wanted])
    settings = configs(client, [name for name, found in existing.items() if found is not None])
    return [_row(topic, existing[topic.name], settings.get(topic.name, {})) for topic in wanted]


def _row(topic: Internal, found: TopicDescription | None, config: Mapping[str, str]) -> TopicRow:
    if found is None:
        return TopicRow(topic.name, topic.purpose, 0, "", 0, exists=False)
    replication = min(len(partition.replicas) for partition in found.partitions)
    cleanup = config["cleanup.policy"]
    return TopicRow(
        topic.name, topic.purpose, len(found.partitions), cleanup, replication, exists=True
    )


def _create(client: Admin, topics: list[Internal]) -> None:
    replicas = min(_REPLICAS, len(client.list_topics(timeout=ANSWER).brokers))
    # With three copies two must have a record before it counts as durable.
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
        operation_timeout=ANSWER,
        request_timeout=ANSWER,
    )
    for name, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translate(error, f"topic {name!r}", client.bootstrap) from None
    _await_all(client, [topic.name for topic in topics])


def _await_all(client: Admin, topics: list[str]) -> None:
    """A broker may answer for a moment that it does not know what it has just created."""
    if absent := _late(client, topics, there=True):
        raise missing(f"topic {absent!r}")


def _late(client: Admin, topics: list[str], *, there: bool) -> str | None:
    """Wait until all of these are there, or none is; one that is late."""
    deadline = time.monotonic() + ANSWER
    while late := [
        name for name, found in descriptions(client, topics).items() if (found is not None) != there
    ]:
        if time.monotonic() > deadline:
            return late[0]
        time.sleep(0.05)
    return None


def _verify(topic: Internal, found: TopicDescription, config: Mapping[str, str]) -> None:
    if len(found.partitions) != topic.partitions:
        raise _wrong(topic, "partitions", str(len(found.partitions)), str(topic.partitions))
    for name, value in topic.exactly.items():
        if config[name] != value:
            raise _wrong(topic, name, config[name], value)
    for name, least in topic.least.items():
        found_value = int(config[name])
        if found_value != _FOR_EVER and (least == _FOR_EVER or found_value < least):
            raise _wrong(topic, name, config[name], str(least))


def _wrong(topic: Internal, setting: str, found: str, right: str) -> SetupError:
    remedy = (
        "give the flow another name or prefix, or delete the topic if it is not needed"
        if setting == "partitions"
        else f"set it with kafka-configs.sh --alter --topic {topic.name} "
        f"--add-config {setting}={right}"
    )
    return SetupError(
        f"topic {topic.name!r} ({topic.purpose})", f"its {setting} is {found}, not {right}", remedy
    )
