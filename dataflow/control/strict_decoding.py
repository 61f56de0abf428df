"""Strict checks of single values that other members send.

Type conversions would accept a bool as a number, and round 7.5. All checks raise ValueError.
"""

from __future__ import annotations


def expect_int(value: object) -> int:
    """Return a value that is a whole number.

    >>> expect_int(-7)
    -7
    >>> expect_int(True)
    Traceback (most recent call last):
    ValueError: True is not a whole number
    """
    if type(value) is int:
        return value
    raise ValueError(f"{value!r} is not a whole number")


def expect_count(value: object) -> int:
    """Return a value that is a whole number from 0."""
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{value!r} is not a count")


def expect_bytes(value: object) -> bytes:
    """Return a value that is bytes."""
    if type(value) is bytes:
        return value
    raise ValueError(f"{value!r} is not bytes")
