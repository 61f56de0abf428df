"""Strict checks of single values that other members send.

A bool would pass for a number, and 7.5 would be rounded. All checks raise ValueError.
"""

from __future__ import annotations


def whole(value: object) -> int:
    """Return a value that is a whole number.

    >>> whole(-7)
    -7
    >>> whole(True)
    Traceback (most recent call last):
    ValueError: True is no whole number
    """
    if type(value) is int:
        return value
    raise ValueError(f"{value!r} is no whole number")


def count(value: object) -> int:
    """Return a value that is a whole number of 0 or more."""
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{value!r} numbers nothing")


def plain(value: object) -> bytes:
    """Return a value that is bytes."""
    if type(value) is bytes:
        return value
    raise ValueError(f"{value!r} is no bytes")
