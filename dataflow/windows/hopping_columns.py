"""Hopping windows of a columnar aggregate: one state per key and window, in columns.

Guarantees of `columnar.py`. A state has the key `(start, key)` of its window, in the bin of the key
of the record. Invariant: a bin with open windows of a start has one timer for them, at their close.
So an open window takes its state alone. Cost: per pass two look-ups of the windows in it, and a few
calls of numpy; per close of a bin a comparison for each of its states in memory.
"""

from __future__ import annotations

from typing import Final, cast

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
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.columnar import (
    PREFIX_BYTES,
    Closed,
    ColumnarLogic,
    bin_of_tag,
    bin_tag,
    late_records,
    name_prefix,
)
from meander.dataflow.windows.folding import Folding
from meander.dataflow.windows.window import Hopping
from meander.schemas.control import MAX_MILLIS
from meander.state.encoding.columns import Column, Columns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, StateBatch, Store
from meander.state.times.time import SEQUENCE_BITS, before_millis, checked_millis, to_millis

MAX_PAIRS: Final = 1 << 16
"""The most pairs of a record and a window that are in columns at once, unless one record has
more."""


class HoppingColumns(ColumnarLogic):
    """The logic of hopping and tumbling windows of a columnar fold."""

    def __init__(self, windows: Hopping, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self._windows, self._fold, self._guard = windows, fold, guard
        self._folding, self._reader, self.sealing = Folding(fold), ValueReader(fold), sealing

    # -- closes

    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the windows that close before a time, about `max_calls` of them,
        and whether others wait."""
        due, late, size = calls.due_timers(before), self._windows.late_ms, self._windows.size_ms
        names, bins, closes, done = list[bytes](), list[int](), list[int](), 0
        for time, tag in due:
            bin, close = cast(Bin, bin_of_tag(tag)), to_millis(time) + 1
            keys = store.keys_under(bin, name_prefix(close - late - size))
            some = keys[: calls.max_calls - len(names)]
            names += some
            bins += [bin] * len(some)
            closes += [close] * len(some)
            if len(some) < len(keys):
                break
            done += 1
        behind = done < len(due) or len(due) >= calls.max_calls
        calls.drop_timers(done)
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        found = Closed()
        if names:
            with store.open_batch(names, np.array(bins, np.int64)) as state_batch:
                states = self._states(store, state_batch, names).read(np.arange(len(names)))
                state_batch.forget(state_batch.slots)
            ends = np.array(closes, np.int64) - late
            own_keys = [name[PREFIX_BYTES:] for name in names]
            found.add(ends + late, ends - size, ends, own_keys, states)
        return found.results(self._folding, calls, self._guard), behind

    # -- records

    def _add(self, store: Store, bins: Bins, batch: Batch, calls: Calls) -> Batch:
        """Add records to their open windows. Return those that are late for all of them."""
        windows = self._windows
        most = -(-windows.size_ms // windows.every_ms)
        own = np.asarray(batch.extra_column(EVENT_MS))
        late = list[Int64s]()
        step = max(1, MAX_PAIRS // most)
        for first in range(0, len(batch), step):
            times, at = batch.times[first : first + step], own[first : first + step]
            starts = self._starts(at, most)
            ends = starts + windows.size_ms
            opened = ends + windows.late_ms > (times >> SEQUENCE_BITS)[:, np.newaxis]
            opened &= ends > at[:, np.newaxis]
            late.append(first + np.flatnonzero(~opened.any(axis=1)))
            rows, places = np.nonzero(opened)
            self._add_to_opened(store, bins, batch, calls, first + rows, starts[rows, places])
        return late_records(batch, np.concatenate(late), self._guard)

    def _starts(self, own: Int64s, most: int) -> Int64s:
        """Return the starts of the windows of records, in order, shape (n, most). The first of them
        may end too early."""
        last = own - (own - self._windows.offset_ms) % self._windows.every_ms
        return last[:, np.newaxis] - self._windows.every_ms * np.arange(most - 1, -1, -1)

    def _add_to_opened(
        self, store: Store, bins: Bins, batch: Batch, calls: Calls, rows: Int64s, starts: Int64s
    ) -> None:
        """Add records to windows; pair by pair, in order, the row of a record and the start of one
        of its windows."""
        batch, values, rows, starts = self._valued(batch, rows, starts)
        if not len(rows):
            return
        assert batch.keys is not None
        prefixes = {start: name_prefix(start) for start in np.unique(starts).tolist()}
        keys = batch.keys
        names = [prefixes[s] + keys[r] for s, r in zip(starts.tolist(), rows.tolist(), strict=True)]
        pair_bins = bins[rows]
        with store.open_batch(names, pair_bins) as state_batch:
            slots = state_batch.slots
            unique, first, groups = np.unique(slots, return_index=True, return_inverse=True)
            states = self._states(store, state_batch, names)
            new = first[~state_batch.has(unique)]
            touched, after = self._folded(states.read(first), groups, values, batch, rows)
            if touched is not None:
                first, new = first[touched], np.intersect1d(new, first[touched])
                after = tuple(column[touched] for column in after)
            states.write(first, after)
        span = self._windows.size_ms + self._windows.late_ms
        for bin, start in {*zip(pair_bins[new].tolist(), starts[new].tolist(), strict=True)}:
            calls.set_timer(Bin(bin), before_millis(start + span), bin_tag(bin))

    def _valued(
        self, batch: Batch, rows: Int64s, starts: Int64s
    ) -> tuple[Batch, Column, Int64s, Int64s]:
        """Return the records among the pairs whose values and times fit, the values of the pairs,
        and the pairs. The error policy applies to the other records."""
        span = self._windows.size_ms + self._windows.late_ms
        chosen, wide = np.unique(rows), starts + span > MAX_MILLIS
        for row in np.unique(rows[wide]).tolist():
            chosen = chosen[chosen != row]
            close = int(starts[wide & (rows == row)][0]) + span
            try:
                checked_millis(close)
            except ValueError as error:
                self._guard.failed(batch, row, error)
        some = batch if len(chosen) == len(batch) else batch.take(chosen)
        valid, column = fitting_values(self._reader, some, self._guard)
        chosen = chosen[valid]
        if len(chosen) == len(batch):
            return batch, column[rows], rows, starts
        place = np.full(len(batch), -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[rows] >= 0
        return batch, column[place[rows[kept]]], rows[kept], starts[kept]

    def _folded(
        self, states: Columns, groups: Int64s, values: Column, batch: Batch, rows: Int64s
    ) -> tuple[Int64s | None, Columns]:
        """Return the states of windows with the values of pairs. Where the fold fails on some
        records, return the windows that have others, too."""
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        used = [np.asarray(batch.extra_column(name))[rows] for name in self._fold.uses]
        try:
            return None, self._folding.fold(states, groups, values, used)
        except failure():
            pass
        # A call per record finds the failing ones. A record changes all of its windows or none.
        after, touched = tuple(column.copy() for column in states), list[Int64s]()
        for pairs in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows)) + 1):
            some = [column[pairs] for column in used]
            try:
                self._folding.step(after, groups[pairs], values[pairs], some)
            except failure() as error:
                self._guard.failed(batch, int(rows[pairs[0]]), error)
            else:
                touched.append(groups[pairs])
        return np.unique(np.concatenate([*touched, np.zeros(0, np.int64)])), after

    def _states(
        self, store: Store, state_batch: StateBatch, names: list[bytes]
    ) -> NumberStates | SealedStates:
        return column_states(store, state_batch, names, self._fold.layout, self.sealing)
