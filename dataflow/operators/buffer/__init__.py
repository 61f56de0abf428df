"""Buffers of records that spill to disk."""
