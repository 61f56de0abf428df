"""A change of logic that is decided stands in later executions; one that is not is answered, or
comes again."""

from __future__ import annotations

import pytest

from meander.app.driver.commands import EXECUTION_ENDED, FLOW_ENDED, OpenCommands
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.schemas.status import Aborted, CommandRejected, Event, LogicAccepted, LogicChanged

ACCEPTED = LogicAccepted("c", 3, ["above"])
CHANGED = LogicChanged("c", 5, 5 << 20, {"above": "Above()"}, 1.5)


def noted(*events: Event, done: int = 4) -> OpenCommands:
    """Commands with events, and all before an offset done."""
    commands = OpenCommands()
    commands.advance(CommandsDoneDecision(0))
    for event in events:
        commands.note(event)
    commands.advance(CommandsDoneDecision(done))
    return commands


def test_a_decided_change_is_not_aborted_at_the_end_of_an_execution() -> None:
    commands = noted(ACCEPTED)
    for _ in range(2):
        assert [*commands.end(EXECUTION_ENDED)] == []
        assert commands.logic == {"c"}, "the next execution reports its end"
    commands.note(CHANGED)
    assert commands.logic == set()


def test_a_decided_change_is_not_aborted_at_the_end_of_the_flow() -> None:
    assert [*noted(ACCEPTED).end(FLOW_ENDED)] == []


def test_a_change_that_is_not_decided_comes_again_in_the_next_execution() -> None:
    assert [*noted(ACCEPTED, done=3).end(EXECUTION_ENDED)] == []


def test_a_change_that_is_not_decided_is_aborted_at_the_end_of_the_flow() -> None:
    """No later execution handles it, as the end of the flow notes it as done."""
    commands = noted(ACCEPTED)
    expected = Aborted(id="c", by="", reason=FLOW_ENDED, offset=3)
    assert [*commands.end(FLOW_ENDED, {"c": 3})] == [expected]
    assert [*commands.end(FLOW_ENDED)] == []
    assert commands.logic == set()


@pytest.mark.parametrize("end", [CHANGED, CommandRejected("c", 3, "it fails")])
def test_a_change_that_has_its_answer_is_open_no_longer(end: Event) -> None:
    commands = noted(ACCEPTED, end, done=3)
    assert commands.logic == set()
    assert commands.answered == {3}


def test_the_rejection_of_a_repeated_id_leaves_the_first_command_open() -> None:
    commands = noted(ACCEPTED, CommandRejected("c", 9, "id 'c' was used before"))
    assert commands.logic == {"c"}
    commands.note(CHANGED)
    assert commands.logic == set()
