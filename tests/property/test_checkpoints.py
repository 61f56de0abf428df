"""I5: a killed flow, restored from its newest checkpoint on more or fewer workers, again and again.

It has the states and the results of an undisturbed flow, whatever a cut has divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.property.budget import CHECKPOINTS, LIMIT, SCHEDULES, seeds
from tests.support.property.cases import (
    Case,
    checked,
    random_case,
    with_aborts,
    with_some_changing_logic,
    with_some_comings_and_goings,
    with_some_far_times,
    with_some_forgetting,
    with_some_full_bins,
    with_some_loops,
    with_some_reconfigurations,
    with_some_tables,
    with_some_windows,
)
from tests.support.property.recovery_run import RecoveryRun
from tests.support.property.silences import with_some_silences
from tests.support.property.steps import Step

FLOOR = 20
"""Most bugs of `test_planted_cuts` show within as many runs; `make soak` makes more."""


@pytest.mark.timeout(LIMIT)
@pytest.mark.soak
def test_cut_a_flow_restored_from_any_checkpoint_equals_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def ran(case: Case) -> RecoveryRun:
        run = RecoveryRun(case)
        run.recover()
        return run

    for seed in seeds(CHECKPOINTS, FLOOR):
        case = with_some_loops(with_some_full_bins(random_case(seed)))
        case = with_some_windows(with_some_forgetting(with_some_changing_logic(case)))
        case = with_some_tables(case)
        case = with_some_comings_and_goings(with_aborts(with_some_far_times(case)))
        case = with_some_silences(with_some_reconfigurations(case))
        run = checked(case, ran)
        found.update(
            flows=1, checkpoints=run.checkpoints, records=run.in_flight, unread=run.unread,
            moving=run.moving, bundled=run.bundled, local_bins=run.local_bins,
        )  # fmt: skip
        steps += run.struck
    record_property(f"{SCHEDULES}flows that were killed", found["flows"])
    record_property("cuts and faults at named steps of these", steps.total())
    record_property("their checkpoints", found["checkpoints"])
    record_property("records in flight in these", found["records"])
    record_property("bins on their way in these", found["moving"])
    record_property("bins of which these hold what their layers lack", found["bundled"])
    record_property("bins that survivors had in their stores", found["local_bins"])
    record_property("pieces that a later checkpoint referred to", found["unread"])
