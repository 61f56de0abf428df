"""Vectorised folds: one function over columns replaces one call per record.

A columnar step gets arrays with one row per key: `(states, values) -> (states, results)`,
elementwise. Its results are equal to the last bit for any batches. The second record of a key in a
batch is in the next pass. Cost: O(passes) calls per batch, where a pass holds each key at most
once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.logic import Applied, Sealing
from meander.dataflow.records.batch import Batch, Int64s, UInt64s
from meander.schemas.errors import SetupError
from meander.schemas.option_values import is_number
from meander.state.encoding import codec
from meander.state.encoding.cells import ABSENT, pick
from meander.state.encoding.columns import Column as Column
from meander.state.encoding.columns import ColumnLayout, column_of, exact_column, fit_column
from meander.state.encoding.columns import Columns as Columns
from meander.state.encoding.expiring import NEVER
from meander.state.store.store import Bins, StateBatch, Store

ColumnStep = Callable[..., tuple[Columns, Column]]
"""`(state columns, values) -> (state columns, results)`, shapes (n,), each row another key. It gets
one more column for each name in `uses`."""


@dataclass(frozen=True, slots=True)
class ColumnFold:
    """A fold over columns that `stream.fold(name, ...)` takes in place of init and step.

    `init` is the state of a new key, one plain value per state column. `dtypes` are the types of
    these columns, and `dtype` is the type of the values. `of` names the field of the value to use,
    None for the value itself. `uses` names further columns that the step gets behind the values,
    such as "event_ms", the own times of the records in milliseconds.

    The states that the step returns must fit columns of these types exactly. A key's state is a
    tuple, or the number itself where there is one column of numbers.

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

    @property
    def layout(self) -> ColumnLayout:
        """Return the columns of its states."""
        return ColumnLayout(self.init, self.dtypes)

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


def count() -> ColumnFold:
    """Count the records of each key."""
    return ColumnFold((0,), lambda s, v: ((s[0] + 1,), s[0] + 1), ("int64",), "object")


def sum(of: str | None = None, dtype: str = "float64") -> ColumnFold:
    """Compute the running sum. With dtype='int64' it sums integers, and an overflow is an error."""
    return ColumnFold((0.0 if dtype == "float64" else 0,), _sum, (dtype,), dtype, of)


def min(of: str | None = None, dtype: str = "float64") -> ColumnFold:
    """Compute the least value so far."""
    return _extreme(np.minimum, of, dtype)


def max(of: str | None = None, dtype: str = "float64") -> ColumnFold:
    """Compute the greatest value so far."""
    return _extreme(np.maximum, of, dtype)


def mean(of: str | None = None) -> ColumnFold:
    """Compute the mean so far."""
    return ColumnFold((0, 0.0), _mean, ("int64", "float64"), "float64", of)


def last(of: str | None = None) -> ColumnFold:
    """Return the newest value, of any plain type."""
    return ColumnFold((None,), lambda s, v: ((v,), v), ("object",), "object", of)


def _sum(states: Columns, values: Column) -> tuple[Columns, Column]:
    before = states[0]
    after = operator.add(before, values)
    if after.dtype.kind == "i":
        wrapped = ((before ^ after) & (values ^ after)) < 0
        if wrapped.any():
            raise OverflowError("the sum leaves the range of int64")
    return (after,), after


def _mean(states: Columns, values: Column) -> tuple[Columns, Column]:
    counts, totals = operator.add(states[0], 1), operator.add(states[1], values)
    return (counts, totals), totals / counts


def _extreme(choose: Callable[[Column, Column], Column], of: str | None, dtype: str) -> ColumnFold:
    def step(states: Columns, values: Column) -> tuple[Columns, Column]:
        seen, best = states
        after = np.where(seen.astype(np.bool_), choose(best, values), values)
        return (np.ones_like(seen), after), after

    return ColumnFold((0, 0.0 if dtype == "float64" else 0), step, ("int8", dtype), dtype, of)


class _NumberStates:
    """A view that reads and sets the states of a batch's keys by row, as columns of numbers."""

    def __init__(self, state_batch: StateBatch) -> None:
        self._cells, self._slots = state_batch.numbers, state_batch.slots

    def read(self, rows: Int64s) -> Columns:
        return self._cells.read(self._slots[rows])

    def write(self, rows: Int64s, columns: Columns) -> None:
        self._cells.write(self._slots[rows], columns)


class _SealedStates:
    """A view that reads and sets the states of a batch's keys by row, as sealed tuples."""

    def __init__(
        self, state_batch: StateBatch, keys: list[bytes], layout: ColumnLayout, sealing: Sealing
    ) -> None:
        self._states, self._slots, self._keys = state_batch.sealed, state_batch.slots, keys
        self._layout, self._sealing = layout, sealing

    def read(self, rows: Int64s) -> Columns:
        states = map(self._unsealed, pick(self._states, self._slots[rows].tolist()))
        return tuple(map(column_of, zip(*states, strict=True), self._layout.dtypes))

    def write(self, rows: Int64s, columns: Columns) -> None:
        fitted = (
            fit_column(c, dtype) for c, dtype in zip(columns, self._layout.dtypes, strict=True)
        )
        states = zip(*(column.tolist() for column in fitted), strict=True)
        sealed = list(map(self._sealing.seal, states, pick(self._keys, rows.tolist())))
        for slot, state in list(zip(self._slots[rows].tolist(), sealed, strict=True)):
            self._states[slot] = state

    def _unsealed(self, sealed: object) -> tuple[object, ...]:
        if sealed is ABSENT:
            return self._layout.init
        return cast(tuple[object, ...], self._sealing.unseal(sealed))


