"""Patterns in graphs, found by worst-case-optimal joins, as a library on top of the engine."""
