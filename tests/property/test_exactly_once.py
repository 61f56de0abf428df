"""I5 and I8: a flow commits the reference's results over all executions, record for record.

It is killed at any time, and superseded executions run on. Replayed results equal committed ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.property.budget import ONCE, SCHEDULES, seeds
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
from tests.support.property.exactly_once_run import TIMED, ExactlyOnceRun
from tests.support.property.silences import with_some_silences
from tests.support.property.steps import Step

FLOOR = 12


@pytest.mark.soak
def test_double_crash_all_executions_together_commit_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def ran(case: Case) -> ExactlyOnceRun:
        run = ExactlyOnceRun(case)
        run.recover()
        return run

    for seed in seeds(ONCE, FLOOR):
        case = with_some_loops(with_some_full_bins(random_case(seed, TIMED)))
        case = with_some_windows(with_some_forgetting(with_some_changing_logic(case)))
        case = with_some_tables(case)
        case = with_some_comings_and_goings(with_aborts(with_some_far_times(case)))
        case = with_some_silences(with_some_reconfigurations(case))
        run = checked(case, ran)
        found.update(
            flows=1, suppressed=run.suppressed, fenced=run.fenced, forgotten=run.forgotten,
            results=len(run.sink.results), compared=run.compared, agreed=run.compared > 0,
            advances=run.clock_advances,
        )  # fmt: skip
        steps += run.struck
    assert found["agreed"], "in some flows something is compared"
    # Of the few that one of several processes may have, chance says how many.
    if found["flows"] >= FLOOR:
        assert 5 * found["agreed"] >= found["flows"], "in many flows something is compared"
    record_property(f"{SCHEDULES}flows that commit, and were killed", found["flows"])
    record_property("kills at named steps of these", steps.total())
    record_property("their results", found["results"])
    record_property("advances by the clock in their last executions", found["advances"])
    record_property("results that the last execution found committed", found["suppressed"])
    record_property("results that came again as they had been", found["compared"])
    record_property("marks that were forgotten meanwhile", found["forgotten"])
    record_property("superseded executions that tried to run on", found["fenced"])
