"""The outside of a flow: Kafka, the links between workers, Spark."""

from connectors.formats import field, header
from connectors.sink import KafkaSink
from connectors.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource", "field", "header"]
