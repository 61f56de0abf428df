"""Batches of records and their encodings."""
