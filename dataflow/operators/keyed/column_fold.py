"""The fold over columns: a function over arrays in place of a call per record.

A columnar step gets arrays with one row per key: `(states, values) -> (states, results)`,
elementwise. Invariant: a grouped step gives the states of the plain one to the last bit. Cost:
that of its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np

from meander.dataflow.records.batch import Int64s
from meander.schemas.errors import SetupError
from meander.schemas.option_values import is_number
from meander.state.encoding import codec
from meander.state.encoding.columns import Column, ColumnLayout, Columns, column_of, exact_column

_INTS: Final = frozenset({int})
_NUMBERS: Final = frozenset({int, float})

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
Of = str | None | tuple[str | None, ...]
"""The field of the value that a fold takes, None for the value itself, or several of them."""


@dataclass(frozen=True, slots=True)
class ColumnFold:
    """A fold over columns that `stream.fold(name, ...)` takes in place of init and step.

    `init` is the state of a new key, one plain value per state column. `dtypes` are the types of
    these columns, and `dtype` is the type of the values. `of` names the field of the value to use,
    None for the value itself. With a tuple of each, the values are a structured column: `of[i]` is
    its field `f"f{i}"`. `uses` names further columns that the step gets behind the values, such as
    "event_ms", the own times of the records in milliseconds.

    The states that the step returns must fit columns of these types exactly. A key's state is a
    tuple, or the number itself where there is one column of numbers.

    Windows call `result`, from states to the results of windows; without it a result is the state.
    Sessions need `merge`, from the states of earlier and of later sessions to one state each. It is
    `commutative` if it gives the state of all records of two states, in whatever order they came;
    hopping windows then share the states of the times between their borders.
    `grouped` does what `step` does for values of any keys, and gives no results. `name` is that of
    the aggregate where a checkpoint records the definition of a window, several fields included.

    >>> import numpy as np
    >>> total = ColumnFold((0,), lambda s, v: ((s[0] + v,), s[0] + v), ("int64",), "int64")
    >>> states, results = total.step((np.array([10, 20]),), np.array([1, 2]))
    >>> results.tolist()
    [11, 22]
    """

    init: tuple[object, ...]
    step: ColumnStep
    dtypes: tuple[str, ...]
    dtype: str | tuple[str, ...]
    of: Of = None
    uses: tuple[str, ...] = ()
    merge: ColumnMerge | None = None
    result: ColumnResult | None = None
    grouped: GroupedStep | None = None
    name: str = "fold"
    commutative: bool = False

    @property
    def fields(self) -> tuple[tuple[str | None, str], ...]:
        """Return each field of the value that it takes, with its type."""
        of = self.of if isinstance(self.of, tuple) else (self.of,)
        dtypes = self.dtype if isinstance(self.dtype, tuple) else (self.dtype,)
        return tuple(zip(of, dtypes, strict=True))

    @property
    def definition(self) -> str:
        """Return its name with the field of the value that it takes.

        >>> from meander.dataflow.operators.keyed.columns import count, mean
        >>> count().definition, mean("price").definition
        ('count()', "mean('price')")
        """
        if isinstance(self.of, tuple):
            return self.name
        return f"{self.name}({'' if self.of is None else repr(self.of)})"

    @property
    def layout(self) -> ColumnLayout:
        """Return the columns of its states."""
        return ColumnLayout(self.init, self.dtypes)

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return its functions that windows call, each with its role."""
        own = ("step", self.step), ("merge", self.merge), ("result", self.result)
        return tuple((role, one) for role, one in own if one is not None)

    def results(self, states: Columns) -> list[object]:
        """Return the result of each state."""
        if self.result is not None:
            found: list[object] = self.result(states).tolist()
            if len(found) != len(states[0]):
                raise ValueError(f"the fold has {len(found)} results for {len(states[0])} states")
            return found
        parts = [column.tolist() for column in states]
        is_number = self.layout.numbers and len(parts) == 1
        return parts[0] if is_number else list(zip(*parts, strict=True))

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
    """The column of values that a fold takes from records.

    >>> fold = ColumnFold((0,), max, ("int64",), ("int64", "object"), ("n", None))
    >>> ValueReader(fold).column([{"n": 7}, {"n": 8}]).tolist()
    [(7, {'n': 7}), (8, {'n': 8})]
    """

    def __init__(self, fold: ColumnFold) -> None:
        self._fields = fold.fields
        self._dtype: np.dtype[np.void] | None = None
        if isinstance(fold.of, tuple):
            self._dtype = np.dtype([(f"f{i}", dtype) for i, (_, dtype) in enumerate(fold.fields)])

    def column(self, values: Sequence[object]) -> Column:
        """Return the column of some values. Raises TypeError, or what the field of a value raises,
        where one has another type than the column."""
        if self._dtype is None:
            return _field_column(values, *self._fields[0])
        column = np.empty(len(values), self._dtype)
        for number, (of, dtype) in enumerate(self._fields):
            column[f"f{number}"] = _field_column(values, of, dtype)
        return column


def _field_column(values: Sequence[object], of: str | None, dtype: str) -> Column:
    found = values if of is None else _field(values, of)
    if dtype == "object":
        return column_of(found, "object")
    is_whole = np.dtype(dtype).kind in "iu"
    # The exact types are most of them, and cost one look-up for all.
    if not {*map(type, found)} <= (_INTS if is_whole else _NUMBERS):
        for value in found:
            if not is_number(value):
                raise TypeError(f"{value!r} is not a number")
            if is_whole and not isinstance(value, int):
                raise TypeError(f"{value!r} is not an int")
    return column_of(found, dtype)


def _field(values: Sequence[object], of: str) -> list[object]:
    """Return a field of each value: an item of a dict, an attribute of an object."""
    kinds = {type(value): value for value in values}
    getters = {kind: _getter(kind, value, of) for kind, value in kinds.items()}
    if len(getters) == 1:
        (getter,) = getters.values()
        return list(map(getter, values))
    return [getters[type(value)](value) for value in values]


def _getter(kind: type, value: object, of: str) -> Callable[[Any], object]:
    has_items = hasattr(kind, "__getitem__") and not issubclass(kind, tuple)
    return itemgetter(of) if has_items or not hasattr(value, of) else attrgetter(of)
