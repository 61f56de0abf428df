"""Hopping windows of a columnar aggregate: one state per key and window, in columns.

Guarantees of `columnar.py`. A state has the key `(start, key)` of its window, in the bin of the key
of the record. Invariant: a bin with open windows of a start has one timer for them, at their close.
So an open window takes its state alone. Cost: per pass two look-ups of the windows in it, and a few
calls of numpy; per close of a bin a comparison for each of its states in memory.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.columnar import (
    PREFIX_BYTES,
    Closed,
    bin_of_tag,
    late_records,
    name_prefix,
)
from meander.dataflow.windows.pair_states import PairColumns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import SEQUENCE_BITS, to_millis

MAX_PAIRS: Final = 1 << 16
"""The most pairs of a record and a window that are in columns at once, unless one record has
more."""


class HoppingColumns(PairColumns):
    """The logic of hopping and tumbling windows of a columnar fold."""

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
            states = self._states.pop(store, names, np.array(bins), np.ones(len(names), np.bool_))
            ends = np.array(closes, np.int64) - late
            own_keys = [name[PREFIX_BYTES:] for name in names]
            found.add(ends + late, ends - size, ends, own_keys, states)
        return found.results(self._states.folding, calls, self._guard), behind

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
        span = self._windows.size_ms + self._windows.late_ms
        new, starts = self._states.add(store, bins, batch, rows, starts, starts + span)
        self._set_timers(calls, {*zip(bins[new].tolist(), (starts + span).tolist(), strict=True)})
