"""A random case that fails says which it is before all else, and is made shorter for a while only.

Guarantees that the seed is known even where the process ends in the midst of that. Cost: `SECONDS`
and one try more, which has no more steps than any run that is right.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar
from unittest import mock

import pytest

from meander.dataflow.simulation import simulator
from tests.support.property.planted import MOST_ACTIONS

SECONDS = 60.0
"""How long a case is made shorter: a test has some minutes."""
uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext
"""In which what is printed is seen at once; `conftest.py` knows how."""


class Seeded(Protocol):
    """A random case."""

    @property
    def seed(self) -> int:
        """What it is made of."""


C = TypeVar("C", bound=Seeded)
R = TypeVar("R")
S = TypeVar("S")


def checked(case: C, check: Callable[[C], R], shortest: Callable[[C, Callable[[C], bool]], C]) -> R:
    """What the check of a case gives; where it raises, the test fails with the shortest schedule
    with which it still does."""

    def fails(other: C) -> bool:
        try:
            check(other)
        except Exception:
            return True
        return False

    try:
        return check(case)
    except Exception:
        found = traceback.format_exc()
        pytest.fail(f"{found}\nThe shortest schedule that fails:\n{shrunk(case, shortest, fails)}")


def fewest(steps: tuple[S, ...], fail: Callable[[tuple[S, ...]], bool]) -> tuple[S, ...]:
    """Leave out steps, many at once and then one by one, as long as the others still fail."""
    size = len(steps)
    while size:
        at = 0
        while at < len(steps):
            others = steps[:at] + steps[at + size :]
            if fail(others):
                steps = others
            else:
                at += size
        size //= 2
    return steps


def shrunk(
    case: C,
    shortest: Callable[[C, Callable[[C], bool]], C],
    fails: Callable[[C], bool],
    now: Callable[[], float] = time.monotonic,
) -> C:
    """The shortest that still fails, of those that there is time to try; called as one fails."""
    _say(case.seed)
    until = now() + SECONDS
    # What does not come to its end is noticed after as many steps as any run takes.
    with mock.patch.object(simulator, "MAX_ACTIONS", MOST_ACTIONS):
        return shortest(case, lambda other: now() < until and fails(other))


def _say(seed: int) -> None:
    family = os.environ.get("PYTEST_CURRENT_TEST", "a random case")
    with uncaptured():
        error = sys.exception()
        print(f"\nMEANDER_SEED={seed} fails in {family}: {error!r}", file=sys.stderr, flush=True)
