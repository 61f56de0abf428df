"""I2, I3, I4, I5 and I7: results, final state and what is set aside equal a single-threaded
reference, record for record, whatever migrations are asked for and however workers, links and
answers are delayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from meander.state.store.store import Databases
from tests.support.property.budget import LIMIT, ORACLE, SCHEDULES, seeds
from tests.support.property.case_run import CaseRun, run_of
from tests.support.property.cases import (
    Case,
    checked,
    random_case,
    with_aborts,
    with_some_bins_to_and_fro,
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
from tests.support.property.silences import with_some_silences

FLOOR = 24
"""The bugs of `test_planted_bugs` that they can show show within 21; `make soak` makes more."""


@pytest.mark.timeout(LIMIT)
@pytest.mark.soak
def test_results_and_state_equal_the_reference(
    databases: Databases, record_property: Callable[[str, object], None]
) -> None:
    namespace = count()
    kinds: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    moved = spilled = committed = 0

    def ran(case: Case) -> CaseRun:
        run = run_of(case)
        run.check(databases, next(namespace))
        return run

    for seed in seeds(ORACLE, FLOOR):
        case = with_some_bins_to_and_fro(with_some_loops(with_some_full_bins(random_case(seed))))
        case = with_some_windows(with_some_forgetting(with_some_changing_logic(case)))
        case = with_some_tables(case)
        case = with_some_comings_and_goings(with_aborts(with_some_far_times(case)))
        case = with_some_silences(with_some_reconfigurations(case))
        run = checked(case, ran)
        kinds[case.kind] += 1
        committed += run.delivery == "exactly_once"
        changes.update(run.changes)
        moved += len(case.commands)
        spilled += run.spilled
    record_property(f"{SCHEDULES}flows that move bins", kinds.total())
    record_property("their commands", moved)
    record_property("those that deliver exactly once", committed)
    for kind, runs in kinds.items():
        record_property(f"of the kind {kind!r}", runs)
    record_property("those in which records waited on disk", spilled)
    record_property("commands that were aborted", changes["aborted"])
    record_property("commands that waited for others", changes["queued"])
    record_property("workers that joined", changes["joined"])
    record_property("workers that left", changes["left"])
    record_property("plans that came into force", changes["plan_in_force"])
    record_property("plans that were rolled back", changes["not_decided"])
    record_property("records that a function refused", changes["refused"])
    record_property("partitions that changed hands", changes["partition_moved"])
    record_property("partitions that came to a running flow", changes["partition_added"])
