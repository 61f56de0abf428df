"""Spill buffers of waiting records."""
