"""The oracle of changing logic can fail: each of these bugs, planted in the engine, is caught in
few runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meander.dataflow.control.logic_timeline import LogicTimeline
from meander.dataflow.logic.worker_logics import WorkerLogics
from meander.dataflow.operators.changeable_steps import ChangeableSteps
from meander.dataflow.operators.keyed.logic import UpgradingSealing
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.state.times.antichain import Antichain
from tests.support.property.cases import (
    random_case,
    with_changing_logic,
    with_some_comings_and_goings,
)
from tests.support.property.planted import expect_caught, runs
from tests.support.property.recovery_run import RecoveryRun

RUNS = 40
SHOWN = {
    "steps apply logic before they know it": 115,
    "records of several versions count as one": 3,
    "a slice has records from behind a change": 3,
    "records that wait are left out of checkpoints": 25,
    "a restart forgets the changes": 1,
}
"""The seeds that show them, as it is now."""


def _nothing(*_: object) -> Any:
    return ()


_schedule = ChangeableSteps.schedule


def _without_waiting(steps: Any) -> bool:
    steps._control = lambda: Antichain.of()
    return _schedule(steps)


_version_at = KeyedOperator._version_at


def _without_an_end(keyed: Any, *times: int) -> Any:
    return replace(_version_at(keyed, *times), until=None)


def _of_the_first(timeline: Any, time: int) -> Any:
    return timeline._versions[-1]


def _as_it_is(sealing: Any, sealed: Any) -> object:
    upgrades, sealing._upgrades = sealing._upgrades, []
    try:
        return _unseal(sealing, sealed)
    finally:
        sealing._upgrades = upgrades


_unseal = UpgradingSealing.unseal


def _without_changes(*_: object) -> None:
    return None


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "steps apply logic before they know it": (ChangeableSteps, "schedule", _without_waiting),
    "records of several versions count as one": (LogicTimeline, "count_equal", lambda _, t: len(t)),
    "a slice has records from behind a change": (KeyedOperator, "_version_at", _without_an_end),
    "a change takes effect at once": (LogicTimeline, "at", _of_the_first),
    "records that wait are left out of checkpoints": (ChangeableSteps, "in_flight", _nothing),
    "states are read as they are": (UpgradingSealing, "unseal", _as_it_is),
    "a restart forgets the changes": (WorkerLogics, "start", _without_changes),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(seed: int) -> None:
        case = replace(random_case(seed), kind=("changing", "ringing")[seed % 2], control_lead=0.0)
        case = with_changing_logic(case)
        RecoveryRun(with_some_comings_and_goings(case)).recover()

    expect_caught(monkeypatch, BUGS[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
