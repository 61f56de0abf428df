"""The start of an internal topic that moves on while a reader reads it.

A running flow deletes commit markers and checkpoints that no restart needs, and the broker deletes
commands and events after their retention. Guarantees that a reader whose next record was deleted
goes on from the new start. Any other lost offset is an error, as on a recreated topic.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client


def read_from_new_start(consumer: Consumer, topic: str, following: int, error: KafkaError) -> int:
    """Let a consumer of a topic with one partition go on from the topic's start; return that start.

    `following` is the offset that it was to read, and `error` the broker's answer. Raise
    MeanderError where the topic's start is not behind that offset.
    """
    start, _ = client.watermarks(consumer, topic, 0)
    if start <= following:
        raise client.translate(error, f"topic {topic!r}")
    consumer.assign([TopicPartition(topic, 0, start)])
    return start
