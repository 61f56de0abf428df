"""The oracle of flow control can fail: each of these bugs, planted in the batcher, is caught in few
runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from meander.dataflow.flow_control.batcher import Batcher
from meander.dataflow.flow_control.ready_rows import ReadyRows
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.ports import InFlight
from tests.support.property.cases import random_case, with_some_comings_and_goings
from tests.support.property.planted import expect_caught, runs
from tests.support.property.recovery_run import RecoveryRun

RUNS = 40
SHOWN = {
    "rows that wait are left out of checkpoints": 5,
    "rows that wait are read after the checkpoint": 5,
    "rows of one time are not sorted": 2,
}
"""The seeds that show them, as it is now."""


def _nothing(*_: object) -> Any:
    return ()


def _read_later(batcher: Any) -> Iterator[InFlight]:
    for waiting in (*batcher._ready, *batcher._open.rows()):
        for rows in batcher._numbers.renumbered(waiting):
            yield InFlight.isolated(batcher._input.location, rows.least_time, rows.batch)


_in_order = ReadyRows._in_order


def _by_time_alone(ready: Any, passed: list[Rows]) -> Iterator[Rows]:
    ready._sorted = lambda rows: rows.take(np.argsort(rows.batch.times, kind="stable"))
    return _in_order(ready, passed)


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "rows that wait are left out of checkpoints": (Batcher, "in_flight", _nothing),
    "rows that wait are read after the checkpoint": (Batcher, "in_flight", _read_later),
    "rows of one time are not sorted": (ReadyRows, "_in_order", _by_time_alone),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(seed: int) -> None:
        case = with_some_comings_and_goings(random_case(seed, ("controlled",)))
        RecoveryRun(case).recover()

    expect_caught(monkeypatch, BUGS[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
