"""A checkpoint tells the rows of each arrangement as they were at a time, or refuses that time.

Rows are compared with those computed from all input before the time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from meander.dataflow.operators.collection import stored_updates
from meander.dataflow.operators.collection.checkpointed_rows import (
    find_arrangement,
    newest_time,
    rows_at,
)
from meander.schemas.errors import SetupError
from meander.state.times.time import END_TIME, from_millis, to_millis
from tests.support.collections.graph_flows import random_case, run
from tests.support.collections.viewed_flow import (
    ARRANGEMENTS,
    VIEWED,
    answer,
    expected_rows,
    stored_bins,
)
from tests.support.property.budget import COLLECTION_FLOWS, SCHEDULES, seeds

FLOOR = 3
NODES, CHANGES = 7, 60
CHECKPOINTS, TIMES = 3, 12
"""The checkpoints of a run that are read, and the times at which each is asked."""


@pytest.fixture(autouse=True)
def frequent_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins have few entries of few rows, so some are rewritten in the course of a run."""
    monkeypatch.setattr(stored_updates, "BUFFER_ROWS", 8)
    monkeypatch.setattr(stored_updates, "PIECE_ROWS", 4)
    monkeypatch.setattr(stored_updates, "SPARE_PIECES", 1)


@pytest.mark.soak
def test_each_arrangement_has_its_rows_of_a_time_or_refuses_the_time(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = Counter[str]()
    for seed in seeds(COLLECTION_FLOWS, FLOOR):
        rng = random.Random(seed)
        case = random_case(seed, NODES, CHANGES)
        history, world = case.history, run(VIEWED, *case, retained=1000).world
        assert world is not None
        changed = sorted({when for when, _ in (*history.edges, *history.roots)})
        usable = [one for one in world.checkpoints if all(time for _, time in one.cut.frontiers)]
        for checkpoint in rng.sample(usable, min(CHECKPOINTS, len(usable))):
            for operator, name in ARRANGEMENTS:
                kept = find_arrangement(checkpoint, operator, name)
                bins = stored_bins(world, checkpoint, kept.kept_by, tmp_path)
                newest = newest_time(checkpoint, kept)
                # The millisecond of the frontier may be incomplete.
                last = changed[-1] if newest == END_TIME else to_millis(newest + 1) - 1
                for millis in [*rng.sample(changed, TIMES), max(last, 0)]:
                    try:
                        rows = rows_at(checkpoint, kept, bins, millis)
                    except SetupError as refusal:
                        early = "no longer tell apart" in refusal.cause
                        found["early" if early else "late"] += 1
                        assert early == (from_millis(millis + 1) - 1 <= newest)
                        continue
                    want = expected_rows(history, operator, name, millis)
                    where = f"seed {seed}, checkpoint {checkpoint.number}, {operator}, {name}"
                    assert answer(rows) == want, f"{where}, at {millis} ms"
                    found.update(views=1, rows=len(want))
                found["checkpoints"] += 1
        found["schedules"] += 1
    assert min(found["views"], found["rows"], found["early"], found["late"]) > 0, found
    record_property(f"{SCHEDULES}views", found["schedules"])
    for what in "views", "rows", "early", "late":
        record_property(f"views of arrangements: {what}", found[what])
