"""A place in a source topic that is no more is told, each by itself: never is a record left out."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from connectors.source import gone
from tests.brokers import Broker
from tests.kafka_tools import PATIENCE, Record, admin, create_topic, produce, until


def test_each_place_that_is_no_more_is_told(broker: Broker, prefix: str) -> None:
    settings, topic = {"bootstrap.servers": broker.bootstrap}, prefix + "lines"
    create_topic(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, [Record(b"%d" % n, partition=n % 2) for n in range(20)])
    assert gone(settings, topic, {0: 0, 1: 10}) == []
    client, expired = admin(broker.bootstrap), TopicPartition(topic, 0, 4)
    client.delete_records([expired])[expired].result(PATIENCE)

    def told() -> list[str]:
        return gone(settings, topic, {0: 3, 1: 11, 2: 0})

    until(lambda: len(told()) == 3, f"all are told: {told()}")
    late, early, none = told()
    assert "at offset 3 of partition 0, which holds 4 to 10: retention has deleted" in late
    assert "at offset 11 of partition 1, which holds 0 to 10" in early
    assert none == f"topic {topic!r} was read in partition 2, and has 2 now"
    assert gone(settings, topic, {0: 4, 1: 10}) == []
