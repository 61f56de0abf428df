"""Bounds of records in flight and of memory."""
