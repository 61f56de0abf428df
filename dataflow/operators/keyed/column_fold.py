"""The fold over columns: a function over arrays in place of a call per record.

A columnar step gets arrays with one row per key: `(states, values) -> (states, results)`,
elementwise. Invariant: a grouped step gives the states of the plain one to the last bit. Cost:
that of its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import SetupError
from meander.schemas.option_values import is_number
from meander.state.encoding import codec
from meander.state.encoding.columns import Column, ColumnLayout, Columns, column_of, exact_column

ColumnStep = Callable[..., tuple[Columns, Column]]
"""`(state columns, values) -> (state columns, results)`, shapes (n,), each row another key. It gets
one more column for each name in `uses`."""
GroupedStep = Callable[[Columns, Int64s, Column], Columns]
"""`(state columns, groups, values) -> state columns`: values in order, each with the row of its
key's state, shape (n,)."""
ColumnMerge = Callable[[Columns, Columns], Columns]
"""`(earlier state columns, later state columns) -> state columns`."""
ColumnResult = Callable[[Columns], Column]
"""`(state columns) -> results`."""


@dataclass(frozen=True, slots=True)
class ColumnFold:
    """A fold over columns that `stream.fold(name, ...)` takes in place of init and step.

    `init` is the state of a new key, one plain value per state column. `dtypes` are the types of
    these columns, and `dtype` is the type of the values. `of` names the field of the value to use,
    None for the value itself. `uses` names further columns that the step gets behind the values,
    such as "event_ms", the own times of the records in milliseconds.

    The states that the step returns must fit columns of these types exactly. A key's state is a
    tuple, or the number itself where there is one column of numbers.

    Windows call `result`, from states to the results of windows; without it a result is the state.
    Sessions need `merge`, from the states of earlier and of later sessions to one state each.
    `grouped` does what `step` does for values of any keys, and gives no results. `name` is that of
    the aggregate where a checkpoint records the definition of a window.

    >>> import numpy as np
    >>> total = ColumnFold((0,), lambda s, v: ((s[0] + v,), s[0] + v), ("int64",), "int64")
    >>> states, results = total.step((np.array([10, 20]),), np.array([1, 2]))
    >>> results.tolist()
    [11, 22]
    """

    init: tuple[object, ...]
    step: ColumnStep
    dtypes: tuple[str, ...]
    dtype: str
    of: str | None = None
    uses: tuple[str, ...] = ()
    merge: ColumnMerge | None = None
    result: ColumnResult | None = None
    grouped: GroupedStep | None = None
    name: str = "fold"

    @property
    def layout(self) -> ColumnLayout:
        """Return the columns of its states."""
        return ColumnLayout(self.init, self.dtypes)

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return its functions that windows call, each with its role."""
        own = ("step", self.step), ("merge", self.merge), ("result", self.result)
        return tuple((role, one) for role, one in own if one is not None)

    def __post_init__(self) -> None:
        if not self.dtypes:
            raise SetupError(
                "a fold over columns",
                "it has no column of states",
                "give one value and one type per column; without a state, map does",
            )
        try:
            for value, dtype in zip(self.init, self.dtypes, strict=True):
                codec.encode(exact_column([value], dtype).tolist())
        except (TypeError, ValueError, OverflowError, codec.UnencodableError) as error:
            raise SetupError(
                "a fold over columns",
                f"its init {self.init!r} does not fit its dtypes {self.dtypes!r}: {error}",
                "give one value per state column, of its type",
            ) from None


class ValueReader:
    """The column of values that a fold takes from records."""

    def __init__(self, fold: ColumnFold) -> None:
        self._of, self._dtype = fold.of, fold.dtype
        self._whole = np.dtype(fold.dtype).kind in "iu"

    def column(self, values: Sequence[object]) -> Column:
        """Return the column of some values. Raises TypeError, or what the field of a value raises,
        where one has another type than the column."""
        if self._of is None and self._dtype == "object":
            return column_of(values, "object")
        return column_of([self._value(value) for value in values], self._dtype)

    def _value(self, value: object) -> object:
        found = value if self._of is None else value[self._of]  # type: ignore[index]
        if self._dtype == "object":
            return found
        # The exact types are most of them, and cost one look-up.
        if type(found) is int or (type(found) is float and not self._whole):
            return found
        if not is_number(found):
            raise TypeError(f"{found!r} is not a number")
        if self._whole and not isinstance(found, int):
            raise TypeError(f"{found!r} is not an int")
        return found
