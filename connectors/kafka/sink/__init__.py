"""A Kafka topic as a sink: producers and transactions."""
