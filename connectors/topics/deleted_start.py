"""The start of an internal topic that moves on while a reader reads it.

A running flow deletes commit markers and checkpoints that no restart needs, and the broker deletes
commands and events after their retention. Guarantees that a reader whose next record was deleted
continues at the new start. Any other lost offset is an error, as on a recreated topic.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from meander.connectors.kafka import client


def offset_after(error: KafkaError, consumer: Consumer, topic: str, following: int) -> int:
    """Return the offset at which a consumer of a topic with one partition continues after an error.

    That is `following`, the offset that it was to read, at the end of the topic and for a transient
    error. It is the topic's start where the record was deleted. Raise MeanderError for any other
    error, and where the start does not lie behind that offset.
    """
    if error.code() == KafkaError._PARTITION_EOF or client.is_transient(error):
        return following
    if not client.is_expired(error):
        raise client.translate(error, f"topic {topic!r}")
    start, _ = client.watermarks(consumer, topic, 0)
    if start <= following:
        raise client.translate(error, f"topic {topic!r}")
    consumer.assign([TopicPartition(topic, 0, start)])
    return start
