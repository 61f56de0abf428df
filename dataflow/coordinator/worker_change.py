"""The commands that change workers or wait for such a change, and the one in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meander.dataflow.control.command import MoveBins, SwitchLogic
from meander.dataflow.coordinator.plan_change import PlanChange
from meander.schemas.control import ApplyPlan, Rescale
from meander.schemas.status import Event
from meander.state.keys.ids import WorkerId

Queueable = Rescale | MoveBins | SwitchLogic | ApplyPlan
KINDS: Mapping[type, str] = {
    Rescale: "rescale", MoveBins: "migration", SwitchLogic: "change of logic", ApplyPlan: "plan",
}  # fmt: skip
"""The kinds of commands that may wait here, in words."""


@dataclass(slots=True)
class Change:
    """A command in progress."""

    id: str
    offset: int
    started_at: float
    then: Callable[[Change], Iterable[Event]]
    """The next step, once no worker and no move is awaited."""
    joining: set[WorkerId] = field(default_factory=set)
    """The workers that have not joined yet."""
    leaving: set[WorkerId] = field(default_factory=set)
    """The workers that have not left yet."""
    joined: list[WorkerId] = field(default_factory=list)
    moves: set[object] = field(default_factory=set)
    """The ids of moves to the workers that have joined."""
    migration: MoveBins | None = None
    """The command to submit once its worker has joined."""
    failure: str = ""
    """The part of the command that failed, and the reason."""
    plan: PlanChange | None = None
    """The change of plan that the command asks for."""
    decided: bool = False
    """Whether the plan is in force."""
    aborted_by: str = ""
    """The id of the command that has aborted the change of plan."""
