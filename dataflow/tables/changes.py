"""The changes of a table: what its rows were, and what they are.

Guarantees at most one change of a key per time, which tells the row before this time and the row
once all records of this time are in. A row that stays gives none. Invariant: the state of a key is
its row, and the one before its first record at the current time. Cost: the calls of a process
function, one per record and one per key and time.
"""

from __future__ import annotations

from typing import Any, Generic, TypedDict

from typing_extensions import TypeVar

from meander.dataflow.operators.keyed.context import Context

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
State = list[Any]
"""The row of a key, and the row before its first record at this time, in a list, or None."""


class TableChange(TypedDict, Generic[K, V]):
    """A change of a row of a table."""

    key: K
    before: V | None
    """The row before, None where the key had none."""
    after: V | None
    """The new row, None where it is deleted."""


def no_row() -> State:
    """Return the state of a key without a row."""
    return [None, None]


def replaced(context: Context, state: State, change: Any) -> State:  # noqa: ANN401 (key and row)
    """Replace the row of a key."""
    row, before = state
    context.notify()
    return [change[-1], [row] if before is None else before]


def told(context: Context, state: State) -> State:
    """Send the change of a key, once all records of a time are in."""
    row, before = state
    if before is not None and before != [row]:
        change: TableChange = {"key": context.key, "before": before[0], "after": row}
        context.emit(change)
    if row is None:
        context.forget()
    return [row, None]
