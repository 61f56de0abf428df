"""Bugs planted in the engine, to see that they are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest

from dataflow import sim

MOST_ACTIONS = 30_000
"""Enough for any run of the suites; so what does not end is caught soon."""


def runs(first: int, most: int) -> Iterable[int]:
    """So many seeds, of which one that has shown the bug comes first: the others are for when it
    does so no longer."""
    return chain(range(first, max(most, first + 1)), range(min(first, most)))


def plant(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, bug: Callable[..., Any]
) -> None:
    """Put a bug in the place of a method."""
    monkeypatch.setattr(owner, method, bug)
    monkeypatch.setattr(sim, "MOST_ACTIONS", MOST_ACTIONS)
