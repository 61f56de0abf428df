"""Formats on Kafka: Avro schemas, commands, events and errors."""
