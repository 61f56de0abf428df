"""The states of a columnar fold by pairs of a start and a key of records.

Guarantees that a record changes the states of all its pairs, or none where it fails: the error
policy applies to it. Invariant: a state has the key `(start, key)`, in the bin of the key of the
record. Cost: two look-ups of the states in a call, and a few calls of numpy.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.column_fold import ColumnFold, ValueReader
from meander.dataflow.operators.keyed.columnar import (
    NumberStates,
    SealedStates,
    column_states,
    fitting_values,
)
from meander.dataflow.operators.keyed.logic import Sealing
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.windows.columnar import ColumnarLogic, bin_tag, name_prefix
from meander.dataflow.windows.folding import Folding
from meander.dataflow.windows.window import Hopping
from meander.schemas.control import MAX_MILLIS
from meander.state.encoding.columns import Column, Columns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Mask, StateBatch, Store
from meander.state.times.time import before_millis, checked_millis


class PairStates:
    """The states of an operator."""

    def __init__(self, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self.folding, self._sealing, self._guard = Folding(fold), sealing, guard
        self._fold, self._reader = fold, ValueReader(fold)

    def pop(self, store: Store, names: list[bytes], bins: Bins, ends: Mask) -> Columns:
        """Return some states by their keys, and remove those that end."""
        with store.open_batch(names, bins) as state_batch:
            states = self._states(store, state_batch, names).read(np.arange(len(names)))
            state_batch.forget(state_batch.slots[ends])
        return states

    def add(
        self, store: Store, bins: Bins, batch: Batch, rows: Int64s, starts: Int64s, closes: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Add records to states; pair by pair, in order, the row of a record, a start, and when the
        state is last read. Return the rows and the starts of the pairs with new states."""
        values, rows, starts = self._valued(batch, rows, starts, closes)
        if not len(rows):
            return rows, starts
        assert batch.keys is not None
        prefixes = {start: name_prefix(start) for start in np.unique(starts).tolist()}
        keys = batch.keys
        names = [prefixes[s] + keys[r] for s, r in zip(starts.tolist(), rows.tolist(), strict=True)]
        with store.open_batch(names, bins[rows]) as state_batch:
            slots = state_batch.slots
            unique, first, groups = np.unique(slots, return_index=True, return_inverse=True)
            states = self._states(store, state_batch, names)
            new = first[~state_batch.has(unique)]
            touched, after = self._folded(states.read(first), groups, values, batch, rows)
            if touched is not None:
                first, new = first[touched], np.intersect1d(new, first[touched])
                after = tuple(column[touched] for column in after)
            states.write(first, after)
        return rows[new], starts[new]

    def _valued(
        self, batch: Batch, rows: Int64s, starts: Int64s, closes: Int64s
    ) -> tuple[Column, Int64s, Int64s]:
        """Return the values of the pairs whose records have values and times that fit, and these
        pairs. The error policy applies to the other records."""
        chosen, wide = np.unique(rows), closes > MAX_MILLIS
        for row in np.unique(rows[wide]).tolist():
            chosen = chosen[chosen != row]
            try:
                checked_millis(int(closes[wide & (rows == row)][0]))
            except ValueError as error:
                self._guard.failed(batch, row, error)
        some = batch if len(chosen) == len(batch) else batch.take(chosen)
        valid, column = fitting_values(self._reader, some, self._guard)
        chosen = chosen[valid]
        if len(chosen) == len(batch):
            return column[rows], rows, starts
        place = np.full(len(batch), -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[rows] >= 0
        return column[place[rows[kept]]], rows[kept], starts[kept]

    def _folded(
        self, states: Columns, groups: Int64s, values: Column, batch: Batch, rows: Int64s
    ) -> tuple[Int64s | None, Columns]:
        """Return the states of windows with the values of pairs. Where the fold fails on some
        records, return the windows that have others, too."""
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        used = [np.asarray(batch.extra_column(name))[rows] for name in self._fold.uses]
        try:
            return None, self.folding.fold(states, groups, values, used)
        except failure():
            pass
        # A call per record finds the failing ones. A record changes all of its windows or none.
        after, touched = tuple(column.copy() for column in states), list[Int64s]()
        for pairs in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows)) + 1):
            some = [column[pairs] for column in used]
            try:
                self.folding.step(after, groups[pairs], values[pairs], some)
            except failure() as error:
                self._guard.failed(batch, int(rows[pairs[0]]), error)
            else:
                touched.append(groups[pairs])
        return np.unique(np.concatenate([*touched, np.zeros(0, np.int64)])), after

    def _states(
        self, store: Store, state_batch: StateBatch, names: list[bytes]
    ) -> NumberStates | SealedStates:
        return column_states(store, state_batch, names, self._fold.layout, self._sealing)


class PairColumns(ColumnarLogic):
    """A logic of hopping windows that keeps the states of pairs."""

    def __init__(self, windows: Hopping, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self._windows, self._guard = windows, guard
        self._states, self.sealing = PairStates(fold, sealing, guard), sealing

    @staticmethod
    def _set_timers(calls: Calls, closes: Iterable[tuple[int, int]]) -> None:
        """Set timers of bins, each for a close in milliseconds."""
        for bin, close in closes:
            calls.set_timer(Bin(bin), before_millis(close), bin_tag(bin))
