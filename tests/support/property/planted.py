"""Bugs planted in the engine, to see that they are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest

from meander.dataflow.simulation import simulator
from meander.schemas.errors import MeanderError

MOST_ACTIONS = 30_000
"""Enough for any run of the suites, so an endless run is caught soon."""


def runs(first: int, most: int) -> Iterable[int]:
    """Return the seeds to try: first the one that has shown the bug, then the others."""
    return chain(range(first, max(most, first + 1)), range(min(first, most)))


def plant(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, bug: Any) -> None:
    """Put a bug in the place of a method or an attribute."""
    monkeypatch.setattr(owner, method, bug)
    monkeypatch.setattr(simulator, "MAX_ACTIONS", MOST_ACTIONS)


def expect_caught(
    monkeypatch: pytest.MonkeyPatch,
    bug: tuple[Any, str, Any],
    recover: Callable[[int], None],
    seeds: Iterable[int],
) -> None:
    """Expect that the run of one of the seeds fails with the bug, and passes without it."""
    for seed in seeds:
        with monkeypatch.context() as place:
            plant(place, *bug)
            caught = _fails(recover, seed)
        if caught:
            recover(seed)
            return
    pytest.fail("no run has caught the bug")


def _fails(recover: Callable[[int], None], seed: int) -> bool:
    try:
        recover(seed)
    except (AssertionError, MeanderError) as error:
        # Some take longer than that without a bug.
        return "does not come to its end" not in str(error)
    return False
