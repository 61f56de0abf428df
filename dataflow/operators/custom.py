"""What an operator of the user gets from its worker, besides its context.

The operator may do what any operator may: consume messages, hold capabilities, send under them, and
read frontiers. I1 is its own duty: it mints the capability of a message in the step that consumes
the message, and records that it holds are `in_flight`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.ports import InputPort, Operator, OutputPort
from meander.state.times.antichain import Antichain

if TYPE_CHECKING:
    # This loads numba, which takes half a second that other flows do without.
    from meander.state.collections.cursor import Cursor


@dataclass(frozen=True, slots=True)
class ReadArrangement:
    """An arrangement of another operator that an operator of the user reads by key."""

    cursor: Callable[[], Cursor]
    """Opens a cursor over all updates on this worker, of whatever times. It tells apart the times
    from the operator's frontier on."""
    frontier: Callable[[], Antichain]
    """Returns the frontier before which it holds all updates, on all workers."""


@dataclass(frozen=True, slots=True)
class OperatorServices:
    """The services of one worker for an operator of the user."""

    context: OperatorContext
    input: InputPort
    output: OutputPort
    guard: Guard
    """Handles errors of functions by the error policy."""
    ends: Sequence[Callable[[], Antichain]]
    """The frontiers of all workers at the places where records leave the scope of the operator."""
    arrangements: Sequence[ReadArrangement] = ()


BuildOperator = Callable[[OperatorServices], Operator]
"""Builds the operator of one worker."""
