"""Logical time and antichains."""
