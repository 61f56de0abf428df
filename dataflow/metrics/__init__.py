"""Durations and stalls of operators."""
