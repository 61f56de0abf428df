"""I5 and I8 of nondeterministic flows: all executions together commit one history.

The final state of each key is the end of its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.property.budget import OUTBOX, SCHEDULES, seeds
from tests.support.property.cases import Case, checked
from tests.support.property.outbox_run import OutboxRun, case_of
from tests.support.property.steps import Step

FLOOR = 10


@pytest.mark.soak
def test_outboxes_of_all_executions_commit_one_history(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def ran(case: Case) -> OutboxRun:
        run = OutboxRun(case)
        run.recover()
        return run

    for seed in seeds(OUTBOX, FLOOR):
        run = checked(case_of(seed), ran)
        found.update(
            flows=1, fenced=run.fenced, forgotten=run.forgotten, results=len(run.sink.results),
            drawn=run.drawn,
        )  # fmt: skip
        steps += run.struck
    assert found["drawn"] > found["results"], "some results are drawn again after a recovery"
    record_property(f"{SCHEDULES}flows whose results wait in outboxes", found["flows"])
    record_property("kills at named steps of these", steps.total())
    record_property("their results", found["results"])
    record_property("marks that were forgotten meanwhile", found["forgotten"])
    record_property("superseded executions that tried to run on", found["fenced"])
