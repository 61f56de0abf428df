"""I5 and I8: what a flow commits over all its lives is the reference, record for record, whenever
it is killed, and whatever those do that believe in an earlier life; and what comes again of it is
what was out."""

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
    with_some_comings_and_goings,
    with_some_full_bins,
    with_some_loops,
)
from tests.support.property.exactly_once_run import TIMED, OnceLives
from tests.support.property.steps import Step

FLOOR = 24


@pytest.mark.soak
def test_double_crash_what_is_committed_over_all_lives_is_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def lived(case: Case) -> OnceLives:
        run = OnceLives(case)
        run.survive()
        return run

    for seed in seeds(ONCE, FLOOR):
        case = with_some_loops(with_some_full_bins(random_case(seed, TIMED)))
        case = with_some_comings_and_goings(with_aborts(case))
        run = checked(case, lived)
        found.update(
            flows=1, suppressed=run.suppressed, fenced=run.fenced, forgotten=run.forgotten,
            results=len(run.sink.results), compared=run.compared, agreed=run.compared > 0,
        )  # fmt: skip
        steps += run.struck
    assert found["agreed"], "in some flows something is compared"
    # Of the few that one of several processes may have, chance says how many.
    if found["flows"] >= FLOOR:
        assert 5 * found["agreed"] >= found["flows"], "in many flows something is compared"
    record_property(f"{SCHEDULES}flows that commit, and were killed", found["flows"])
    record_property("kills at named steps of these", steps.total())
    record_property("their results", found["results"])
    record_property("results that the last life found committed", found["suppressed"])
    record_property("results that came again as they had been", found["compared"])
    record_property("marks that were forgotten meanwhile", found["forgotten"])
    record_property("lives that tried to go on when they were over", found["fenced"])
