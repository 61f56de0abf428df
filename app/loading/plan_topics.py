"""The topics of Kafka that a plan writes to, and the formats of its sources and sinks.

Guarantees that each way of running a flow sees the same topics. Cost: none, or one request where a
sink names a pattern of topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meander.connectors.kafka import client
from meander.connectors.kafka.formats import Place, ValueFormat
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.topics.internal_topics import without_internal
from meander.dataflow.api.nodes import SinkNode
from meander.dataflow.api.plan import Plan


def kafka_sinks(plan: Plan) -> Iterator[tuple[SinkNode, KafkaSink]]:
    """Yield the sinks that write to Kafka, each with its definition."""
    for node in plan.nodes:
        if isinstance(node, SinkNode) and isinstance(node.spec, KafkaSink):
            yield node, node.spec


def formats(plan: Plan) -> Iterator[tuple[ValueFormat[Any], Place]]:
    """Yield the formats of sources and sinks that are objects, each with its place."""
    for source in plan.sources:
        if isinstance(source.spec, KafkaSource):
            yield from source.spec.formats
    for _, spec in kafka_sinks(plan):
        yield from spec.formats


def present_topics(admin: client.Admin) -> list[str]:
    """Return the topics of the cluster, without internal ones of flows."""
    return [*without_internal(admin.list_topics(timeout=client.REQUEST_TIMEOUT).topics)]


def sink_topics(admin: client.Admin, plan: Plan) -> list[str]:
    """Return the topics to which the sinks may write, each once."""
    specs = [spec for _, spec in kafka_sinks(plan)]
    present = [] if all(spec.declared for spec in specs) else present_topics(admin)
    return [*dict.fromkeys(topic for spec in specs for topic in spec.topics_of(present))]
