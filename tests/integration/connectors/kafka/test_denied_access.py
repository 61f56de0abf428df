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

from meander import KafkaSink, KafkaSource
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Unreachable, transactional, translate
from meander.connectors.kafka.client import admin as client_admin
from meander.connectors.kafka.sink.record_producer import RecordProducer
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.local_broker import broker
from meander.connectors.local_broker.broker import LocalBroker, free_port
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.internal_topics import ensure_internal
from meander.schemas.errors import MeanderError, SetupError
from tests.support.kafka.connector_rig import Rig, await_ticket, batch
from tests.support.kafka.topics import PATIENCE, admin, until

SASL = free_port()
"""Where the broker asks for a login."""


class Guarded(dict[str, str | int]):
    """A broker's settings with one more listener."""

    def __or__(self, other: dict[str, str | int]) -> dict[str, str | int]:  # type: ignore[override]
        more = f",SASL://127.0.0.1:{SASL}"
        listens = {name: f"{other[name]}{more}" for name in ("listeners", "advertised.listeners")}
        return {**self, **other, **listens}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A broker that guards whatever has an access list, creates topics when asked for one, and
    wants a login on a second port."""
    strict = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ",SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain"
        '.PlainLoginModule required user_ann="annpw";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "auto.create.topics.enable": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "SETTINGS", Guarded({**broker.SETTINGS, **strict}))
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


def login(user: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password,
    }  # fmt: skip


def read_any(settings: dict[str, str]) -> None:
    """Read until a refusal, as a worker does between its turns."""
    reading = client.consumer(settings, "any")
    while True:
        reading.poll(0.05)
        client.contact(settings).check()


REFUSED = "the broker refused the login; .* correct the settings security.protocol and sasl"
ENDS: dict[str, Callable[[dict[str, str]], object]] = {
    "questions": client_admin,
    "reading": read_any,
    "records": lambda settings: RecordProducer(settings, "any"),
    "transactions": lambda settings: transactional(settings, "any"),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_client_reports_a_refused_login(
    rig: Rig, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it is given up that a broker answers at all."""
    for n, wrong in enumerate([login("ann", "no"), login("ann", "annpw", "SCRAM-SHA-256")]):
        monkeypatch.setattr(client, "_contacts", {})
        monkeypatch.setattr(client, "REQUEST_TIMEOUT", 120.0)
        settings = {"bootstrap.servers": f"127.0.0.1:{SASL}"} | wrong
        with pytest.raises(SetupError, match=REFUSED) as raised:
            ENDS[end](settings)
        assert not isinstance(raised.value, Unreachable), n


def test_a_login_that_is_right_and_one_that_is_missing(rig: Rig) -> None:
    there = {"bootstrap.servers": f"127.0.0.1:{SASL}"}
    client_admin(there | login("ann", "annpw"))
    with pytest.raises(
        Unreachable, match="or it expects another security.protocol; wait for it, or"
    ):
        client_admin(there)


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
        (KafkaError._DESTROY_BROKER, Unreachable, "no broker answers"),
        (KafkaError._UNKNOWN_BROKER, Unreachable, "no broker answers"),
        (KafkaError._TIMED_OUT_QUEUE, Unreachable, "no broker answers"),
        (KafkaError.LEADER_NOT_AVAILABLE, Unreachable, "its broker is not ready"),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, Unreachable, "its broker is not ready"),
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            SetupError,
            "it does not exist; create it (meander topics create)",
        ),
        (KafkaError._AUTO_OFFSET_RESET, MeanderError, "it does not hold the offset to be read"),
        (KafkaError.INVALID_RECORD, MeanderError, "validate record); call key_by before the sink"),
        (KafkaError.TOPIC_EXCEPTION, SetupError, "that is no name of a topic; use letters"),
    ],
)
def test_errors_of_kafka_are_sentences(code: int, kind: type[MeanderError], words: str) -> None:
    error = translate(KafkaError(code), "topic 'flights'")
    assert type(error) is kind
    assert str(error).startswith("topic 'flights': ")
    assert words in str(error)
