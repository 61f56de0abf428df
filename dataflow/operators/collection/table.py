"""Tables: the newest record of a primary key replaces the row of the earlier one.

Guarantees that a collection gets each row once, and its removal once another row, or none, has
replaced it. Invariant: the state of a primary key is the row that the collection has; a key without
a row has none. A record with a faulty row changes neither. Cost: one state per row, up to two
changes per record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meander.dataflow.operators.collection.row_type import RowType
from meander.dataflow.operators.error_policy import safe_repr
from meander.dataflow.operators.keyed.context import Context

Row = tuple[Any, Any]
"""A key and a value."""
ReadTableRow = Callable[[Any], tuple[object, Row | None]]
"""From a record to its primary key, and to its row, or None where the record deletes it."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The step that turns the records of a primary key into changes of a collection."""

    read: ReadTableRow
    row_type: RowType

    def primary_key(self, record: object) -> object:
        """Return the primary key of a record."""
        key, _ = self.read(record)
        return key

    def step(self, context: Context, held: Row | None, record: object) -> Row | None:
        """Emit what changes, and return the new row. Raise ValueError for a faulty row."""
        _, row = self.read(record)
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
        if fault := self.row_type.fault(key, value, "table"):
            raise ValueError(fault)
        return key, value


def no_row() -> Row | None:
    """Return the row of a primary key without a record."""
    return None
