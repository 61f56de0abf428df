"""A flow of collections answers at each time as a computation from all input before it would.

The changes of the answer are the same multiset for one to four workers and each schedule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from meander.dataflow.collections import dictionary
from meander.dataflow.operators.collection import operator, stored_updates
from tests.support.collections.graph_flows import (
    GRAPH_FLOWS,
    expected_at,
    random_case,
    random_history,
    run,
)
from tests.support.property.budget import COLLECTION_FLOWS, SCHEDULES, seeds

FLOOR, DISTURBED = 2, 3
"""From seed 0 on, workers survive in the third of the disturbed flows. In others chance decides, in
two of five it leaves none, so a suite runs on until some have survived."""
NODES, CHANGES = 7, 40


@pytest.mark.soak
@pytest.mark.parametrize("name", GRAPH_FLOWS)
def test_the_answer_at_each_time_is_that_of_the_graph_at_that_time(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    graph, found = GRAPH_FLOWS[name], Counter[str]()
    for seed in seeds(COLLECTION_FLOWS, FLOOR):
        rng = random.Random(seed)
        history = random_history(rng, NODES, CHANGES)
        runs = [run(graph, history, workers, seed) for workers in (1, rng.randint(2, 4))]
        assert runs[0].changes == runs[1].changes, f"seed {seed}: workers change nothing"
        for millis in sorted({when for when, _ in (*history.edges, *history.roots)}):
            want = expected_at(graph, history, millis)
            assert runs[0].at(millis) == want, f"seed {seed}, at {millis} ms"
            found.update(times=1, rows=len(want))
        found.update(schedules=1, changes=len(runs[0].changes))
    assert found["changes"] > found["schedules"], "answers change"
    record_property(f"{SCHEDULES}{name}", found["schedules"])
    record_property(f"times at which {name} were computed anew", found["times"])


@pytest.fixture
def frequent_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins have few entries of few rows, and the dictionary few values, so some are rewritten in
    the course of a run."""
    monkeypatch.setattr(dictionary, "LEAST", 3)
    monkeypatch.setattr(operator, "COLLECT_FUEL", 2)
    monkeypatch.setattr(stored_updates, "BUFFER_ROWS", 8)
    monkeypatch.setattr(stored_updates, "PIECE_ROWS", 4)
    monkeypatch.setattr(stored_updates, "SPARE_PIECES", 1)


@pytest.mark.soak
@pytest.mark.usefixtures("frequent_rewrites")
@pytest.mark.parametrize("name", GRAPH_FLOWS)
def test_the_changes_are_the_same_whatever_moves_joins_leaves_and_dies(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    graph, found = GRAPH_FLOWS[name], Counter[str]()
    for seed in seeds(COLLECTION_FLOWS, DISTURBED, lambda: found["survived"] > 0):
        case = random_case(seed, NODES, CHANGES)
        disturbed, undisturbed = run(graph, *case), run(graph, case.history, 1, seed)
        assert disturbed.changes == undisturbed.changes, f"{case}"
        found.update(schedules=1, faults=len(case.faults), deaths=len(case.deaths))
        found.update(survived=disturbed.bins_survived)
    assert found["survived"], "workers survive with bins in their stores"
    record_property(f"{SCHEDULES}{name} with faults", found["schedules"])
    record_property(f"faults of {name}", found["faults"])
    record_property(f"deaths of {name}", found["deaths"])
    record_property(f"bins of {name} that survived", found["survived"])
