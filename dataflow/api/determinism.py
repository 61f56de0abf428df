"""Declarations of users about their functions.

Guarantees that a declaration belongs to its function wherever a flow uses it. Cost: an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Final, TypeVar

from meander.schemas.errors import SetupError

F = TypeVar("F", bound=Callable[..., object])
_ATTRIBUTE: Final = "__meander_nondeterministic__"


def nondeterministic(function: F) -> F:
    """Declare that a function may return different results for equal inputs: it reads a clock,
    draws random numbers or calls an outside service. In a flow that delivers exactly once, results
    behind it wait for the checkpoint that holds them.

    Declare the function that the flow receives, and one that no other code shares. A declaration of
    a function that it calls has no effect. Raises SetupError for an object that cannot have a
    declaration.

    >>> import random
    >>> @nondeterministic
    ... def drawn(value):
    ...     return value, random.random()
    >>> is_nondeterministic(drawn), is_nondeterministic(len)
    (True, False)
    """
    try:
        # The declaration of a method belongs to its function.
        setattr(getattr(function, "__func__", function), _ATTRIBUTE, True)
    except (AttributeError, TypeError):
        raise SetupError(
            f"{function!r}", "nothing can be declared of it", "declare a function that calls it"
        ) from None
    return function


def is_nondeterministic(function: object) -> bool:
    """Return whether a function, the function of a `partial` or the `__call__` of an object is
    declared nondeterministic."""
    if isinstance(function, partial) and is_nondeterministic(function.func):
        return True
    # A test may have wrapped it.
    called = unwrap(function) if callable(function) else function
    declared = called, getattr(called, "__call__", None)  # noqa: B004 (its attribute counts)
    return any(getattr(one, _ATTRIBUTE, False) is True for one in declared)
