"""The plan recorder writes a record when a plan starts, and one when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from meander.app.driver.plan_recorder import PlanRecorder
from meander.connectors.topics.plans import PlansTopic
from meander.dataflow.simulation.simulator import SimClock
from meander.schemas.plan_record import PlanRecord
from meander.schemas.status import CommandRejected, Event, Reconfigured, Reconfiguring, RolledBack

STARTED = Reconfiguring("p", 3, "ann", "load", ["worker 2: starts"])


def outcomes(*events: Event, known: PlanRecord | None = None) -> list[str]:
    written = list[PlanRecord]()
    topic = cast(PlansTopic, SimpleNamespace(write=written.append))
    recorder = PlanRecorder(topic, {} if known is None else {known.id: known}, SimClock())
    for event in events:
        recorder.note(event)
    return [one.outcome for one in written]


def test_a_plan_has_a_record_at_its_start_and_one_at_its_end() -> None:
    assert outcomes(STARTED, Reconfigured("p", 3, 2, 9.0)) == ["started", "in force"]
    assert outcomes(STARTED, RolledBack("p", 3, "no slot")) == ["started", "rolled back"]


def test_the_rejection_of_another_command_with_its_id_ends_no_plan() -> None:
    end = Reconfigured("p", 3, 2, 9.0)
    assert outcomes(STARTED, CommandRejected("p", 4, "used"), end) == ["started", "in force"]


def test_a_plan_of_an_earlier_execution_is_ended() -> None:
    known = PlanRecord("p", "ann", "load", 1, [])
    assert outcomes(Reconfigured("p", 3, 2, None), known=known) == ["in force"]


def test_other_events_write_nothing() -> None:
    assert outcomes(CommandRejected("m", 4, "used"), Reconfigured("q", 5, 2, 1.0)) == []
