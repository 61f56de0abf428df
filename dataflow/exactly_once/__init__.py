"""Exactly-once delivery: transactions, commit markers, outboxes, replay."""
