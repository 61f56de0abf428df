"""The functions of rows that users give a table, as functions of its changes.

A change is a tuple that ends with a key and its new row. Guarantees that a user's function gets
rows alone, never a deletion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Change = Any
"""A tuple that ends with a key and its new row; None deletes the row."""


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of changes that applies a user's function to their rows."""

    inner: Callable[..., object]

    def __call__(self, change: Change) -> Change:
        """Return the change, with the result as the row."""
        key, row = change[-2:]
        return key, None if row is None else self.inner(row)


class RowFilter(RowFunction):
    """A function of changes that deletes the rows which a user's function refuses."""

    __slots__ = ()

    def __call__(self, change: Change) -> Change:
        """Return the change, or the deletion of its row."""
        key, row = change[-2:]
        return key, row if row is not None and self.inner(row) else None


class PairFunction(RowFunction):
    """A function of changes whose rows are pairs of rows."""

    __slots__ = ()

    def __call__(self, change: Change) -> Change:
        """Return the change, with the result for both rows as the row."""
        key, rows = change[-2:]
        return key, None if rows is None else self.inner(*rows)


class ForeignKey(RowFunction):
    """A function of changes that adds the foreign key of their rows."""

    __slots__ = ()

    def __call__(self, change: Change) -> Change:
        """Return the key, the foreign key and the row."""
        key, row = change[-2:]
        return key, None if row is None else self.inner(row), row
