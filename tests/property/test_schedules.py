"""I1 and I7 on random graphs with loops in nested scopes: whatever 1 to 8 members do, whoever joins
and leaves, whatever changes hands, and in whatever order all of that is heard of, no frontier that
anybody reports is ahead of what is really outstanding, and in the end all are empty."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from meander.schemas.errors import MeanderError
from tests.support.progress.graphs import Walks
from tests.support.progress.planted_bugs import ALL
from tests.support.progress.schedules import (
    PER_GRAPH,
    Schedule,
    graph_of,
    random_schedule,
    run,
    shortest,
)
from tests.support.progress.world import Planted
from tests.support.property.budget import GRAPHS, SCHEDULES, seeds
from tests.support.property.shrinking import shrunk

FLOOR, PLANTED_GRAPHS = 20, 100


@pytest.mark.soak
def test_no_member_reports_a_frontier_ahead_of_what_is_outstanding(
    record_property: Callable[[str, object], None],
) -> None:
    happened: Counter[str] = Counter()
    for seed in seeds(GRAPHS, FLOOR):
        walks = graph_of(seed)
        for number in range(PER_GRAPH):
            schedule = random_schedule(seed, number)
            try:
                happened += run(schedule, walks)
            except Exception:
                found = traceback.format_exc()
                least = shrunk(schedule, shortest, partial(fails, walks=walks))
                pytest.fail(f"{found}\nThe shortest schedule that fails:\n{least}")
            happened["runs"] += 1
    record_property(f"{SCHEDULES}random graphs", happened["runs"])
    record_property("frontiers that were held against the truth", happened["frontiers"])
    record_property("members that joined", happened["joined"])
    record_property("members that left", happened["left"])
    record_property("sources that changed hands", happened["handed"])


def fails(schedule: Schedule, walks: Walks) -> bool:
    try:
        run(schedule, walks)
    except Exception:
        return True
    return False


def test_the_same_seed_is_the_same_schedule() -> None:
    for number in range(PER_GRAPH):
        assert random_schedule(7, number) == random_schedule(7, number)
        once, again = (run(random_schedule(7, number), graph_of(7)) for _ in range(2))
        assert once == again


def caught(schedule: Schedule, walks: Walks, planted: Planted) -> bool:
    """Whether an invariant fails; a crash of another kind proves nothing, and is raised."""
    try:
        run(schedule, walks, planted)
    except (AssertionError, MeanderError) as error:
        if not re.search(r"\(I[17]\)", str(error)):
            raise
        return True
    return False


@pytest.mark.parametrize("bug", ALL)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """I1 or I7 fails; and the shortest schedule that shows it does so by the bug alone."""
    planted = ALL[bug]
    for seed in range(PLANTED_GRAPHS):
        walks = graph_of(seed)
        for number in range(PER_GRAPH):
            schedule = random_schedule(seed, number)
            if caught(schedule, walks, planted):
                least = shortest(schedule, partial(caught, walks=walks, planted=planted))
                assert caught(least, walks, planted)
                assert not fails(least, walks)
                assert len(least.script) <= len(schedule.script)
                return
    pytest.fail("nobody has noticed")
