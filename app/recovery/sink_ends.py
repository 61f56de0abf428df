"""The ends of the topics that a flow's sinks write to.

Guarantees that ends which have not moved mean that no result is on a topic: records of other
programs move them too, and records of open transactions count. Results of other sinks than Kafka's
leave no trace here. Cost: one request for the ends, one
per topic, and one where a sink names a pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from meander.app.loading.plan_topics import sink_topics
from meander.app.loading.preflight import PreparedFlow
from meander.connectors.kafka import client
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.topic_metadata import partitions_of
from meander.dataflow.api.nodes import SinkNode

SinkEnds = NewType("SinkEnds", Mapping[tuple[str, int], int])
"""The end offsets of the sink topics, by topic and partition."""


def sink_ends(prepared: PreparedFlow) -> SinkEnds | None:
    """Return the present ends of the topics of all sinks; None where a sink writes elsewhere.

    Raises MeanderError where a topic is missing, or no broker answers.
    """
    sinks = [node.spec for node in prepared.plan.nodes if isinstance(node, SinkNode)]
    if not all(isinstance(spec, KafkaSink) for spec in sinks):
        return None
    return client.retry_request(lambda: _ends(prepared), "the sink topics")


def has_moved(before: SinkEnds, now: SinkEnds) -> bool:
    """Return whether any topic has had a record since. A topic or partition may be new.

    >>> before = SinkEnds({("counts", 0): 5})
    >>> has_moved(before, SinkEnds({("counts", 0): 5, ("counts", 1): 0}))
    False
    >>> has_moved(before, SinkEnds({("counts", 0): 6}))
    True
    """
    return any(end != before.get(place, 0) for place, end in now.items())


def _ends(prepared: PreparedFlow) -> SinkEnds:
    admin = client.admin(prepared.options.kafka)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {
        TopicPartition(topic, partition): latest
        for topic in sink_topics(admin, prepared.plan)
        for partition in range(partitions_of(admin, topic))
    }
    if not asked:
        return SinkEnds({})
    answers = admin.list_offsets(
        asked, isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=client.REQUEST_TIMEOUT,
    )  # fmt: skip
    return SinkEnds(
        {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
    )
