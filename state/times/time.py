"""Logical times: a partially ordered set of integers and tuples of integers.

In the outer scope a time is one int64: milliseconds x 2**20 + a sequence number. A nested scope
appends coordinates. Its times are tuples under the product order: (a, b) <= (c, d) iff a <= c and
b <= d. The engine uses only `less_equal`, `join` and `meet` of a time.
"""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, cast

from meander.schemas.control import MAX_MILLIS

Time = int | tuple[int, ...]

SEQUENCE_BITS = 20
MIN_TIME = 0
"""The least time of the outer scope. Earlier records get this time."""
END_TIME = (1 << 63) - 1
"""The last time of the outer scope, at or behind those of all records."""


def from_millis(millis: int, sequence: int = 0) -> int:
    """Return the outer time of a number of milliseconds since 1970.

    >>> from_millis(2) - from_millis(1) == 2**20
    True
    """
    return (millis << SEQUENCE_BITS) + sequence


def before_millis(millis: int) -> int:
    """Return the last outer time before a number of milliseconds since 1970.

    >>> to_millis(before_millis(5)), before_millis(5) + 1 == from_millis(5)
    (4, True)
    """
    return from_millis(millis) - 1


def to_millis(time: int) -> int:
    """Return the milliseconds of an outer time.

    >>> to_millis(from_millis(5, sequence=3))
    5
    """
    return time >> SEQUENCE_BITS


def checked_millis(millis: object) -> int:
    """Return milliseconds since 1970 that an outer time can hold. Times before 1970 become 1970.
    Raise ValueError for other values.

    >>> checked_millis(7), checked_millis(-7)
    (7, 0)
    >>> checked_millis(7.5)
    Traceback (most recent call last):
    ValueError: a time is whole milliseconds since 1970, not 7.5
    """
    try:
        # Integers of other libraries overflow and have no encoding of an int.
        number = None if isinstance(millis, bool) else index(cast(SupportsIndex, millis))
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"a time is whole milliseconds since 1970, not {millis!r}")
    if number > MAX_MILLIS:
        raise ValueError(f"a time of {number} milliseconds lies beyond the year 2248")
    return max(number, MIN_TIME)


def duration(seconds: float) -> int:
    """Return a number of seconds as a difference of outer times, at most all of time.

    >>> to_millis(duration(0.25)), to_millis(duration(float("inf"))) == MAX_MILLIS
    (250, True)
    """
    return from_millis(round(min(seconds * 1000, MAX_MILLIS)))


def less_equal(left: Time, right: Time) -> bool:
    """Return whether `left` is before or equal to `right` in the partial order.

    >>> less_equal(3, 3), less_equal((1, 5), (2, 5)), less_equal((1, 5), (2, 4))
    (True, True, False)
    """
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    # Loops call this function for most pairs of times, so a generator would cost too much.
    for a, b in _pairs(left, right):  # noqa: SIM110
        if a > b:
            return False
    return True


def less_than(left: Time, right: Time) -> bool:
    """Return whether `left` is strictly before `right`.

    >>> less_than((1, 2), (1, 3)), less_than((1, 2), (1, 2)), less_than((1, 2), (0, 9))
    (True, False, False)
    """
    return left != right and less_equal(left, right)


def join(left: Time, right: Time) -> Time:
    """Return the least time that is at or after both.

    >>> join((1, 5), (2, 4))
    (2, 5)
    """
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return tuple(max(a, b) for a, b in _pairs(left, right))


def meet(left: Time, right: Time) -> Time:
    """Return the greatest time that is at or before both.

    >>> meet((1, 5), (2, 4))
    (1, 4)
    """
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return tuple(min(a, b) for a, b in _pairs(left, right))


def _pairs(left: Time, right: Time) -> zip[tuple[int, int]]:
    if isinstance(left, int) or isinstance(right, int):
        raise TypeError(f"times {left!r} and {right!r} belong to different scopes")
    return zip(left, right, strict=True)
