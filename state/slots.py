"""States that are numbers, as columns: a slot per key, and an array per number of a state.

Guarantees that a state is what it would be as a sealed one: a tuple of plain numbers, or the number
itself where there is but one column; what a column cannot hold exactly is refused. Invariants: a
slot is one key's or free; a key's slot stays its own for as long as the key is held.
Cost: a look-up per record; to read, to set and to weigh states is a handful of numpy's calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.errors import MeanderError

Column = npt.NDArray[np.generic]
Columns = tuple[Column, ...]
Slots = npt.NDArray[np.int64]
NO_SLOT: Final = -1
FIRST: Final = 1024
"""Slots to begin with."""
SLOT_BYTES: Final = 32
"""What a slot's number takes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a state: a new key's numbers, and their types; none for what is no numbers."""

    init: tuple[object, ...]
    dtypes: tuple[str, ...]

    @property
    def numbers(self) -> bool:
        """Whether all columns are of numbers."""
        return all(np.dtype(dtype).kind in "biuf" for dtype in self.dtypes)


class SlotTable:
    """The states of one operator's keys as columns.

    >>> table = SlotTable(b"op", Layout((0, 0.0), ("int64", "float64")))
    >>> slots = table.fresh([b"a", b"b"])
    >>> table.write(slots[1:], (np.array([7]), np.array([2.5])))
    >>> table.take([b"b", b"a"])
    [(7, 2.5), (0, 0.0)]
    >>> table.find([b"b", b"c"]).tolist() == [slots[1], NO_SLOT]
    True
    """

    def __init__(self, prefix: bytes, layout: Layout) -> None:
        self.prefix, self.layout = prefix, layout
        self.bins: dict[int, dict[bytes, None]] = {}
        self._slots: dict[bytes, int] = {}
        self._free = list(range(FIRST))
        self._columns = [np.zeros(FIRST, dtype) for dtype in layout.dtypes]
        # Columns double where they grow, so that half of them may be free.
        self._weight = SLOT_BYTES + 2 * sum(column.itemsize for column in self._columns)

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, keys: Sequence[bytes]) -> Slots:
        """The slot of each key, `NO_SLOT` for those that are not held; shape (n,)."""
        return np.fromiter(map(self._slots.get, keys, repeat(NO_SLOT)), np.int64, len(keys))

    def fresh(self, keys: Sequence[bytes]) -> Slots:
        """Slots for some keys, all different, that are not held, with a new key's state."""
        while len(self._free) < len(keys):
            self._grow()
        taken = self._free[len(self._free) - len(keys) :]
        del self._free[len(self._free) - len(keys) :]
        self._slots.update(zip(keys, taken, strict=True))
        slots = np.array(taken, np.int64)
        for column, value in zip(self._columns, self.layout.init, strict=True):
            column[slots] = value
        return slots

    def read(self, slots: Slots) -> Columns:
        """The states in some slots, as columns of shape (n,)."""
        return tuple(column[slots] for column in self._columns)

    def write(self, slots: Slots, columns: Columns) -> None:
        """Set the states in some slots, all different. Raises ValueError where a column is of
        another length, or has a number that its type cannot hold, and sets none then."""
        kept = [
            fitting(column, dtype)
            for column, dtype in zip(columns, self.layout.dtypes, strict=True)
        ]
        if any(len(column) != len(slots) for column in kept):
            raise ValueError(f"a column of states has not {len(slots)} rows")
        for column, values in zip(self._columns, kept, strict=True):
            column[slots] = values

    def put(self, slots: Slots, states: Sequence[object]) -> None:
        """The same of plain states. Raises MeanderError for one that is not of these columns."""
        try:
            parts = [states] if self._alone else list(zip(*states, strict=True))
            self.write(slots, tuple(np.array(part, object) for part in parts))
        except (TypeError, ValueError, OverflowError) as error:
            raise MeanderError(
                f"a state of operator {self.prefix.rstrip(bytes(1)).decode()!r}",
                f"it does not fit columns of {', '.join(self.layout.dtypes)}: {error}",
                "let the fold's columns be those that wrote it",
            ) from error

    def take(self, keys: Sequence[bytes]) -> list[object]:
        """The states of some keys, all of which are held, as plain values."""
        parts = [column.tolist() for column in self.read(self.find(keys))]
        return parts[0] if self._alone else list(zip(*parts, strict=True))

    def remove(self, keys: Sequence[bytes]) -> int:
        """Drop the states of some keys, all of which are held; how many bytes they took."""
        self._free += map(self._slots.pop, keys)
        return self.weight(len(keys))

    def weight(self, count: int) -> int:
        """Bytes that the states of so many keys take."""
        return count * self._weight

    @property
    def _alone(self) -> bool:
        """Whether a number stands for a tuple of one."""
        return len(self._columns) == 1

    def _grow(self) -> None:
        before = len(self._columns[0])
        self._columns = [np.concatenate([c, np.zeros_like(c)]) for c in self._columns]
        self._free += range(before, 2 * before)


def exact(values: Sequence[object], dtype: str) -> Column:
    """A column of just these values. Raises ValueError where its type cannot hold one.

    >>> exact([1, 2], "int8").tolist()
    [1, 2]
    >>> exact([1.5], "int8")
    Traceback (most recent call last):
    ValueError: the state 1.5 would become 1 in a column of int8
    """
    column = np.empty(len(values), np.dtype(dtype))
    column[:] = values
    if column.dtype.kind == "O":
        return column
    for value, held in zip(values, column.tolist(), strict=True):
        # NaN, which is not equal to itself, is held as NaN.
        if value != held and value == value:
            raise ValueError(f"the state {value!r} would become {held!r} in a column of {dtype}")
    return column


def fitting(column: Column, dtype: str) -> Column:
    """A column of states as one of its declared type. Raises as `exact`."""
    # Columns of other libraries have no such type, and do as well.
    if getattr(column, "dtype", None) == dtype and column.ndim == 1:
        return column
    return exact(column.tolist(), dtype)
