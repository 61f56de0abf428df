"""The functions of a user over columns, and the checks of what they return.

Guarantees that a function that raises, or returns anything but the columns that its operator needs,
ends the flow with an error that names the operator, and the row on which it raises. Invariant: a
function cannot change the columns of a batch, which other operators share. Cost: some numpy calls
per batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from meander.dataflow.collections.reduce import Groups
from meander.dataflow.operators.collection.failing_rows import Argument, FailingRows
from meander.dataflow.operators.collection.updates import UpdateCoding, owned
from meander.dataflow.operators.error_policy import FunctionFailed, describe, failure, safe_repr
from meander.schemas.errors import MeanderError
from meander.state.collections.columns import Bools, Int64s
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import Column


class ColumnFunction:
    """A function over columns, of one operator. Its callers give and get codes where the function
    gets and gives Python values."""

    def __init__(
        self, operator: str, function: Callable[..., object], given: tuple[bool, ...],
        result: UpdateCoding,
    ) -> None:  # fmt: skip
        """`given` tells which columns that the function takes are Python values, and `result` which
        of its keys and values are."""
        self._operator, self._function, self._given = operator, function, given
        self.result = result

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
        found = self._call(*self._shown((keys, values)))
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (bool, keys.shape):
            raise self._wrong(found, len(keys), f"a column of {len(keys)} bools")
        return found

    def groups(self, keys: Int64s, given: Groups) -> Groups:
        """Return the groups that the function returns, one per key."""
        shown, values = self._shown((keys, given.values))
        found = self._call(shown, replace(given, values=cast(Int64s, values)))
        if not isinstance(found, Groups):
            raise self._wrong(found, len(keys), "Groups(starts, values, counts)")
        starts = self._fitting([found.starts], [False], len(keys) + 1)
        rest = self._fitting([found.values, found.counts], [self.result.value, False], None)
        if starts is None or rest is None:
            parts = found.starts, found.values, found.counts
            kinds = "all int64" if not self.result.value else "all but the values int64"
            wanted = f"{len(keys) + 1} starts, and a count for each value, {kinds}"
            raise self._wrong(parts, len(keys), wanted)
        groups = Groups(*map(owned, [*starts, *rest]))
        self._check_starts(groups.starts, len(groups.values))
        if self.result.value:
            groups = groups.ascending_by(groups.values)
        self._check_values(shown, groups.starts, groups.values)
        return groups

    def _columns(
        self, given: Sequence[Int64s], names: Sequence[str], rows: int | None
    ) -> list[Int64s]:
        """Return the columns that the function returns: of `rows` rows each, or of any number where
        that is None."""
        shown, codings = self._shown(given), (self.result.key, self.result.value, False)
        found, columns = self._call(*shown), None
        if isinstance(found, tuple | list) and len(found) == len(names):
            columns = self._fitting(found, codings[: len(names)], rows)
        if columns is None:
            lengths = "equal lengths" if rows is None else f"{rows} rows each"
            raise self._wrong(found, len(given[0]), self._wanted(names, lengths))
        own = {id(view): column for view, column in zip(shown, given, strict=True)}
        return [own[id(one)] if id(one) in own else owned(one) for one in columns]

    def _wanted(self, names: Sequence[str], lengths: str) -> str:
        kinds = "int64"
        if self.result.key or self.result.value:
            codings = zip(names, (self.result.key, self.result.value, False), strict=False)
            kinds = ", ".join("objects" if is_coded else "int64" for _, is_coded in codings)
        return f"columns of {', '.join(names)}: {kinds}, {lengths}"

    def _shown(self, given: Sequence[Int64s]) -> list[Column]:
        """Return columns as the function sees them."""
        column = self.result.dictionary.column
        return [
            column(codes) if is_coded else _read_only(codes)
            for codes, is_coded in zip(given, self._given, strict=True)
        ]

    def _fitting(
        self, found: Sequence[object], codings: Sequence[bool], rows: int | None
    ) -> list[Int64s] | None:
        """Return columns of int64 or codes, and of one length; None for anything else."""
        columns = list[Int64s]()
        for one, is_coded in zip(found, codings, strict=True):
            if is_coded:
                one = self._codes(one)
            if not isinstance(one, np.ndarray) or (one.dtype, one.ndim) != (np.int64, 1):
                return None
            columns.append(one)
        lengths = {len(one) for one in columns} | {rows} - {None}
        return columns if len(lengths) == 1 else None

    def _codes(self, found: object) -> object:
        """Return the codes of Python values; anything else as it is."""
        if isinstance(found, np.ndarray):
            found = found.tolist()
        if isinstance(found, list):
            try:
                found = ObjectColumn.of(found)
            except UnencodableError as error:
                raise self._error(f"its function returned values of which {error}",
                                  "return plain Python values") from error  # fmt: skip
        return self.result.dictionary.codes(found) if isinstance(found, ObjectColumn) else None

    def _check_starts(self, starts: Int64s, values: int) -> None:
        if (starts[0], starts[-1]) != (0, values) or (starts[1:] < starts[:-1]).any():
            raise self._error(
                f"the starts of its groups do not ascend from 0 to {values}",
                "give the place of the first value of each group, and the number of all values",
            )

    def _check_values(self, keys: Column, starts: Int64s, values: Int64s) -> None:
        ascends, inner = values[1:] > values[:-1], starts[1:-1]
        ascends[inner[(inner > 0) & (inner < len(values))] - 1] = True
        if not ascends.all():
            group = int(np.searchsorted(starts, np.argmin(ascends), side="right")) - 1
            (key,) = keys[group : group + 1].tolist()
            raise self._error(
                f"its function returned values of key {safe_repr(key)} that do not ascend",
                "sort the values of each group, and give each value once",
            )

    def _call(self, *given: Argument) -> object:
        try:
            return self._function(*given)
        except failure() as error:
            rows = FailingRows(given, error).narrowed(self._function)
            raise FunctionFailed(
                f"operator {self._operator!r}",
                f"its function failed on {rows}: {describe(rows.error)}",
                "mend the function",
                "".join(traceback.format_exception(rows.error)),
            ) from error

    def _wrong(self, found: object, rows: int, wanted: str) -> MeanderError:
        cause = f"its function returned {_described(found)} for {rows} rows"
        return self._error(cause, f"return {wanted}")

    def _error(self, cause: str, remedy: str) -> MeanderError:
        return MeanderError(f"operator {self._operator!r}", cause, remedy)


def _read_only(column: Int64s) -> Int64s:
    view = column.view()
    view.flags.writeable = False
    return view


def _described(found: object) -> str:
    """Describe a result of a function.

    >>> _described((np.array([0.5]), 7))
    '(float64 of shape (1,), int)'
    """
    if isinstance(found, ObjectColumn):
        return f"objects of shape {found.shape}"
    if isinstance(found, np.ndarray):
        return f"{found.dtype} of shape {found.shape}"
    if isinstance(found, tuple | list):
        return f"({', '.join(map(_described, found))})"
    return type(found).__name__