class _ExpiringStates:
    """A view that removes expired states before a read, and renews due times behind a write."""

    def __init__(
        self,
        states: _NumberStates | _SealedStates,
        state_batch: StateBatch,
        times: Int64s,
        expiry: Expiry,
    ) -> None:
        self._states, self._batch, self._times, self._expiry = states, state_batch, times, expiry

    def read(self, rows: Int64s) -> Columns:
        slots = self._batch.slots[rows]
        expired = self._batch.due[slots] <= self._times[rows]
        if expired.any():
            self._batch.forget(slots[expired])
        return self._states.read(rows)

    def write(self, rows: Int64s, columns: Columns) -> None:
        self._states.write(rows, columns)
        if self._expiry.refresh == "create":
            rows = rows[self._batch.due[self._batch.slots[rows]] == NEVER]
        self._batch.due[self._batch.slots[rows]] = self._expiry.dues(self._times[rows])


_StateAccess = _NumberStates | _SealedStates | _ExpiringStates


class Columnar:
    """The logic that applies a columnar fold."""

    call_kinds: Collection[CallKind] = ()

    def __init__(
        self, fold: ColumnFold, sealing: Sealing, guard: Guard, expiry: Expiry | None = None
    ) -> None:
        self._fold, self._guard, self._expiry = fold, guard, expiry
        self._whole = np.dtype(fold.dtype).kind in "iu"
        self.sealing = sealing

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Return one result per record, in order."""
        valid, values = self._values(rows.batch)
        batch = rows.batch.take(valid) if len(valid) < len(bins) else rows.batch
        results: list[object] = [None] * len(batch)
        answered = np.ones(len(batch), np.bool_)
        assert batch.hashes is not None
        assert batch.keys is not None
        with store.open_batch(batch.keys, bins[valid]) as state_batch:
            states = self._states(store, state_batch, batch)
            for chosen in _passes(batch.hashes):
                answered[chosen] = self._apply_pass(states, batch, values, chosen, results)
        if answered.all():
            return Applied(batch.with_values(results), len(rows))
        kept = np.flatnonzero(answered)
        return Applied(batch.take(kept).with_values(pick(results, kept.tolist())), len(rows))

    def _states(self, store: Store, state_batch: StateBatch, batch: Batch) -> _StateAccess:
        assert batch.keys is not None
        states: _NumberStates | _SealedStates = (
            _NumberStates(state_batch)
            if store.layout is not None
            else _SealedStates(state_batch, batch.keys, self._fold.layout, self.sealing)
        )
        if self._expiry is None:
            return states
        return _ExpiringStates(states, state_batch, batch.times, self._expiry)

    def _apply_pass(
        self,
        states: _StateAccess,
        batch: Batch,
        values: Column,
        rows: Int64s,
        results: list[object],
    ) -> npt.NDArray[np.bool_]:
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        try:
            answers = self._step(states, values[rows], rows, batch)
        except failure() as error:
            if len(rows) == 1:
                self._guard.failed(batch, int(rows[0]), error)
                return np.zeros(1, np.bool_)
            # A call per row finds the failing rows. States are as before the failed call.
            return np.concatenate(
                [
                    self._apply_pass(states, batch, values, rows[i : i + 1], results)
                    for i in range(len(rows))
                ]
            )
        for row, answer in zip(rows.tolist(), answers, strict=True):
            results[row] = answer
        return np.ones(len(rows), np.bool_)

    def _step(
        self, states: _StateAccess, values: Column, rows: Int64s, batch: Batch
    ) -> list[object]:
        used = (np.asarray(batch.extra_column(name))[rows] for name in self._fold.uses)
        after, answers = self._fold.step(states.read(rows), values, *used)
        plain: list[object] = answers.tolist()
        if len(plain) != len(rows):
            raise ValueError(f"the step returned {len(plain)} results for {len(rows)} keys")
        states.write(rows, after)
        return plain

    def _values(self, batch: Batch) -> tuple[Int64s, Column]:
        """Return the rows whose values have the right type, and the column of these values."""
        try:
            return np.arange(len(batch)), self._column(batch.values)
        except failure():  # a check per row finds the failing rows
            valid = [row for row in range(len(batch)) if self._fits(batch, row)]
        return np.array(valid, np.int64), self._column(pick(batch.values, valid))

    def _column(self, values: Sequence[object]) -> Column:
        if self._fold.of is None and self._fold.dtype == "object":
            return column_of(values, "object")
        return column_of([self._value(value) for value in values], self._fold.dtype)

    def _value(self, value: object) -> object:
        found = value if self._fold.of is None else value[self._fold.of]  # type: ignore[index]
        if self._fold.dtype != "object" and not is_number(found):
            raise TypeError(f"{found!r} is not a number")
        if self._whole and not isinstance(found, int):
            raise TypeError(f"{found!r} is not an int")
        return found

    def _fits(self, batch: Batch, row: int) -> bool:
        try:
            self._column(batch.values[row : row + 1])
        except failure() as error:
            self._guard.failed(batch, row, error)
            return False
        return True


def _passes(hashes: UInt64s) -> list[Int64s]:
    """Return the rows of each pass: the first record of every key, then every second, and so on.
    Two keys with one hash count as one, which costs a further pass.

    >>> [rows.tolist() for rows in _passes(np.array([7, 8, 7, 7], np.uint64))]
    [[0, 1], [2], [3]]
    """
    n = len(hashes)
    by_key = np.argsort(hashes, kind="stable")
    ordered = hashes[by_key]
    first = np.ones(n, np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    if first.all():
        return [np.arange(n)] if n else []
    nth = np.empty(n, np.int64)
    nth[by_key] = np.arange(n) - np.maximum.accumulate(np.where(first, np.arange(n), 0))
    return np.split(np.argsort(nth, kind="stable"), np.cumsum(np.bincount(nth))[:-1])
