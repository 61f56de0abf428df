"""I5 and I8 where a replay gives other results: what is committed over all lives is one history, of
which each key's final state is the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.property.budget import OUTBOX, SCHEDULES, seeds
from tests.support.property.cases import Case, checked
from tests.support.property.outbox_run import OutboxLives, case_of
from tests.support.property.steps import Step

FLOOR = 20


@pytest.mark.soak
def test_what_leaves_by_outboxes_over_all_lives_is_one_history(
    record_property: Callable[[str, object], None],
) -> None:
    found, steps = Counter[str](), Counter[Step]()

    def lived(case: Case) -> OutboxLives:
        run = OutboxLives(case)
        run.survive()
        return run

    for seed in seeds(OUTBOX, FLOOR):
        run = checked(case_of(seed), lived)
        found.update(
            flows=1, fenced=run.fenced, forgotten=run.forgotten, results=len(run.sink.results),
            drawn=run.drawn,
        )  # fmt: skip
        steps += run.struck
    assert found["drawn"] > found["results"], "some are made anew, and others"
    record_property(f"{SCHEDULES}flows whose results wait in outboxes", found["flows"])
    record_property("kills at named steps of these", steps.total())
    record_property("their results", found["results"])
    record_property("marks that were forgotten meanwhile", found["forgotten"])
    record_property("lives that tried to go on when they were over", found["fenced"])
