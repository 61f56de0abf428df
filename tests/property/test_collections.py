"""A join and a reduction give at each time what their inputs give there, whatever changes when.

Random schedules have partially ordered times and frontiers; the reference accumulates the inputs at
each time and computes both outputs anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.collections.collection_run import random_schedule, run, shortest
from tests.support.property import shrinking
from tests.support.property.budget import COLLECTIONS, SCHEDULES, seeds

FLOOR = 60


@pytest.mark.soak
def test_a_join_and_a_reduction_are_those_of_their_inputs_at_each_time(
    record_property: Callable[[str, object], None],
) -> None:
    found = Counter[str]()
    for seed in seeds(COLLECTIONS, FLOOR):
        happened = shrinking.checked(random_schedule(seed), run, shortest)
        found.update(happened, schedules=1)
    assert found["pending times"], "some changes join at times behind the frontier"
    record_property(f"{SCHEDULES}joins and reductions", found["schedules"])
    record_property("times at which these were computed anew", found["times"])
    record_property("pairs of their joins", found["pairs"])
    record_property("changes of their reductions", found["changes"])
