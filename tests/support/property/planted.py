"""Bugs planted in the engine, to see that they are caught."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from itertools import chain
from time import process_time
from typing import Any

import pytest

from meander.dataflow.simulation import simulator
from meander.schemas.errors import MeanderError

MOST_ACTIONS = 30_000
"""Enough for any run of the suites, so an endless run is caught soon."""
ALL_SEEDS = "MEANDER_PLANTED_SEEDS" in os.environ
"""Whether a bug is tried with all of its seeds, to find the one that shows it soonest."""


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
    """Expect that the run of one of the seeds fails with the bug, and passes without it.

    A warning names the seed to try first where it is another one.
    """
    seeds = [*seeds]
    found = list[tuple[float, int]]()
    for seed in seeds:
        begun = process_time()
        with monkeypatch.context() as place:
            plant(place, *bug)
            caught = _fails(recover, seed)
        if caught:
            recover(seed)
            found.append((process_time() - begun, seed))
            if not ALL_SEEDS:
                break
    assert found, "no run has caught the bug"
    seconds, best = min(found)
    if best != seeds[0]:
        warnings.warn(f"try seed {best} first, not {seeds[0]}: {seconds:.1f} s", stacklevel=2)


def _fails(recover: Callable[[int], None], seed: int) -> bool:
    try:
        recover(seed)
    except (AssertionError, MeanderError) as error:
        # Some take longer than that without a bug.
        return "does not come to its end" not in str(error)
    return False
