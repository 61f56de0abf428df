"""Benchmarks of windows and of joins of streams."""
