"""The answer of a flow to a command, from the command's events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, cast

from meander.dataflow.coordinator.events import EngineEvent
from meander.schemas.status import (
    Aborted,
    Accepted,
    CommandRejected,
    Completed,
    LogicAccepted,
    LogicChanged,
    PlanInForce,
    Queued,
    Reconfigured,
    Reconfiguring,
    Rescaled,
    Rescaling,
    RolledBack,
)

CommandState = Literal[
    "queued",
    "accepted",
    "completed",
    "aborted",
    "rescaling",
    "rescaled",
    "changed",
    "reconfiguring",
    "plan_in_force",
    "reconfigured",
    "rolled_back",
    "rejected",
]
_STATES = (
    Queued
    | Accepted
    | Completed
    | Rescaling
    | Rescaled
    | Reconfiguring
    | PlanInForce
    | Reconfigured
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that holds the last event of a command so far."""

    state: CommandState
    """The type of the event; a change of logic is "accepted", then "changed"."""
    reason: str = ""
    """The reason of a rejection, an abort or a roll-back, and the remedy."""
    moved: int = 0
    """The number of moved bins, without bins that were already there."""

    @classmethod
    def of(cls, id: str, events: Iterable[EngineEvent]) -> Answer | None:
        """Return the answer to a command; None where no event names it.

        An event of another command with the same id, which is rejected for that, does not count.

        >>> Answer.of("m1", [Completed("m1", ms=2.0, bins=4, bytes=9)])
        Answer(state='completed', reason='', moved=4)
        >>> Answer.of("c1", [LogicAccepted("c1", offset=3, operators=["alert"])])
        Answer(state='accepted', reason='', moved=0)
        """
        answer, moved = None, 0
        offset: int | None = None
        for event in events:
            if isinstance(event, Completed) and f"{event.id}/".startswith(f"{id}/"):
                # The command may have started several migrations.
                moved += event.bins
            match event:
                case LogicAccepted(id=name) if name == id:
                    answer, offset = cls("accepted"), event.offset
                case LogicChanged(id=name) if name == id:
                    answer = cls("changed")
                case RolledBack(id=name) if name == id:
                    answer = cls("rolled_back", event.reason)
                case CommandRejected(id=name) if name == id and (
                    answer is None or event.offset == offset
                ):
                    answer = cls("rejected", event.reason)
                case Aborted(id=name) if name == id:
                    answer = cls("aborted", event.reason)
                case _ if isinstance(event, _STATES) and event.id == id:
                    answer = cls(cast(CommandState, event.type))
        return answer and replace(answer, moved=moved)
