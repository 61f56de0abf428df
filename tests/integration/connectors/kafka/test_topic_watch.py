"""A topic that grows while it is read is noticed; one that loses anything ends the reading."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import ClusterMetadata, NewPartitions

from meander import KafkaSource
from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.source import topic_watch
from meander.dataflow.interfaces import Partition, Rest
from meander.schemas.errors import SetupError
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    admin,
    create_topic,
    partitions_of,
    produce,
    until,
)


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    made = Rig(broker.bootstrap, prefix)
    made.topic("flow.dead")
    return made


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "CHECK_INTERVAL", 0.1)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_gets_a_partition_is_noticed_and_that_one_can_be_read(
    rig: Rig, start: str
) -> None:
    topic = rig.topic("in", 2)
    context = rig.context(until_end=False, start=start)
    with rig.reading(KafkaSource(topic), context) as reading:
        reading.to_idle()
        assert reading.reader.total == 2
        grow(rig, topic, 3)
        produce(rig.bootstrap, topic, [Record(b"7", partition=2)])
        reading.until(lambda: reading.reader.total == 3, "it is noticed")
        assert reading.reader.partitions == [0, 1], "who reads it is not the reader's to decide"
        reading.reader.adopt(Partition(2), Rest(0, None))
        reading.until(lambda: reading.values == [7], "it is read")


class Asked(Consumer):
    """A consumer that knows who asked for the topic, and how many partitions were told."""

    told: ClassVar[list[tuple[threading.Thread, int]]] = []

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:  # type: ignore[override]
        found: ClusterMetadata = super().list_topics(topic, timeout=timeout)
        self.told.append((threading.current_thread(), len(found.topics[topic].partitions)))
        return found


def test_the_workers_own_thread_never_waits_until_its_client_has_learned_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that has the queue all the time; and nothing is told of it before."""
    monkeypatch.setattr(client, "Consumer", Asked)
    monkeypatch.setattr(Asked, "told", [])
    topic = rig.topic("in", 2)
    with rig.reading(KafkaSource(topic), rig.context(until_end=False)) as reading:
        grow(rig, topic, 3)
        until(lambda: not reading.reader.poll() and reading.reader.total == 3, "it is told")
        assert Asked.told[-1][1] == 3
        assert {thread for thread, _ in Asked.told} == {reading.reader._waiter}


def test_a_bounded_run_ends_with_the_partitions_of_its_start(rig: Rig) -> None:
    topic = rig.topic("in", 1)
    produce(rig.bootstrap, topic, [Record(b"7", partition=0)])
    with rig.reading(KafkaSource(topic), rig.context(until_end=True)) as reading:
        grow(rig, topic, 2)
        reading.until(lambda: reading.reader._topic_watch.total == 2, "it has looked")
        assert reading.reader.total is None
        assert reading.to_end().values == [7]


def test_a_recreated_topic_with_more_partitions_is_another_topic(rig: Rig) -> None:
    """What has been read of the old one is no part of it."""
    topic = rig.topic("in", 2)
    client = admin(rig.bootstrap)
    look = topic_watch.TopicWatch(
        rig.settings, topic, topic_metadata.describe_topic(client, topic, PATIENCE)
    )
    client.delete_topics([topic])[topic].result(30)
    until(lambda: not partitions_of(client, topic), "it is gone")
    create_topic(rig.bootstrap, topic, 3)
    with pytest.raises(SetupError, match="it has been deleted and recreated"):
        until(lambda: bool(look.check_if_due()), "the error")  # type: ignore[func-returns-value]


def test_a_topic_deleted_in_mid_run_ends_the_flow(rig: Rig) -> None:
    topic = rig.topic("in")
    with rig.reading(KafkaSource(topic), rig.context(until_end=False)) as reading:
        client = admin(rig.bootstrap)
        client.delete_topics([topic])[topic].result(30)
        told = "it was deleted while the flow read it; create it .*, and then run meander reset"
        with pytest.raises(SetupError, match=told):
            reading.until(lambda: False, "the error")


def grow(rig: Rig, topic: str, partitions: int) -> None:
    """Returns once the topic has so many."""
    client = admin(rig.bootstrap)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    until(lambda: len(partitions_of(client, topic)) == partitions, "the topic has grown")
