"""The matches of a pattern are at each time those of igraph, or of a plain join, in the same graph.

The changes are the same multiset for one to four workers, with flow control and without, and flow
control bounds the proposals in each extension.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.collections.pattern_flows import (
    PATTERN_FLOWS,
    check_times,
    random_changes,
    random_control,
    run_pattern,
)
from tests.support.collections.proposals_inside import ProposalsInside
from tests.support.property.budget import PATTERNS, SCHEDULES, seeds

FLOOR, TIMES = 2, 4


@pytest.mark.soak
@pytest.mark.parametrize("name", PATTERN_FLOWS)
def test_the_matches_at_each_time_are_those_in_the_graph_at_that_time(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    flow, counts = PATTERN_FLOWS[name], Counter[str]()
    for seed in seeds(PATTERNS, FLOOR):
        rng = random.Random(f"{name} {seed}")
        nodes, count = rng.randint(60, 300), rng.randint(flow.changes // 2, flow.changes)
        changes = random_changes(rng, flow, nodes, count, skewed=seed % 2 == 1)
        control, workers, inside = random_control(rng), rng.randint(1, 4), ProposalsInside()
        with inside.counting():
            found = run_pattern(flow, changes, control, workers, seed)
        other = run_pattern(flow, changes, None, rng.randint(1, 4), seed)
        assert found == other, f"seed {seed}: flow control and workers change nothing"
        times = sorted({when for when, _ in changes})
        chosen = {*rng.sample(times, min(TIMES, len(times))), times[-1]}
        counts["matches"] += check_times(flow, changes, found, chosen)
        inside.check(control, workers)
        counts.update(schedules=1, changes=len(found), times=len(chosen))
        counts["proposals"] += inside.most.total()
    assert counts["changes"], "there are matches"
    record_property(f"{SCHEDULES}{name}", counts["schedules"])
    record_property(f"times at which {name} were searched again", counts["times"])
    record_property(f"changes of {name}", counts["changes"])
    record_property(f"proposals of {name} at once", counts["proposals"])
