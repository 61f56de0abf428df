"""Values of options that a user gives: their type and range are checked where they are given.

Guarantees that a check returns the value, or raises SetupError with the option, its value and the
values that are allowed. A bool is no number, and NaN lies within no bounds. Cost:
some comparisons, once per option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard, TypeVar

from meander.schemas.errors import SetupError

T = TypeVar("T")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, and no bool.

    >>> is_number(0.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_number(
    subject: str,
    option: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    unit: str = "seconds",
) -> float:
    """Return the number of an option: from `least` to `most`, and greater than `above`.

    >>> checked_number("operator 'hits'", "ttl", 3600, 0.001)
    3600
    >>> checked_number("operator 'hits'", "ttl", "1h", 0.001)
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: operator 'hits': its ttl is '1h'; give seconds from 0.001 on.
    """
    if not is_number(value) or not least <= value <= most or value <= above:
        raise SetupError(
            subject, f"its {option} is {value!r}", f"give {unit}{_bounds(least, most, above)}"
        )
    return value


def checked_whole(
    subject: str,
    option: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    unit: str = "a whole number",
) -> int:
    """Return the whole number of an option, from `least` to `most`.

    >>> checked_whole("flow 'f'", "bins", 8, 0, 16)
    8
    >>> checked_whole("flow 'f'", "bins", 17, 0, 16)
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: flow 'f': its bins is 17; give a whole number from 0 to 16.
    """
    if not isinstance(value, int):
        raise SetupError(
            subject, f"its {option} is {value!r}", f"give {unit}{_bounds(least, most)}"
        )
    checked_number(subject, option, value, least, most, unit=unit)
    return value


def checked_text(subject: str, option: str, value: object) -> str:
    """Return the text of an option."""
    if not isinstance(value, str):
        raise SetupError(subject, f"its {option} is {value!r}", "give a text")
    return value


def checked_flag(subject: str, option: str, value: object) -> bool:
    """Return the value of an option that is True or False."""
    if not isinstance(value, bool):
        raise SetupError(subject, f"its {option} is {value!r}", "give True or False")
    return value


def checked_choice(subject: str, option: str, value: T, known: Sequence[object]) -> T:
    """Return the value of an option, which is one of those that the option knows.

    >>> checked_choice("operator 'n'", "how", "outer", ("inner", "left"))
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: operator 'n': its how is 'outer'; give 'inner' or 'left'.
    """
    if value not in known:
        allowed = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        raise SetupError(subject, f"its {option} is {value!r}", f"give {allowed}")
    return value


def _bounds(least: float, most: float, above: float = -math.inf) -> str:
    """Return the bounds in words.

    >>> _bounds(0, math.inf), _bounds(0, 3600), _bounds(-math.inf, math.inf, above=0)
    (' from 0 on', ' from 0 to 3,600', ' above 0')
    """
    if above > -math.inf:
        return f" above {above:g}"
    if least == -math.inf:
        return ""
    return f" from {least:,} on" if most == math.inf else f" from {least:,} to {most:,}"
