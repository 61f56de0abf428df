"""Hopping windows of a columnar aggregate in panes: one state per key and pane.

Guarantees of `columnar.py`. A close merges the panes of its window, in order. Invariant: a record
is added to its pane once all windows are closed that it is late for; so it counts for the open ones
alone. A bin with panes has a timer at the next close of a window of each, or before; a close sets
the next one. Cost: one state per record; per close of a bin a comparison for each of its states,
and a merge of those of the window. One pass closes all windows of a bin that are due at one time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import cast

import numpy as np

from meander.dataflow.operators.error_policy import failure
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.columnar import passes
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.columnar import (
    PAIR_HEAD,
    PREFIX_BYTES,
    Closed,
    bin_of_tag,
    late_records,
    numbers_of,
)
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.pair_states import PairColumns
from meander.dataflow.windows.panes import (
    closes_until,
    first_closes,
    last_closes,
    pane_starts,
)
from meander.dataflow.windows.window import Hopping
from meander.state.encoding.cells import pick
from meander.state.encoding.columns import Columns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import SEQUENCE_BITS, to_millis


class PaneColumns(PairColumns):
    """The logic of hopping windows of a columnar fold that merges in any order."""

    # -- closes

    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the windows that close before a time, about `max_calls` of them,
        and whether others wait."""
        due, keys, count = calls.due_timers(before), dict[Bin, list[bytes]](), 0
        for time, tag in due:
            if count >= calls.max_calls or time > due[0][0]:
                break
            bin = cast(Bin, bin_of_tag(tag))
            keys[bin] = store.keys_under(bin, PAIR_HEAD)
            count += len(keys[bin])
        calls.drop_timers(len(keys))
        if self._guard.keepalive.due:
            self._guard.keepalive.send()
        found = Closed()
        if keys:
            closing = Closing(self._windows, to_millis(due[0][0]) + 1, keys)
            self._set_timers(calls, closing.next_closes())
            if closing.names:
                states = self._states.pop(store, closing.names, closing.bins, closing.last)
                self._merge(closing, states, found)
        results = found.results(self._states.folding, calls, self._guard)
        return results, bool(calls.due_timers(before))

    def _merge(self, closing: Closing, states: Columns, found: Closed) -> None:
        """Merge the states of panes to those of windows."""
        folding, groups, close = self._states.folding, closing.groups, closing.close
        end = close - self._windows.late_ms
        start = end - self._windows.size_ms

        def add(keys: list[bytes], merged: Columns) -> None:
            closes, starts, ends = (np.full(len(keys), at) for at in (close, start, end))
            found.add(closes, starts, ends, keys, merged)

        try:
            merged = _merged(folding, states, groups)
        except failure():
            pass
        else:
            add(closing.keys, merged)
            return
        by_window = np.argsort(groups, kind="stable")
        parts = np.split(by_window, np.cumsum(np.bincount(groups))[:-1])
        for key, rows in zip(closing.keys, parts, strict=True):
            panes = tuple(column[rows] for column in states)
            try:
                merged = _merged(folding, panes, np.zeros(len(rows), np.int64))
            except failure() as error:
                found.add_failed(close, start, end, key, states_of(panes), error)
            else:
                add([key], merged)

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
        self._set_timers(calls, {*zip(bins[new].tolist(), closes.tolist(), strict=True)})
        return late_records(batch, np.flatnonzero(last <= now), self._guard)


class Closing:
    """The windows of some bins that close at one time, with their panes."""

    def __init__(
        self, windows: Hopping, close: int, keys_of_bins: Mapping[Bin, list[bytes]]
    ) -> None:
        """All states of the bins are given by their keys."""
        self._windows, self.close = windows, close
        names = [*chain.from_iterable(keys_of_bins.values())]
        bins = np.repeat([*keys_of_bins], [*map(len, keys_of_bins.values())])
        panes, start = numbers_of(names), close - windows.late_ms - windows.size_ms
        rows = np.flatnonzero((panes >= start) & (panes < start + windows.size_ms))
        rows = rows[np.argsort(panes[rows], kind="stable")]
        last = panes < start + windows.every_ms
        self._others = bins[~last], panes[~last]
        """The bins and the starts of the panes that later windows need."""
        self.names, self.bins = pick(names, rows.tolist()), bins[rows]
        """The keys of the states of panes, in the order of time, and their bins."""
        self.last = last[rows]
        """Whether no later window needs a state."""
        numbers = dict[bytes, int]()
        self.groups = np.array(
            [numbers.setdefault(name[PREFIX_BYTES:], len(numbers)) for name in self.names], np.int64
        )
        """The number of the window of each state."""
        self.keys = [*numbers]
        """The encoded key of each window."""

    def next_closes(self) -> list[tuple[Bin, int]]:
        """Return when the next window of each bin with other panes closes."""
        bins, panes = self._others
        by_start = np.argsort(panes, kind="stable")
        different, first = np.unique(bins[by_start], return_index=True)
        closes = first_closes(self._windows, panes[by_start][first])
        closes = np.maximum(closes, self.close + self._windows.every_ms)
        return [*zip(map(Bin, different.tolist()), closes.tolist(), strict=True)]


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
