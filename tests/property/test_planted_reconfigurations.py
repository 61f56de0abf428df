"""The oracle of reconfigurations can fail: each of these bugs, planted in the engine, is caught in
few runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meander.dataflow.checkpoint import restore_plan
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.coordinator.logic_changes import LogicChanges
from meander.dataflow.coordinator.reconfigurations import Reconfigurations
from meander.state.store.store import Databases
from tests.support.property.case_run import run_of
from tests.support.property.cases import (
    Case,
    random_case,
    with_aborts,
    with_changing_logic,
    with_reconfigurations,
    with_some_comings_and_goings,
)
from tests.support.property.planted import expect_caught, runs
from tests.support.property.recovery_run import RecoveryRun

RUNS = 60
SHOWN = {
    "bins and logic change before they are prepared": 8,
    "logic is decided that a worker refuses": 8,
    "logic is decided where the rest is rolled back": 18,
    "a restart ignores the joint decision": 3,
    "a restart takes the members in another order": 3,
}
"""The seeds that show them, as it is now."""


@contextmanager
def _apart(decisions: Any, decision: Any) -> Iterator[None]:
    decisions.add(decision, lambda: None)
    yield


def _ready(*_: object) -> bool:
    return True


def _without_a_joint_decision(*_: object) -> None:
    return None


_report = LogicChanges.report


def _without_an_error(logics: Any, worker: Any, report: Any) -> None:
    _report(logics, worker, msgspec.structs.replace(report, error=""))


def _left_alone(logics: Any, id: str) -> None:
    for running in logics._parts_of(id):
        running.command = replace(running.command, part_of="")


_with_workers = RestorePlan._with_workers


def _in_another_order(plan: Any, decided: Any) -> Any:
    return _with_workers(plan, replace(decided, members=decided.members[::-1]))


LIVE: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "parts are records of their own": (PendingDecisions, "together", _apart),
    "bins and logic change before they are prepared": (Reconfigurations, "_is_prepared", _ready),
    "logic is decided that a worker refuses": (LogicChanges, "report", _without_an_error),
    "logic is decided where the rest is rolled back": (LogicChanges, "cancel", _left_alone),
}
RESTARTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a restart ignores the joint decision": (
        restore_plan, "plan_in_force", _without_a_joint_decision,
    ),
    "a restart takes the members in another order": (
        RestorePlan, "_with_workers", _in_another_order,
    ),
}  # fmt: skip


def case_of(seed: int) -> Case:
    kind = ("changing", "alone", "ringing", "rekey")[seed % 4]
    case = with_changing_logic(replace(random_case(seed), kind=kind, control_lead=0.0))
    return with_reconfigurations(with_some_comings_and_goings(with_aborts(case)))


def ran(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        databases = Databases(Path(folder), 8 << 20)
        try:
            run_of(case_of(seed)).check(databases, 0)
        finally:
            databases.close()


def recovered(seed: int) -> None:
    RecoveryRun(case_of(seed)).recover()


@pytest.mark.parametrize("bug", LIVE)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_caught(monkeypatch, LIVE[bug], ran, runs(SHOWN.get(bug, 0), RUNS))


@pytest.mark.parametrize("bug", RESTARTS)
def test_a_planted_bug_of_restarts_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_caught(monkeypatch, RESTARTS[bug], recovered, runs(SHOWN.get(bug, 0), RUNS))
