"""I3 and I5: flows whose functions fail now and then, and whose calls run beside the turns.

With a `Retry` they have the results and the states of flows that never fail, whatever moves, and
whenever they are killed.
"""

from __future__ import annotations

from itertools import count

import pytest

from meander.state.store.store import Databases
from tests.support.property.budget import RETRIES, seeds
from tests.support.property.case_run import CaseRun
from tests.support.property.cases import (
    Case,
    checked,
    random_case,
    with_some_bins_to_and_fro,
    with_some_comings_and_goings,
    with_some_full_bins,
    with_some_reconfigurations,
)
from tests.support.property.outbox_run import OutboxRun, case_of
from tests.support.property.recovery_run import RecoveryRun

FLOOR = 6
KINDS = ("flaky",)


def _case(seed: int) -> Case:
    case = with_some_bins_to_and_fro(with_some_full_bins(random_case(seed, KINDS)))
    return with_some_reconfigurations(with_some_comings_and_goings(case))


@pytest.mark.soak
def test_flows_with_retries_equal_the_reference(databases: Databases) -> None:
    namespace, moved = count(), 0

    def ran(case: Case) -> CaseRun:
        run = CaseRun(case)
        run.check(databases, next(namespace))
        return run

    for seed in seeds(RETRIES, FLOOR):
        moved += checked(_case(seed), ran).changes["completed"]
    assert moved


@pytest.mark.soak
def test_flows_with_retries_that_are_killed_equal_the_reference() -> None:
    in_flight = 0

    def ran(case: Case) -> RecoveryRun:
        run = RecoveryRun(case)
        run.recover()
        return run

    for seed in seeds(RETRIES, FLOOR):
        in_flight += checked(_case(seed), ran).in_flight
    assert in_flight, "some calls are in flight at a checkpoint"


@pytest.mark.soak
def test_outboxes_behind_an_asynchronous_map_commit_one_history() -> None:
    drawn = results = 0

    def ran(case: Case) -> OutboxRun:
        run = OutboxRun(case)
        run.recover()
        return run

    for seed in seeds(RETRIES, FLOOR):
        run = checked(case_of(seed, ("asked",)), ran)
        drawn, results = drawn + run.drawn, results + len(run.sink.results)
    assert drawn > results, "some calls are made again after a recovery"
