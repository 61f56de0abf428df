"""The end of the rows of a table with a time to live, as a change that deletes them.

A join of a stream compares due times by itself. Readers of changes need a change at the due time,
so they read this operator. Guarantees that a row ends at the very time at which it does for a join.
Cost: one timer per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.operators.keyed.expiry import Expiry

State = list[int]
END = "end"
"""The name of the timer of a row."""


def no_row() -> State:
    """Return the state of a key without a row: neither a due time nor a timer."""
    return [0, 0]


@dataclass(frozen=True, slots=True)
class RowExpiry:
    """The functions of the operator. A state has the due time, and the time of the timer."""

    expiry: Expiry

    def step(self, context: Context, state: State, change: Any) -> State:  # noqa: ANN401 (key and row)
        """Pass a change on, and renew the due time."""
        _, timer = state
        context.emit(change)
        if change[-1] is None:
            if timer:
                context.cancel(END)
            context.forget()
            return no_row()
        due = context.time_ms + self.expiry.millis
        if not timer:
            context.timer(due, name=END)
        return [due, timer or due]

    def on_timer(self, context: Context, state: State) -> State:
        """Delete the row where its due time has come; otherwise set another timer."""
        due, _ = state
        if due > context.time_ms:
            context.timer(due, name=END)
            return [due, due]
        context.emit((context.key, None))
        context.forget()
        return no_row()
