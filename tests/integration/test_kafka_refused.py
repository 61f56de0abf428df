"""What the broker does not allow is one clear sentence, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from connectors import KafkaSink, KafkaSource, broker
from connectors.broker import LocalBroker
from connectors.client import Unreachable, translate
from connectors.client import admin as client_admin
from connectors.control import ControlTopic
from connectors.topics import ensure_internal, group
from schemas.errors import MeanderError, SetupError
from tests.kafka_rig import Rig, await_ticket, batch
from tests.kafka_tools import PATIENCE, admin, until


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A broker that guards whatever has an access list, and creates topics when asked for one."""
    strict = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "auto.create.topics.enable": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in strict.items():
            patch.setitem(broker.SETTINGS, name, value)
        with LocalBroker() as local:
            rig = Rig(local.bootstrap, "t.")
            rig.topic("flow.dead")
            yield rig


def guard(rig: Rig, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Lets somebody else do this, and thereby nobody here."""
    client = admin(rig.bootstrap)
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in client.create_acls([binding]).values():
        made.result(30)


def test_a_source_that_may_not_be_read(rig: Rig) -> None:
    topic = rig.topic("secret-in")
    guard(rig, ResourceType.TOPIC, topic, AclOperation.READ)
    with (
        pytest.raises(SetupError, match=f"topic '{topic}': the broker refused access to the topic"),
        rig.reading(KafkaSource(topic)) as reading,
    ):
        reading.until(lambda: False, "the refusal")


def test_a_source_that_may_be_seen_but_not_read(rig: Rig) -> None:
    topic = rig.topic("half-secret-in")
    client = admin(rig.bootstrap)
    anybody = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in client.create_acls([anybody]).values():
        made.result(30)
    with (
        pytest.raises(SetupError, match=f"topic '{topic}': the broker refused access to the topic"),
        rig.reading(KafkaSource(topic), rig.context(until_end=False)) as reading,
    ):
        reading.until(lambda: False, "the refusal")


def test_a_sink_that_may_not_be_written(rig: Rig) -> None:
    topic = rig.topic("secret-out")
    guard(rig, ResourceType.TOPIC, topic, AclOperation.WRITE)
    with pytest.raises(SetupError, match=f"topic '{topic}': the broker refused access"):
        write_one(rig, topic)


def test_a_group_that_may_not_be_used(rig: Rig) -> None:
    names = ensure_internal(client_admin(rig.settings), rig.prefix, "guarded")
    name = group(rig.prefix, "guarded")
    guard(rig, ResourceType.GROUP, name, AclOperation.READ)

    said: list[str] = []

    def refused() -> bool:
        # A broker learns of its access lists a moment after they are made.
        try:
            ControlTopic(rig.settings, names.control, name).close()
        except SetupError as error:
            said.append(str(error))
        return bool(said)

    until(refused, "the refusal")
    assert said[0].startswith(f"consumer group '{name}': the broker refused access to")


def write_one(rig: Rig, topic: str) -> None:
    writer = KafkaSink(topic).open(rig.context())
    await_ticket(writer, writer.write(batch([1])))


def read_none(rig: Rig, topic: str) -> None:
    with rig.reading(KafkaSource(topic)):
        pass


@pytest.mark.parametrize("use", [read_none, write_one])
def test_a_missing_topic_is_not_created_even_where_the_broker_would(
    rig: Rig, use: Callable[[Rig, str], None]
) -> None:
    missing = f"t.missing-{use.__name__}"
    with pytest.raises(SetupError, match="it does not exist"):
        use(rig, missing)
    client = admin(rig.bootstrap)
    assert missing not in client.list_topics(timeout=PATIENCE).topics


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._AUTHENTICATION, SetupError, "the broker refused the login; have its admin"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, SetupError, "refused access to the consumer group"),
        (KafkaError._SSL, SetupError, "no encrypted connection could be made"),
        (KafkaError._ALL_BROKERS_DOWN, Unreachable, "no broker answers"),
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            SetupError,
            "it does not exist; create it (meander topics create)",
        ),
        (KafkaError._AUTO_OFFSET_RESET, MeanderError, "are no longer on the broker"),
        (KafkaError.INVALID_RECORD, MeanderError, "Kafka answers INVALID_RECORD"),
    ],
)
def test_errors_of_kafka_are_sentences(code: int, kind: type[MeanderError], words: str) -> None:
    error = translate(KafkaError(code), "topic 'flights'")
    assert type(error) is kind
    assert str(error).startswith("topic 'flights': ")
    assert words in str(error)
