"""The rows of a table as changes of a collection.

Guarantees that a collection gets each row once, and its removal once another row, or none, has
replaced it. Invariant: the state of a key is the row that the collection has; a key without a row
has none. A record with a faulty row changes neither. Cost: one state per row, up to two changes per
record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meander.dataflow.operators.collection.row_type import RowType
from meander.dataflow.operators.error_policy import safe_repr
from meander.dataflow.operators.keyed.context import Context

Row = tuple[Any, Any]
"""A key and a value of the collection."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The step that turns the changes of a table into changes of a collection."""

    row_type: RowType

    def step(self, context: Context, held: Row | None, change: Any) -> Row | None:  # noqa: ANN401
        """Emit what changes, and return the new row. Raise ValueError for a faulty row."""
        row: Row | None = change[-1]
        if row is not None:
            row = self._checked(row)
        else:
            context.forget()
        if row == held:
            return held
        if held is not None:
            context.emit((*held, -1))
        if row is not None:
            context.emit((*row, 1))
        return row

    def _checked(self, row: object) -> Row:
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(f"its row is {safe_repr(row)}, no key and value")
        key, value = row
        if fault := self.row_type.fault(key, value, "collection("):
            raise ValueError(fault)
        return key, value


def no_collection_row() -> Row | None:
    """Return the row of a key without a record."""
    return None
