"""The functions of a user over columns, and the checks of what they return.

Guarantees that a function that raises, or returns anything but the columns that its operator needs,
ends the flow with an error that names the operator. Invariant: a function cannot change the columns
of a batch, which other operators share. Cost: some numpy calls per batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

import numpy as np

from meander.dataflow.collections.reduce import Groups
from meander.dataflow.operators.error_policy import FunctionFailed, describe, failure
from meander.schemas.errors import MeanderError
from meander.state.collections.columns import Bools, Int64s


class ColumnFunction:
    """A function over columns, of one operator."""

    def __init__(self, operator: str, function: Callable[..., object]) -> None:
        self._operator, self._function = operator, function

    def rows(self, *given: Int64s) -> tuple[Int64s, Int64s]:
        """Return the keys and values of a function that gives a row for each row."""
        keys, values = self._columns(given, ("keys", "values"), len(given[0]))
        return keys, values

    def flat_rows(self, *given: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return keys, values, and the row of which each is a result."""
        keys, values, rows = self._columns(given, ("keys", "values", "rows"), None)
        count = len(given[0])
        # Numpy counts a negative place from the end.
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise self._error(
                f"its function names rows {rows.min()} to {rows.max()} of {count}",
                f"name each row by its place, 0 to {count - 1}",
            )
        return keys, values, rows

    def mask(self, keys: Int64s, values: Int64s) -> Bools:
        """Return which rows the function is true for."""
        found = self._call(len(keys), _read_only(keys), _read_only(values))
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (bool, keys.shape):
            raise self._wrong(found, len(keys), f"a column of {len(keys)} bools")
        return found

    def groups(self, keys: Int64s, given: Groups) -> Groups:
        """Return the groups that the function returns, one per key."""
        found = self._call(len(keys), keys, given)
        if not isinstance(found, Groups):
            raise self._wrong(found, len(keys), "Groups(starts, values, counts)")
        starts = _columns([found.starts], len(keys) + 1)
        rest = _columns([found.values, found.counts], None)
        if starts is None or rest is None:
            parts = found.starts, found.values, found.counts
            wanted = f"{len(keys) + 1} starts, and a count for each value, all int64"
            raise self._wrong(parts, len(keys), wanted)
        groups = Groups(*map(_owned, [*starts, *rest]))
        self._check_groups(groups.starts, groups.values)
        return groups

    def _columns(
        self, given: Sequence[Int64s], names: Sequence[str], rows: int | None
    ) -> list[Int64s]:
        """Return the columns that the function returns: of `rows` rows each, or of any number where
        that is None."""
        shown = [_read_only(column) for column in given]
        found, columns = self._call(len(given[0]), *shown), None
        if isinstance(found, tuple | list) and len(found) == len(names):
            columns = _columns(found, rows)
        if columns is None:
            lengths = "equal lengths" if rows is None else f"{rows} rows each"
            wanted = f"columns of {', '.join(names)}: int64, {lengths}"
            raise self._wrong(found, len(given[0]), wanted)
        own = {id(view): column for view, column in zip(shown, given, strict=True)}
        return [own[id(one)] if id(one) in own else _owned(one) for one in columns]

    def _check_groups(self, starts: Int64s, values: Int64s) -> None:
        if (starts[0], starts[-1]) != (0, len(values)) or (starts[1:] < starts[:-1]).any():
            raise self._error(
                f"the starts of its groups do not ascend from 0 to {len(values)}",
                "give the place of the first value of each group, and the number of all values",
            )
        ascends, inner = values[1:] > values[:-1], starts[1:-1]
        ascends[inner[(inner > 0) & (inner < len(values))] - 1] = True
        if not ascends.all():
            raise self._error(
                "the values of one of its groups do not ascend",
                "sort the values of each group, and give each value once",
            )

    def _call(self, rows: int, *given: object) -> object:
        try:
            return self._function(*given)
        except failure() as error:
            raise FunctionFailed(
                f"operator {self._operator!r}",
                f"its function failed on columns of {rows} rows: {describe(error)}",
                "mend the function",
                "".join(traceback.format_exception(error)),
            ) from error

    def _wrong(self, found: object, rows: int, wanted: str) -> MeanderError:
        cause = f"its function returned {_described(found)} for {rows} rows"
        return self._error(cause, f"return {wanted}")

    def _error(self, cause: str, remedy: str) -> MeanderError:
        return MeanderError(f"operator {self._operator!r}", cause, remedy)


def _columns(found: Sequence[object], rows: int | None) -> list[Int64s] | None:
    """Return columns of int64 and of one length; None for anything else."""
    columns = [one for one in found if isinstance(one, np.ndarray) and one.ndim == 1]
    lengths = {len(one) for one in columns} | {rows} - {None}
    fit = all(one.dtype == np.int64 for one in columns) and len(lengths) == 1
    return columns if fit and len(columns) == len(found) else None


def _read_only(column: Int64s) -> Int64s:
    view = column.view()
    view.flags.writeable = False
    return view


def _owned(column: Int64s) -> Int64s:
    """Return a column as compiled loops know columns: contiguous and writable."""
    return np.require(column, requirements=["C", "W"])


def _described(found: object) -> str:
    """Describe a result of a function.

    >>> _described((np.array([0.5]), 7))
    '(float64 of shape (1,), int)'
    """
    if isinstance(found, np.ndarray):
        return f"{found.dtype} of shape {found.shape}"
    if isinstance(found, tuple | list):
        return f"({', '.join(map(_described, found))})"
    return type(found).__name__
