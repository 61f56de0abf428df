"""Hopping windows of a columnar aggregate in panes: one state per key and pane.

Guarantees of `columnar.py`. A close merges the panes of its window, in order. Invariant: a record
is added to its pane once all windows are closed that it is late for; so it counts for the open ones
alone. A bin with panes has a timer at the next close of a window of each, or before; a close sets
the next one. Cost: one state per record; per close of a bin a comparison for each of its states,
and a merge of those of the window. One pass closes all windows of a bin that are due at one time.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.columnar import passes
from meander.dataflow.operators.keyed.logic import Sealing
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.columnar import (
    PAIR_HEAD,
    PREFIX_BYTES,
    Closed,
    ColumnarLogic,
    bin_of_tag,
    bin_tag,
    late_records,
    number_of,
)
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.pair_states import PairStates
from meander.dataflow.windows.panes import (
    closes_until,
    first_closes,
    last_closes,
    pane_starts,
)
from meander.dataflow.windows.window import Hopping
from meander.state.encoding.columns import Columns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import SEQUENCE_BITS, before_millis, to_millis


class PaneColumns(ColumnarLogic):
    """The logic of hopping windows of a columnar fold that merges in any order."""

    def __init__(self, windows: Hopping, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self._windows, self._guard = windows, guard
        self._states, self.sealing = PairStates(fold, sealing, guard), sealing

    # -- closes

    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the windows that close before a time, about `max_calls` of them,
        and whether others wait."""
        due, late = calls.due_timers(before), self._windows.late_ms
        closing, done = Closing(store, self._windows), 0
        for time, tag in due:
            if len(closing.keys) >= calls.max_calls or time > due[0][0]:
                break
            closing.add(cast(Bin, bin_of_tag(tag)), to_millis(time) + 1 - late)
            done += 1
        calls.drop_timers(done)
        for bin, close in closing.next_closes():
            calls.set_timer(bin, before_millis(close), bin_tag(bin))
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        found = Closed()
        if closing.names:
            states = self._states.pop(store, closing.names, closing.bins, np.array(closing.end))
            self._merge(closing, states, found)
        results = found.results(self._states.folding, calls, self._guard)
        return results, bool(calls.due_timers(before))

    def _merge(self, closing: Closing, states: Columns, found: Closed) -> None:
        """Merge the states of panes to those of windows."""
        folding, ends = self._states.folding, np.array(closing.ends, np.int64)
        closes, starts = ends + self._windows.late_ms, ends - self._windows.size_ms
        groups = np.array(closing.groups, np.int64)
        try:
            merged = _merged(folding, states, groups)
        except failure():
            pass
        else:
            found.add(closes, starts, ends, closing.keys, merged)
            return
        by_window = np.argsort(groups, kind="stable")
        parts = np.split(by_window, np.cumsum(np.bincount(groups))[:-1])
        for window, (key, rows) in enumerate(zip(closing.keys, parts, strict=True)):
            panes, place = tuple(column[rows] for column in states), slice(window, window + 1)
            try:
                merged = _merged(folding, panes, np.zeros(len(rows), np.int64))
            except failure() as error:
                close, start, end = int(closes[window]), int(starts[window]), int(ends[window])
                found.add_failed(close, start, end, key, states_of(panes), error)
            else:
                found.add(closes[place], starts[place], ends[place], [key], merged)

    # -- records

    def _count_before_closes(self, batch: Batch) -> int:
        """Return how many of the first records can be added before other windows close: those
        before one that is late for a window which closes with this batch, and not for its last."""
        windows, own = self._windows, np.asarray(batch.extra_column(EVENT_MS))
        now = batch.times >> SEQUENCE_BITS
        missed = closes_until(windows, own, now) > closes_until(windows, own, now[:1])
        waits = missed & (last_closes(windows, own) > now)
        return int(np.argmax(waits)) if waits.any() else len(batch)

    def _add(self, store: Store, bins: Bins, batch: Batch, calls: Calls) -> Batch:
        """Add records to their panes. Return those that are late for all windows."""
        windows, own = self._windows, np.asarray(batch.extra_column(EVENT_MS))
        now, last = batch.times >> SEQUENCE_BITS, last_closes(windows, own)
        rows = np.flatnonzero(last > now)
        new, _ = self._states.add(
            store, bins, batch, rows, pane_starts(windows, own[rows]), last[rows]
        )
        closed = closes_until(windows, own[new], now[new])
        closes = first_closes(windows, own[new]) + closed * windows.every_ms
        for bin, close in {*zip(bins[new].tolist(), closes.tolist(), strict=True)}:
            calls.set_timer(Bin(bin), before_millis(close), bin_tag(bin))
        return late_records(batch, np.flatnonzero(last <= now), self._guard)


class Closing:
    """The windows of some bins that close at one time, with their panes."""

    def __init__(self, store: Store, windows: Hopping) -> None:
        self._store, self._windows = store, windows
        self._later: list[tuple[Bin, int, int]] = []
        """Bins with other panes, the start of the first one, and the close of the window."""
        self.names: list[bytes] = []
        """The keys of the states of panes."""
        self.bins: list[Bin] = []
        self.end: list[bool] = []
        """Whether no later window needs a state."""
        self.groups: list[int] = []
        """The number of the window of each state. The states of a window are in order."""
        self.keys: list[bytes] = []
        """The encoded key of each window."""
        self.ends: list[int] = []
        """The end of each window."""

    def add(self, bin: Bin, end: int) -> None:
        """Add the windows of a bin with an end."""
        windows = self._windows
        start, panes = end - windows.size_ms, dict[bytes, list[bytes]]()
        for name in self._store.keys_under(bin, PAIR_HEAD):
            panes.setdefault(name[:PREFIX_BYTES], []).append(name)
        by_start = {number_of(prefix): names for prefix, names in panes.items()}
        numbers, first, before = dict[bytes, int](), len(self.keys), len(self.names)
        for pane in sorted(pane for pane in by_start if start <= pane < end):
            names = by_start[pane]
            self.names += names
            self.end += [pane < start + windows.every_ms] * len(names)
            for name in names:
                key = name[PREFIX_BYTES:]
                self.groups.append(first + numbers.setdefault(key, len(numbers)))
        self.bins += [bin] * (len(self.names) - before)
        self.keys += numbers
        self.ends += [end] * len(numbers)
        later = [pane for pane in by_start if pane >= start + windows.every_ms]
        if later:
            self._later.append((bin, min(later), end + windows.late_ms))

    def next_closes(self) -> list[tuple[Bin, int]]:
        """Return when the next window of each bin with other panes closes."""
        every = self._windows.every_ms
        firsts = first_closes(self._windows, np.array([start for _, start, _ in self._later]))
        return [
            (bin, max(close + every, first))
            for (bin, _, close), first in zip(self._later, firsts.tolist(), strict=True)
        ]


def _merged(folding: Folding, states: Columns, groups: Int64s) -> Columns:
    """Return the merged states of windows: of some states, each with the number of its window."""
    # The windows have numbers in the order of their first panes.
    first, *others = passes(groups.view(np.uint64))
    merged = tuple(column[first] for column in states)
    for chosen in others:
        some, later = groups[chosen], tuple(column[chosen] for column in states)
        changed = folding.merge(tuple(column[some] for column in merged), later)
        for column, new in zip(merged, changed, strict=True):
            column[some] = new
    return merged
