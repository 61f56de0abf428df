"""The logic of a columnar fold: passes over a batch, in which each key stands at most once.

Guarantees one result per record, equal to the last bit for any batches. The second record of a key
in a batch is in the next pass. A record on which the step fails changes no state. Cost: O(passes)
calls per batch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import numpy as np
import numpy.typing as npt

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.column_fold import ColumnFold, ValueReader
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.logic import Applied, Sealing
from meander.dataflow.records.batch import Batch, Int64s, UInt64s
from meander.state.encoding.cells import ABSENT, pick
from meander.state.encoding.columns import Column, ColumnLayout, Columns, column_of, fit_column
from meander.state.encoding.expiring import NEVER
from meander.state.store.store import Bins, StateBatch, Store


class NumberStates:
    """A view that reads and sets the states of a batch's keys by row, as columns of numbers."""

    def __init__(self, state_batch: StateBatch) -> None:
        self._cells, self._slots = state_batch.numbers, state_batch.slots

    def read(self, rows: Int64s) -> Columns:
        """Return the states of some rows, as columns."""
        return self._cells.read(self._slots[rows])

    def write(self, rows: Int64s, columns: Columns) -> None:
        """Set the states of rows with different keys."""
        self._cells.write(self._slots[rows], columns)


class SealedStates:
    """A view that reads and sets the states of a batch's keys by row, as sealed tuples."""

    def __init__(
        self, state_batch: StateBatch, keys: list[bytes], layout: ColumnLayout, sealing: Sealing
    ) -> None:
        self._states, self._slots, self._keys = state_batch.sealed, state_batch.slots, keys
        self._layout, self._sealing = layout, sealing

    def read(self, rows: Int64s) -> Columns:
        """Return the states of some rows, as columns."""
        states = map(self._unsealed, pick(self._states, self._slots[rows].tolist()))
        return tuple(map(column_of, zip(*states, strict=True), self._layout.dtypes))

    def write(self, rows: Int64s, columns: Columns) -> None:
        """Set the states of rows with different keys."""
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


def column_states(
    store: Store,
    state_batch: StateBatch,
    keys: list[bytes],
    layout: ColumnLayout,
    sealing: Sealing,
) -> NumberStates | SealedStates:
    """Return the view of a batch of keys, by the form in which the store keeps states."""
    if store.layout is not None:
        return NumberStates(state_batch)
    return SealedStates(state_batch, keys, layout, sealing)


class _ExpiringStates:
    """A view that removes expired states before a read, and renews due times behind a write."""

    def __init__(
        self,
        states: NumberStates | SealedStates,
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


_StateAccess = NumberStates | SealedStates | _ExpiringStates


class Columnar:
    """The logic that applies a columnar fold."""

    call_kinds: Collection[CallKind] = ()

    def __init__(
        self, fold: ColumnFold, sealing: Sealing, guard: Guard, expiry: Expiry | None = None
    ) -> None:
        self._fold, self._guard, self._expiry = fold, guard, expiry
        self._reader = ValueReader(fold)
        self.sealing = sealing

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Return one result per record, in order."""
        valid, values = fitting_values(self._reader, rows.batch, self._guard)
        batch = rows.batch.take(valid) if len(valid) < len(bins) else rows.batch
        results: list[object] = [None] * len(batch)
        answered = np.ones(len(batch), np.bool_)
        assert batch.hashes is not None
        assert batch.keys is not None
        with store.open_batch(batch.keys, bins[valid]) as state_batch:
            states = self._states(store, state_batch, batch)
            for chosen in passes(batch.hashes):
                answered[chosen] = self._apply_pass(states, batch, values, chosen, results)
        if answered.all():
            return Applied(batch.with_values(results), len(rows))
        kept = np.flatnonzero(answered)
        return Applied(batch.take(kept).with_values(pick(results, kept.tolist())), len(rows))

    def _states(self, store: Store, state_batch: StateBatch, batch: Batch) -> _StateAccess:
        assert batch.keys is not None
        states = column_states(store, state_batch, batch.keys, self._fold.layout, self.sealing)
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


def fitting_values(reader: ValueReader, batch: Batch, guard: Guard) -> tuple[Int64s, Column]:
    """Return the rows whose values have the right type, and the column of these values. The error
    policy applies to the others."""
    try:
        return np.arange(len(batch)), reader.column(batch.values)
    except failure():  # a check per row finds the failing rows
        valid = [row for row in range(len(batch)) if _fits(reader, batch, row, guard)]
    return np.array(valid, np.int64), reader.column(pick(batch.values, valid))


def _fits(reader: ValueReader, batch: Batch, row: int, guard: Guard) -> bool:
    try:
        reader.column(batch.values[row : row + 1])
    except failure() as error:
        guard.failed(batch, row, error)
        return False
    return True


def passes(hashes: UInt64s) -> list[Int64s]:
    """Return the rows of each pass: the first record of every key, then every second, and so on.
    Two keys with one hash count as one, which costs a further pass.

    >>> [rows.tolist() for rows in passes(np.array([7, 8, 7, 7], np.uint64))]
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
