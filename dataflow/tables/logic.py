"""The join of a stream with a table: each record meets the row as of its own logical time.

Guarantees that a record sees all changes of the table at its time or earlier, and no later one. The
keyed operator applies the changes of a time before the records of this time (`inputs_first`), so
this logic only has to follow the order. Invariant: the state of a key is its row, and a key without
a row has none. Cost: that of a fold. A record reads its row, which does not count as changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.logic import Applied, Sealing
from meander.dataflow.records.batch import Batch
from meander.dataflow.tables.copies import entry_key
from meander.state.encoding import codec
from meander.state.encoding.cells import ABSENT
from meander.state.encoding.expiring import NEVER
from meander.state.store.store import Bins, Mask, StateBatch, Store

Joined = Callable[[Any, Any], object]
"""From a record and its row, or None, to a result."""
RowKey = bytes | BaseException
"""The key of a row in the store, or the error of the function that returns it."""
CHANGES = 0
"""The number of the input that has the changes of the table. Each ends with the new row, or None
that deletes it."""


class TableJoin:
    """A join by the key of the stream."""

    call_kinds: Collection[CallKind] = ()

    def __init__(
        self,
        step: Joined,
        keeps_unmatched: bool,
        sealing: Sealing,
        guard: Guard,
        expiry: Expiry | None,
    ) -> None:
        self._step, self._keeps_unmatched = step, keeps_unmatched
        self.sealing, self._guard, self._expiry = sealing, guard, expiry

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Apply the changes of the table, and return the results of the records among them."""
        batch, is_change = rows.batch, rows.inputs == CHANGES
        values = [*self._guard.own_values(batch)]
        keys = self._row_keys(batch, bins, is_change, values)
        known = [key if isinstance(key, bytes) else b"" for key in keys]
        with store.open_batch(known, bins, is_change) as state_batch:
            results = self._results(state_batch, batch, keys, is_change, values)
        return Applied(results, self._guard.end_pass(len(rows)))

    def _row_keys(
        self, batch: Batch, bins: Bins, is_change: Mask, values: Sequence[Any]
    ) -> Sequence[RowKey]:
        """Return the key of the row that each record changes or meets."""
        assert batch.keys is not None
        return batch.keys

    def _results(  # noqa: C901 (one loop, as calls would cost)
        self,
        state_batch: StateBatch,
        batch: Batch,
        keys: Sequence[RowKey],
        is_change: Mask,
        values: Sequence[Any],
    ) -> Batch:
        step, keeps_unmatched, keepalive = self._step, self._keeps_unmatched, self._guard.keepalive
        states, unseal, as_is = state_batch.sealed, self.sealing.unseal, self.sealing.as_is
        slots, times = state_batch.slots.tolist(), batch.times.tolist()
        due = None if self._expiry is None else state_batch.due
        matched, results = list[int](), list[object]()
        for row, (key, slot, changes, value) in enumerate(
            zip(keys, slots, is_change.tolist(), values, strict=True)
        ):
            if keepalive.due:
                keepalive.send()
            try:
                if type(key) is not bytes:
                    raise _error(key)
                if changes:
                    self._set(state_batch, slot, times[row], key, value[-1])
                    continue
                held = states[slot]
                if held is ABSENT or (due is not None and due[slot] <= times[row]):
                    if not keeps_unmatched:
                        continue
                    held = None
                elif type(held) in codec.SEALS or not as_is:
                    held = unseal(held)
                result = step(value, held)
            except failure() as error:
                if self._guard.stops(batch, row):
                    break
                self._guard.failed(batch, row, error)
            else:
                results.append(result)
                matched.append(row)
        if len(results) == len(batch):
            return batch.with_values(results)
        return batch.take(np.array(matched, np.int64)).with_values(results)

    def _set(self, state_batch: StateBatch, slot: int, time: int, key: bytes, row: object) -> None:
        """Set the row in a slot, or delete it. Raise MeanderError for a row that cannot move."""
        if row is None:
            state_batch.sealed[slot], state_batch.forgets = ABSENT, True
        else:
            state_batch.sealed[slot] = self.sealing.seal(row, key)
        if self._expiry is not None:
            state_batch.due[slot] = NEVER if row is None else self._expiry.due(time)


def _error(key: RowKey) -> BaseException:
    assert isinstance(key, BaseException)
    return key


class CopiesJoin(TableJoin):
    """A join by another key than that of the stream. Each bin has a copy of the table, so an entry
    of the store has the bin and the key of a row as its key."""

    def __init__(
        self,
        step: Joined,
        on: Callable[[Any], object],
        keeps_unmatched: bool,
        sealing: Sealing,
        guard: Guard,
        expiry: Expiry | None,
    ) -> None:
        super().__init__(step, keeps_unmatched, sealing, guard, expiry)
        self._on = on

    def _row_keys(
        self, batch: Batch, bins: Bins, is_change: Mask, values: Sequence[Any]
    ) -> Sequence[RowKey]:
        keys = list[RowKey]()
        for bin, changes, value in zip(bins.tolist(), is_change.tolist(), values, strict=True):
            try:
                keys.append(entry_key(bin, value[-2] if changes else self._on(value)))
            except failure() as error:
                keys.append(error)
        return keys


def pair(value: Any, row: Any) -> tuple[Any, Any]:  # noqa: ANN401 (any record and row)
    """Return a record with its row: the result where a user gives no function."""
    return value, row
