"""Single values that other members send, of the very type that they are to be of.

A bool would pass for a number, and 7.5 be rounded to another than was sent. All raise ValueError.
"""

from __future__ import annotations


def whole(value: object) -> int:
    """A whole number.

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
    """A whole number from 0 on."""
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{value!r} numbers nothing")


def plain(value: object) -> bytes:
    """Bytes."""
    if type(value) is bytes:
        return value
    raise ValueError(f"{value!r} is no bytes")
