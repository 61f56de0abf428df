"""Kafka clients, formats and topics."""
