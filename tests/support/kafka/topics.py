"""What tests do to a broker: make topics, write to them, read them to their end, wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from meander.state.times.time import from_millis

ANYWHERE = -1
"""The producer chooses the partition by the key."""

PATIENCE = 180.0
"""Seconds that a test waits for what must come: it ends what would hang, and judges no speed."""

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic; what is None when it is produced is left to Kafka."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    """Milliseconds since 1970."""
    headers: Headers = field(default_factory=list)
    offset: int | None = None


def time_of(result: Record) -> int:
    """The logical time of a result, by its headers."""
    headers = dict(result.headers)
    return from_millis(*(int(headers[f"meander.{part}"] or b"") for part in ("time", "sequence")))


def order_of(result: Record) -> tuple[int, int, int, int, int]:
    """The place of a result in the total order: time, origin, partition, offset, index."""
    headers = dict(result.headers)
    origin, partition, offset, index = (
        int(headers[f"meander.{part}"] or b"")
        for part in ("origin", "partition", "offset", "index")
    )
    return time_of(result), origin, partition, offset, index


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Returns once the topic is there; `config` has _ for the dots (cleanup_policy="compact")."""
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    client = admin(bootstrap)
    client.create_topics([NewTopic(topic, partitions, 1, config=dotted)])[topic].result(PATIENCE)
    until(
        lambda: partitions_of(client, topic) == list(range(partitions)), f"topic {topic} is known"
    )


def configure_topic(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Returns once the broker tells of the settings."""
    client, resource = admin(bootstrap), ConfigResource(ResourceType.TOPIC, topic)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client.incremental_alter_configs([changed])[changed].result(PATIENCE)

    def told() -> bool:
        found = client.describe_configs([resource])[resource].result(PATIENCE)
        return all(found[name].value == value for name, value in config.items())

    until(told, "the settings are there")


def delete_topics(bootstrap: str, prefix: str) -> None:
    """Deletes those whose name begins so."""
    client = admin(bootstrap)
    listed = client.list_topics(timeout=PATIENCE).topics
    if found := [topic for topic in listed if topic.startswith(prefix)]:
        for future in client.delete_topics(found).values():
            future.result(PATIENCE)


def produce(
    bootstrap: str, topic: str, records: Iterable[Record], settings: dict[str, str] | None = None
) -> None:
    """Returns once every record is on the topic, those of a partition in the order given."""
    config: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "linger.ms": 5}
    # Else what is tried again, as at a topic just made, comes behind what followed it.
    config["enable.idempotence"] = True
    producer = Producer(config | (settings or {}))
    # Else it finds no connection at first, and looks again half a second later.
    producer.list_topics(topic, timeout=PATIENCE)
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    for record in records:
        where = ANYWHERE if record.partition is None else record.partition
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, where, delivered,
                    timestamp=record.timestamp or 0, headers=record.headers,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    assert left == 0, f"{left} records did not reach {topic}"
    assert not failures, f"{topic}: {failures[0]}"


def consume_all(bootstrap: str, topic: str, *, committed: bool = True) -> list[Record]:
    """All that is on the topic now, by partition and offset; without open transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            # The beginning is another where records are deleted meanwhile.
            "auto.offset.reset": "earliest",
            # The end of the log is told by a fetch that has waited this long for more.
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        # Asked through the consumer, which else looks for a connection half a second later.
        open_partitions = set(partitions_of(consumer, topic))
        assert open_partitions, f"topic {topic} does not exist"
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in open_partitions])
        found: list[Record] = []
        deadline = time.monotonic() + 60
        while open_partitions:
            assert time.monotonic() < deadline, f"{topic}: no end after {len(found)} records"
            message = consumer.poll(1.0)
            if message is None:
                continue
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                key, value = message.key(), message.value()
                assert not isinstance(key, str)
                assert not isinstance(value, str)
                found.append(
                    Record(value, key, partition, message.timestamp()[1],
                           _headers(message.headers()), message.offset())
                )  # fmt: skip
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(partition)
            else:
                raise AssertionError(f"{topic}[{partition}]: {error}")
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition or 0, record.offset or 0))


def ends(bootstrap: str, topic: str) -> int:
    """How many records a topic has had, with those that nobody sees."""
    client = admin(bootstrap)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, one): latest for one in partitions_of(client, topic)}
    return sum(one.result(PATIENCE).offset for one in client.list_offsets(asked).values())


def await_records(
    bootstrap: str, topic: str, enough: Callable[[list[Record]], bool]
) -> list[Record]:
    """The records of the topic as soon as they are enough."""
    found: list[Record] = []

    def look() -> bool:
        found[:] = consume_all(bootstrap, topic)
        return enough(found)

    until(look, f"there is enough on {topic}")
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; an AssertionError names it where it does not come in time.

    A look at a topic takes processor time from the flow that the test waits for, so looks take at
    most a fifth of the time."""
    begun = time.monotonic()
    deadline = begun + PATIENCE
    while not condition():
        looked = time.monotonic()
        assert looked < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(min(max(0.02, 4 * (looked - begun)), 0.5))
        begun = time.monotonic()


def partitions_of(client: AdminClient | Consumer, topic: str) -> list[int]:
    """Those that a broker tells of."""
    listed = client.list_topics(topic, timeout=PATIENCE).topics.get(topic)
    return sorted(listed.partitions) if listed is not None else []


def _headers(headers: dict[str, str | bytes | None] | Headers | None) -> Headers:
    return list(headers.items() if isinstance(headers, dict) else headers or [])
