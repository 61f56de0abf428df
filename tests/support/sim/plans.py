"""Commands for other plans, and what a simulated flow makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meander.dataflow.control.decisions import JointDecision
from meander.testing import TestFlow


def apply(id: str = "p", **fields: Any) -> dict[str, Any]:
    """A command for another plan; the fields are those of the command, or sections of the plan."""
    names = ("time", "dry_run", "seconds", "by", "why")
    own: dict[str, Any] = {one: fields.pop(one) for one in names if one in fields}
    return {"meander": "command", "type": "apply_plan", "id": id, "plan": fields, **own}


def migrate(id: str, bins: Sequence[int], worker: int, ms: int | None = None) -> dict[str, Any]:
    return {"type": "migrate", "id": id, "bins": [*bins], "worker": worker, "time": ms}


def abort(id: str, command: str) -> dict[str, Any]:
    return {"type": "abort", "id": id, "command": command}


def the_plan(run: TestFlow) -> dict[str, Any]:
    """The plan in force, as the flow reports it."""
    run.control(apply("shown", dry_run=True))
    return run.events[-1]["plan"]  # type: ignore[return-value]


def state(run: TestFlow, id: str = "p") -> tuple[str, str]:
    """The state of a command, and the reason of a rejection or a roll-back."""
    answer = run.answer(id)
    assert answer is not None
    return answer.state, answer.reason


def joints(run: TestFlow) -> list[JointDecision]:
    """The joint decisions so far."""
    return [one for one in run.sim.decisions if isinstance(one, JointDecision)]
