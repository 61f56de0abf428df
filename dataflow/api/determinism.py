"""What users say of their functions beside what these compute.

Guarantees that a function is taken for what it was declared to be wherever a flow uses it: the
declaration goes with the function. Cost: an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from meander.schemas.errors import SetupError

F = TypeVar("F", bound=Callable[..., object])
_VARIES: Final = "__meander_nondeterministic__"


def nondeterministic(function: F) -> F:
    """Declare that a function may give something else for the same: it asks a clock, draws random
    numbers, calls what lies outside. In a flow that delivers exactly once, results behind it wait
    for the checkpoint that holds them. Declare a function of your own, not one that others share,
    and the one that the flow is given: of what it calls nobody knows. Raises SetupError for what
    takes no declaration.

    >>> import random
    >>> @nondeterministic
    ... def drawn(value):
    ...     return value, random.random()
    >>> varies(drawn), varies(len)
    (True, False)
    """
    try:
        # What is declared of a method is declared of its function.
        setattr(getattr(function, "__func__", function), _VARIES, True)
    except (AttributeError, TypeError):
        raise SetupError(
            f"{function!r}", "nothing can be declared of it", "declare a function that calls it"
        ) from None
    return function


def varies(function: object) -> bool:
    """Whether it has been declared so, or is a `partial` of one that has."""
    if isinstance(function, partial) and varies(function.func):
        return True
    return getattr(function, _VARIES, False) is True
