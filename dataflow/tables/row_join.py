"""The join of two tables by equal keys: its rows are pairs, which change as either side does.

Guarantees at most one change of a key per time: the pair that it has once all changes of this time
are in. So no reader sees a lost or a doubled row at any time. Invariant: the state of a key has the
rows of both sides, and those before its first change at the current time. Cost: the calls of a
process function, one per change and one per key and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meander.dataflow.operators.keyed.context import Context

Sides = list[Any]
"""The left and the right row, None for a side without one."""
State = list[Any]
"""The sides now, and before the first change at this time, or None."""


def no_rows() -> State:
    """Return the state of a key without rows."""
    return [[None, None], None]


@dataclass(frozen=True, slots=True)
class RowJoin:
    """The functions of a join by equal keys."""

    keeps_unmatched: bool
    """Whether a left row without a right one gives a pair."""

    def left(self, context: Context, state: State, change: Any) -> State:  # noqa: ANN401 (key and row)
        """Change the left row of a key."""
        return self._changed(context, state, 0, change[-1])

    def right(self, context: Context, state: State, change: Any) -> State:  # noqa: ANN401 (key and row)
        """Change the right row of a key."""
        return self._changed(context, state, 1, change[-1])

    def on_notify(self, context: Context, state: State) -> State:
        """Send the change of a key, once all changes of a time are in."""
        sides, before = state
        if before not in (None, sides):
            if self._matches(sides):
                context.emit((context.key, tuple(sides)))
            elif self._matches(before):
                context.emit((context.key, None))
        if sides == [None, None]:
            context.forget()
        return [sides, None]

    def row(self, state: State) -> Sides | None:
        """Return the row that a key has in the table of the join: both sides, or None."""
        sides, _ = state
        return sides if self._matches(sides) else None

    def _changed(self, context: Context, state: State, side: int, row: object) -> State:
        sides, before = state
        changed = [*sides]
        changed[side] = row
        context.notify()
        return [changed, sides if before is None else before]

    def _matches(self, sides: Sides) -> bool:
        left, right = sides
        return left is not None and (right is not None or self.keeps_unmatched)
