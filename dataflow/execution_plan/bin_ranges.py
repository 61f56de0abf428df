"""Bins and partitions as text: ranges such as `0-2, 7`.

Cost: one pass over the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text, in order.

    >>> ranges([7, 0, 1, 2, 9, 10]), ranges([])
    ('0-2, 7, 9-10', '')
    """
    runs = groupby(enumerate(sorted(set(numbers))), lambda one: one[1] - one[0])
    return ", ".join(_run([number for _, number in run]) for _, run in runs)


def _run(numbers: list[int]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def numbers(text: str, end: int) -> Iterator[int]:
    """Yield the numbers of a text. Raises ValueError for another text, and for a number that is not
    less than `end`.

    >>> list(numbers("0-2, 7", end=8)), list(numbers("", end=8))
    ([0, 1, 2, 7], [])
    >>> list(numbers("5-9", end=8))
    Traceback (most recent call last):
    ValueError: '5-9' names numbers beyond 7
    """
    for part in filter(None, (one.strip() for one in text.split(","))):
        first, dash, last = (one.strip() for one in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(f"{part!r} is neither a number nor a range such as 0-3")
        low, high = int(first), int(last or first)
        if high >= end or low > high:
            beyond = f"names numbers beyond {end - 1}" if high >= end else "is no range"
            raise ValueError(f"{part!r} {beyond}")
        yield from range(low, high + 1)
