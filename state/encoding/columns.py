"""Column layouts: states of numbers as columns, one array per number of a state.

Guarantees that a column state equals its sealed form: a tuple of plain numbers, or the number
itself where the layout has one column. A column refuses a number that it cannot hold exactly.
Invariant: a free slot holds the state of a new key. Cost: a few numpy calls for any count of
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import ABSENT, INITIAL_SLOTS, Slots
from meander.state.encoding.codec import decode

Column = npt.NDArray[np.generic]
Columns = tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A layout that names the columns of a state: a new key's numbers, and their types."""

    init: tuple[object, ...]
    dtypes: tuple[str, ...]

    @property
    def numbers(self) -> bool:
        """Return whether all columns hold numbers."""
        return all(np.dtype(dtype).kind in "biuf" for dtype in self.dtypes)


class NumberCells:
    """Cells that hold states of numbers in one layout.

    >>> cells = NumberCells(ColumnLayout((0, 0.5), ("int64", "float64")))
    >>> cells.write(np.array([3]), (np.array([7]), np.array([2.5])))
    >>> cells.has(np.array([2, 3])), cells.get(np.array([3]))
    ([False, True], [(7, 2.5)])
    >>> [column.tolist() for column in cells.read(np.array([2, 3]))]
    [[0, 7], [0.5, 2.5]]
    """

    def __init__(self, layout: ColumnLayout) -> None:
        self._layout = layout
        self._has = np.zeros(INITIAL_SLOTS, np.bool_)
        self._columns = _new_columns(layout, INITIAL_SLOTS)
        self.cell_bytes = 1 + sum(column.itemsize for column in self._columns)

    def __len__(self) -> int:
        return len(self._has)

    def grow(self) -> None:
        """Double the number of slots."""
        self.resize(np.arange(len(self)), 2 * len(self))

    def resize(self, slots: Slots, size: int) -> None:
        """Resize to `size` slots and move the states of some slots to the first of them."""
        more = _new_columns(self._layout, size - len(slots))
        parts = zip(self.read(slots), more, strict=True)
        self._columns = [np.concatenate(part) for part in parts]
        self._has = np.concatenate([self._has[slots], np.zeros(size - len(slots), np.bool_)])

    def read(self, slots: Slots) -> Columns:
        """Return the states in some slots as columns of shape (n,)."""
        return tuple(column[slots] for column in self._columns)

    def write(self, slots: Slots, columns: Columns) -> None:
        """Set the states in different slots. Raise ValueError, and set none, where a column has
        another length or holds a number outside its type."""
        dtypes = self._layout.dtypes
        fitted = [fit_column(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)]
        if any(len(column) != len(slots) for column in fitted):
            raise ValueError(f"a column of states has not {len(slots)} rows")
        for column, values in zip(self._columns, fitted, strict=True):
            column[slots] = values
        self._has[slots] = True

    def get(self, slots: Slots) -> list[object]:
        """Return the states in some slots as plain values."""
        parts = [column.tolist() for column in self.read(slots)]
        return parts[0] if self._is_single else list(zip(*parts, strict=True))

    def has(self, slots: Slots) -> list[bool]:
        """Return for each slot whether it holds a state."""
        has: list[bool] = self._has[slots].tolist()
        return has

    def get_or_absent(self, slots: Slots) -> list[object]:
        """Return the state in each slot, or `ABSENT`."""
        states = self.get(slots)
        for row in np.flatnonzero(~self._has[slots]).tolist():
            states[row] = ABSENT
        return states

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set encoded states in different slots. Raise MeanderError for a state that does not fit
        the columns."""
        plain = [decode(data) for data in states]
        try:
            parts = [plain] if self._is_single else list(zip(*plain, strict=True))
            self.write(slots, tuple(np.array(part, object) for part in parts))
        except (TypeError, ValueError, OverflowError) as error:
            raise MeanderError(
                "the state of a fold over columns",
                f"it does not fit columns of {', '.join(self._layout.dtypes)}: {error}",
                "declare the columns of the fold that wrote it",
            ) from error

    def clear(self, slots: Slots) -> None:
        """Remove the states in some slots."""
        self._has[slots] = False
        for column, vacant in zip(self._columns, _new_columns(self._layout, 1), strict=True):
            column[slots] = vacant

    def weigh(self, slots: Slots) -> int:
        """Return zero, as a state takes no bytes besides its slot."""
        return 0

    @property
    def _is_single(self) -> bool:
        """Return whether a state is a bare number instead of a tuple."""
        return len(self._columns) == 1


def column_of(values: Sequence[object], dtype: str) -> Column:
    """Return a column of values, cast to its type where the type allows it."""
    column = np.empty(len(values), np.dtype(dtype))
    column[:] = values
    return column


def exact_column(values: Sequence[object], dtype: str) -> Column:
    """Return a column of exactly these values. Raise ValueError where its type cannot hold one.

    >>> exact_column([1, 2], "int8").tolist()
    [1, 2]
    >>> exact_column([1.5], "int8")
    Traceback (most recent call last):
    ValueError: the state 1.5 would become 1 in a column of int8
    """
    column = column_of(values, dtype)
    if column.dtype.kind == "O":
        return column
    for value, stored in zip(values, column.tolist(), strict=True):
        # NaN does not equal itself, but the column holds it as NaN.
        if value != stored and value == value:
            raise ValueError(f"the state {value!r} would become {stored!r} in a column of {dtype}")
    return column


def fit_column(column: Column, dtype: str) -> Column:
    """Return a column of states in its declared type. Raise ValueError as `exact_column` does."""
    # Arrays of other libraries may lack this type, yet work as well.
    if getattr(column, "dtype", None) == dtype and column.ndim == 1:
        return column
    return exact_column(column.tolist(), dtype)


def _new_columns(layout: ColumnLayout, count: int) -> list[Column]:
    states = zip(layout.init, layout.dtypes, strict=True)
    return [np.full(count, value, dtype) for value, dtype in states]
