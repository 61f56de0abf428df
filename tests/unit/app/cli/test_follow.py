"""How a command is followed to its end: its own events are shown, no heartbeats between them."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from meander.app.cli.follow import _begins, _ends, show_end
from meander.app.common.output import CommandOutput
from meander.app.status.overview import SILENCE
from meander.schemas.control import ApplyPlan, ChangeLogic, Migrate
from meander.schemas.execution_plan import NewLogic, PlanDocument
from meander.schemas.status import (
    Aborted,
    CheckpointAccepted,
    CheckpointFailed,
    CommandRejected,
    Event,
    LogicAccepted,
    LogicChanged,
    PlanCompared,
    PlanInForce,
    Reconfigured,
    Reconfiguring,
    RolledBack,
)


def test_heartbeats_between_the_events_of_a_command_are_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = CheckpointFailed(id="c", number=3, reason="it took too long")
    events: list[Event] = [CheckpointAccepted(id="c", offset=3), SILENCE, failed]
    output = CommandOutput(Console(), as_json=True)
    assert show_end(output, iter(events), lambda event: "") == 1
    printed = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["checkpoint_accepted", "checkpoint_failed"]


def test_a_command_that_is_aborted_before_its_acceptance_has_ended() -> None:
    command = Migrate(type="migrate", id="m", bins=[0], worker=1)
    aborted = Aborted(id="m", by="a", offset=3)
    assert _ends(aborted, command, 3, accepted=False)
    assert _ends(aborted, command, 4, accepted=True)
    assert not _ends(aborted, command, 4, accepted=False), "an earlier command has its id"


def test_a_change_of_logic_ends_once_it_is_in_force_or_rejected() -> None:
    command = ChangeLogic(type="change_logic", id="c", operators={"above": NewLogic()})
    accepted, changed = LogicAccepted("c", 3, ["above"]), LogicChanged("c", 5, 5 << 20, {}, 1.0)
    assert [_begins(accepted, offset) for offset in (3, 4)] == [True, False]
    assert not _ends(accepted, command, 3, accepted=False)
    assert _ends(changed, command, 3, accepted=True)
    assert not _ends(changed, command, 3, accepted=False), "an earlier command has its id"
    assert _ends(CommandRejected("c", 3, "it fails"), command, 3, accepted=True)


def test_a_plan_ends_once_its_reconfiguration_has_ended() -> None:
    command = ApplyPlan(type="apply_plan", id="p", plan=PlanDocument())
    started = Reconfiguring("p", 3, "ann", "load", [])
    assert [_begins(started, offset) for offset in (3, 4)] == [True, False]
    assert not _ends(started, command, 3, accepted=True)
    assert not _ends(PlanInForce("p", 5, 5 << 20, {}, 1.0, 1.0), command, 3, accepted=True)
    for end in Reconfigured("p", 3, 2, 1.0), RolledBack("p", 3, "no slot"):
        assert _ends(end, command, 3, accepted=True)
        assert not _ends(end, command, 4, accepted=True), "an earlier command has its id"
    assert _ends(PlanCompared("p", 3, {}, {}, []), command, 3, accepted=False)


def test_the_aborted_parts_of_a_plan_do_not_end_it() -> None:
    command = ApplyPlan(type="apply_plan", id="p", plan=PlanDocument())
    assert not _ends(Aborted(id="p/bins", by="p", offset=3), command, 3, accepted=True)
    assert _ends(Aborted(id="p", by="a", offset=3), command, 3, accepted=False)
