"""The plan history: the changes that policies have made, so that none of them goes back and forth.

Guarantees that a proposal is recognized that would undo a recent change of a policy, by this policy
or another one. Cost: one pass over the changed operations per proposal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from meander.dataflow.execution_plan.difference import (
    AssignBins,
    AssignPartition,
    SetLogic,
    difference,
)
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.state.keys.ids import member_name

Aspect = tuple[object, ...]
"""A part of a plan, such as the owner of one bin."""


@dataclass(frozen=True, slots=True)
class _Change:
    at: float
    before: dict[Aspect, object]
    """The earlier value of each aspect that has changed."""


class PlanHistory:
    """A history of the changes of the last `seconds` seconds.

    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.state.keys.ids import WorkerId
    >>> one = ExecutionPlan({WorkerId(0): ANYWHERE})
    >>> two = one.scaled([WorkerId(0), WorkerId(1)])
    >>> history = PlanHistory(60.0)
    >>> history.add(0.0, one, two)
    >>> history.expect_new(90.0, two, one)
    >>> history.add(90.0, one, two)
    >>> history.expect_new(120.0, two, one)
    Traceback (most recent call last):
    meander.dataflow.execution_plan.plan.PlanError: the proposal: it goes back, as the number ...
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changes: deque[_Change] = deque()

    def add(self, now: float, before: ExecutionPlan, after: ExecutionPlan) -> None:
        """Add a change at a time in seconds. Raises PlanError for plans of different flows."""
        self._changes.append(_Change(now, {one: old for one, old, _ in _changed(before, after)}))

    def expect_new(self, now: float, before: ExecutionPlan, after: ExecutionPlan) -> None:
        """Raise PlanError where a change would undo a part of one of the last seconds, and for
        plans of different flows."""
        while self._changes and self._changes[0].at < now - self._seconds:
            self._changes.popleft()
        for aspect, _, new in _changed(before, after):
            for change in self._changes:
                if aspect in change.before and change.before[aspect] == new:
                    when = f"until {now - change.at:.0f} s ago"
                    raise PlanError(
                        "the proposal", f"it goes back, as {_name(aspect)} was {new} {when}",
                        "let the policy wait longer, or give it a wider tolerance",
                    )  # fmt: skip


def _changed(
    before: ExecutionPlan, after: ExecutionPlan
) -> Iterator[tuple[Aspect, object, object]]:
    """Yield the aspects in which two plans differ, with both values.

    Workers that join and leave take bins and partitions with them, so those count only where the
    workers stay.
    """
    rescaled = before.workers.keys() != after.workers.keys()
    if len(before.workers) != len(after.workers):
        yield ("workers",), len(before.workers), len(after.workers)
    for one in difference(before, after):
        match one:
            case SetLogic(operator, old, new):
                yield ("logic", operator), str(old), str(new)
            case AssignBins(group, source, target, bins) if not rescaled:
                for bin in bins:
                    yield ("bin", group, bin), member_name(source), member_name(target)
            case AssignPartition(source, partition, reader, target) if not rescaled:
                yield ("partition", source, partition), member_name(reader), member_name(target)


def _name(aspect: Aspect) -> str:
    match aspect:
        case ("workers",):
            return "the number of workers"
        case ("logic", operator):
            return f"the logic of operator {operator}"
        case ("bin", group, bin):
            return f"the owner of bin {bin}" + (f" of operator {group}" if group else "")
        case (_, source, partition):
            return f"the reader of partition {partition} of source {source}"
    raise AssertionError(f"aspect {aspect} has a name")
