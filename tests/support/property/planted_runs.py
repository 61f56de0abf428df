"""The runs of a suite of planted bugs, and the cases in which a kind of flow meets all faults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from meander.state.store.store import Databases
from tests.support.property.case_run import run_of
from tests.support.property.cases import (
    Case,
    random_case,
    with_aborts,
    with_some_comings_and_goings,
)
from tests.support.property.recovery_run import RecoveryRun
from tests.support.property.silences import with_some_silences

RUNS = 60
"""The most runs of one bug."""
CaseOf = Callable[[int], Case]
"""From a seed to its case."""


def disturbed_case(seed: int, *kinds: str) -> Case:
    """Return a case of some kinds of flows with aborts, and workers that come and go."""
    return with_some_comings_and_goings(with_aborts(random_case(seed, kinds)))


def silent_case(seed: int, *kinds: str) -> Case:
    """Return a disturbed case with silent sources."""
    return with_some_silences(disturbed_case(seed, *kinds))


def moves(case_of: CaseOf, databases: Databases, first: int) -> Callable[[int], None]:
    """Return the run of a seed in which bins move. Its stores have numbers from `first` on."""
    numbers = count(first)
    return lambda seed: run_of(case_of(seed)).check(databases, next(numbers))


def recovers(case_of: CaseOf) -> Callable[[int], None]:
    """Return the run of a seed that recovers from a kill."""
    return lambda seed: RecoveryRun(case_of(seed)).recover()
