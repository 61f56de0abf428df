"""What `meander plan` prints, and the exit code that follows from the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO

import pytest
import yaml
from rich.console import Console

from meander.app.cli.views.plan import (
    plan_table,
    sentence,
    show_difference,
    show_plan,
)
from meander.app.cli.views.plan import (
    show_apply as show_apply_of,
)
from meander.app.common.output import CommandOutput
from meander.schemas.plan_record import PlanRecord
from meander.schemas.status import (
    Aborted,
    CommandRejected,
    Event,
    Joined,
    JoinFailed,
    Left,
    PlanCompared,
    PlanInForce,
    Reconfigured,
    Reconfiguring,
    RolledBack,
)

PLAN: dict[str, object] = {"workers": {"0": {}}, "bins": {"0": "0-2, 7"}}
COMPARED = PlanCompared(
    id="p", offset=3, plan=PLAN, places={"0": "executor 1 on host a"},
    operations=["worker 1: starts"],
)  # fmt: skip
REJECTED = CommandRejected(id="p", offset=3, reason="bin 3: it has no owner; give it to one worker")
STARTED = Reconfiguring(id="p", offset=3, by="ann", why="load", operations=["worker 1: starts"])
IN_FORCE = PlanInForce(id="p", time=5, at=5 << 20, versions={}, prepare_ms=1234.4, synchronise_ms=9)
Show = Callable[[CommandOutput, Iterator[Event]], int]


show_apply = partial(show_apply_of, command="p")


def shown(show: Show, *events: Event, as_json: bool = False) -> tuple[int, str]:
    """Return the exit code, and what a terminal shows."""
    said = StringIO()
    console = Console(file=said, highlight=False, width=200)
    code = show(CommandOutput(console, as_json=as_json), iter(events))
    return code, said.getvalue()


def listed(*plans: PlanRecord) -> str:
    """Return what a terminal shows of the history."""
    said = StringIO()
    plan_table(CommandOutput(Console(file=said, width=200), as_json=False), plans)
    return said.getvalue()


def test_a_plan_is_shown_as_yaml_with_the_places_of_its_workers() -> None:
    code, said = shown(partial(show_plan, as_yaml=True), COMPARED, as_json=True)
    assert code == 0
    assert said.splitlines()[0] == "# worker 0 runs in executor 1 on host a"
    assert yaml.safe_load(said) == PLAN


def test_a_plan_is_shown_as_json_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = shown(partial(show_plan, as_yaml=False), COMPARED, as_json=True)
    assert (code, said) == (0, "")
    assert json.loads(capsys.readouterr().out) == PLAN


@pytest.mark.parametrize("show", [partial(show_plan, as_yaml=True), show_difference, show_apply])
def test_a_rejected_plan_ends_with_the_reason_and_code_1(show: Show) -> None:
    code, said = shown(show, REJECTED)
    assert code == 1
    assert said.splitlines()[0] == f"rejected: {REJECTED.reason}"


def test_a_difference_is_shown_by_operations() -> None:
    assert shown(show_difference, COMPARED) == (0, "worker 1: starts\n")
    same = PlanCompared(id="p", offset=3, plan=PLAN, places={}, operations=[])
    assert shown(show_difference, same) == (0, "nothing changes\n")


def test_a_plan_that_comes_into_force_is_shown_step_by_step() -> None:
    ended = Reconfigured(id="p", offset=3, workers=2, ms=2345.6)
    joined = Joined(id="p", worker=1)
    code, said = shown(show_apply, STARTED, joined, IN_FORCE, ended)
    assert code == 0
    lines = [line for line in said.splitlines() if "━" not in line]
    assert lines[:2] == ["accepted:", "  worker 1: starts"]
    assert lines[2:5] == [
        "worker 1 has joined",
        "in force from 5 ms on (prepared in 1,234 ms, applied in 9 ms)",
        "completed: 2 workers, 2,346 ms",
    ]


def test_a_plan_that_a_restart_has_completed_has_no_durations() -> None:
    again = PlanInForce(id="p", time=5, at=5, versions={}, prepare_ms=None, synchronise_ms=None)
    assert sentence(again) == "in force from 5 ms on"
    assert sentence(Reconfigured(id="p", offset=3, workers=2, ms=None)) == "completed: 2 workers"


def test_a_plan_that_fails_ends_with_the_reason_and_code_1() -> None:
    failed = JoinFailed(id="p", worker=1, reason="worker 1: no free slot")
    back = RolledBack(id="p", offset=3, reason="worker 1: no free slot")
    code, said = shown(show_apply, STARTED, failed, back)
    assert code == 1
    assert "rolled back, the old plan stays in force: worker 1: no free slot" in said


def test_a_plan_that_is_aborted_in_the_queue_ends_with_code_1() -> None:
    ended = Aborted(id="p", by="a", offset=3, reason="command 'a' has aborted it before it began")
    code, said = shown(show_apply, ended)
    assert code == 1
    assert "aborted, the old plan stays in force: command 'a' has aborted it before" in said


def test_the_aborted_parts_of_a_plan_are_not_its_end() -> None:
    part = Aborted(id="p/bins", by="p", ms=1.0, bins=0, bytes=0, unmoved=[3])
    back = RolledBack(id="p", offset=3, reason="command 'a' has aborted it")
    code, said = shown(show_apply, STARTED, part, back)
    assert code == 1
    assert "aborted, " not in said


def test_an_event_without_a_sentence_prints_nothing() -> None:
    left = Left(id="p", worker=1, counters={})
    assert sentence(left) == "worker 1 has left"
    assert sentence(COMPARED) == ""


def test_the_history_shows_who_why_and_the_outcome() -> None:
    record = PlanRecord(
        "p1", "ann@here", "load", 1_700_000_000_000, ["worker 1: starts", "bin 3: worker 0 -> 1"],
        "rolled back", "no free slot",
    )  # fmt: skip
    said = listed(record)
    for words in ("p1", "ann@here", "load", "rolled back", "no free slot", "2023-11-14"):
        assert words in said
    assert "No plan was applied." in listed()
