"""Moves and checkpoints leave no cycles: a worker collects garbage seldom, so these would keep
memory and open iterators for long (I6)."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from meander import Checkpointing, Flow
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.testing import At, Control, TestFlow

RECORDS = 1000
BINS = range(16)


def run(strategy: str) -> Counter[str]:
    """The objects of cycles that many moves leave, by type."""
    flow = Flow("f", bins=4, checkpoints=Checkpointing(interval=0.01))
    source = ListSource([[(now, f"k{now % 50}") for now in range(1, RECORDS)]])
    keyed = flow.source(source).key_by(lambda key: key)
    keyed.fold("n", init=lambda: 0, step=lambda n, _: (n + 1, n + 1)).sink(ListSink())
    moves = [
        At(
            Control(
                {"id": f"m{n}", "type": "migrate", "bins": [*BINS], "worker": n % 2,
                 "strategy": strategy}
            ),
            records=n * 100,
        )
        for n in range(1, 9)
    ]  # fmt: skip
    with TestFlow(flow, workers=2, seed=1, faults=moves) as test:
        gc.collect()
        test.run()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
    found = Counter(type(one).__qualname__ for one in gc.garbage)
    gc.garbage.clear()
    return found


@pytest.mark.parametrize("strategy", ["all-at-once", "fluid", "batched"])
def test_moves_and_checkpoints_leave_no_cycles(strategy: str) -> None:
    gc.disable()
    try:
        run(strategy)  # The first run defines classes, which are cycles.
        assert run(strategy) == Counter()
    finally:
        gc.enable()
