"""Redefinitions: a flow starts with another version of a logic than its last execution had.

Guarantees that such a start counts as a change of logic at its time. So records that are read again
meet the versions that they have met, and states are upgraded as by a command. A version that any
execution has had is no redefinition: its changes hold. Cost: a look at each earlier change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from meander.dataflow.api.logics import expect_replaces
from meander.dataflow.api.nodes import KeyedNode, StepsNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.logic.changeable import load
from meander.dataflow.operators.stateless import Step
from meander.schemas.errors import SetupError


def redefinitions(plan: Plan, changes: Iterable[LogicChange], time: int) -> list[LogicChange]:
    """Return the changes that a start at `time` makes, given all earlier ones in order. Raises
    SetupError where a definition cannot replace the version before it."""
    by_operator = defaultdict[str, list[LogicChange]](list)
    for change in changes:
        by_operator[change.operator].append(change)
    found = (_redefinition(plan, some, time) for some in by_operator.values())
    return [one for one in found if one is not None]


def _redefinition(plan: Plan, changes: list[LogicChange], time: int) -> LogicChange | None:
    last = changes[-1]
    operator, before = last.operator, last.version
    defined = plan.logics.get(operator)
    if defined is None:
        if last.generation and operator in {one.name for one in plan.keyed}:
            raise SetupError(
                f"operator {operator!r}", "its logic cannot change any more, and a change has"
                " upgraded its states", "derive its logic from ChangeableLogic",
            )  # fmt: skip
        return None
    if defined in {changes[0].before, *(one.version for one in changes)}:
        return None
    home, subject = plan.home_of(operator), f"operator {operator!r}"
    logic, replaced = load(defined, home, subject), load(before, home, subject)
    expect_replaces(_operator(plan, operator), replaced, logic)
    generation = last.generation + logic.upgrades_from(replaced)
    at = max(time, last.time + 1)
    return LogicChange("", operator, at, before, defined, generation)


def _operator(plan: Plan, name: str) -> KeyedNode | Step:
    for node in plan.nodes:
        match node:
            case KeyedNode() if node.name == name:
                return node
            case StepsNode(steps=steps):
                for step in steps:
                    if step.name == name:
                        return step
    raise AssertionError(f"operator {name!r} has a changeable logic")
