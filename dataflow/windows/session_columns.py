"""Sessions of a columnar aggregate: one state per session, in columns.

Guarantees of `columnar.py`. The n-th open session of a key has the key `(n, key)`, in the bin of
the key. Records that extend the one session of their key are added at once, others one by one.
Invariant: an open session closes in a span of time that has not begun, and its bin has a timer for
the begin; or its key has a timer for the close. A begin sets the timers of the sessions that close
in the span, so few are pending. Cost: some 50 calls of numpy per pass and a look-up per key; per
begin a reading of the states of the bin; per session one timer.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import numpy as np

from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Calls
from meander.dataflow.operators.keyed.column_fold import ColumnFold
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
    session_layout,
)
from meander.dataflow.windows.open_sessions import END, OpenSessions
from meander.dataflow.windows.session_pass import Session, SessionFold, SessionPass
from meander.dataflow.windows.session_runs import Mask, runs_of
from meander.dataflow.windows.window import Sessions
from meander.state.encoding.cells import pick
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import SEQUENCE_BITS, before_millis, from_millis, to_millis

SPANS: Final = 8
"""The spans of time in a gap, in whose order sessions get timers."""


class SessionColumns(ColumnarLogic):
    """The logic of sessions of a columnar fold."""

    def __init__(self, windows: Sessions, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self._defined = SessionFold.of(windows, fold, guard)
        self.layout, self.sealing = session_layout(fold), sealing
        self._late_ms, self._span_ms = windows.late_ms, max(1, windows.gap_ms // SPANS)

    # -- closes

    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the sessions that close before a time, about `max_calls` of them,
        and whether others wait."""
        found, folding = Closed(), self._defined.folding
        while len(found) < calls.max_calls and (due := calls.due_timers(before)):
            keys = dict[bytes, int]()
            calls.drop_timers(len(due))
            for time, tag in due:
                if (bin := bin_of_tag(tag)) is None:
                    keys[tag] = to_millis(time) + 1
                else:
                    self._begin(store, calls, bin, to_millis(time))
            if keys:
                self._close_keys(store, keys, calls, found)
            if self._defined.guard.keepalive.due:
                self._defined.guard.keepalive.send()
        behind = len(found) >= calls.max_calls
        return found.results(folding, calls, self._defined.guard), behind

    def _begin(self, store: Store, calls: Calls, bin: Bin, begin_ms: int) -> None:
        """Begin a span: set a timer for each session of a bin that closes in it."""
        names, ends = store.int_column(bin, END)
        closes = ends + self._late_ms
        begun = np.flatnonzero((closes > begin_ms) & (closes <= begin_ms + self._span_ms))
        for row, close in zip(begun.tolist(), closes[begun].tolist(), strict=True):
            calls.set_timer(bin, before_millis(close), names[row][PREFIX_BYTES:])

    def _close_keys(
        self, store: Store, due: Mapping[bytes, int], calls: Calls, found: Closed
    ) -> None:
        """Close the sessions of keys that are due at their times."""
        keys, times = [*due], np.array([*due.values()], np.int64)
        bins = calls.bins_of(keys)
        with self._open(store, keys, bins, [1] * len(keys)) as opened:
            closes = opened.ends + self._late_ms
            rows = np.flatnonzero(opened.has & (opened.others == 0) & (closes <= times))
            found.add(
                closes[rows], opened.starts[rows], opened.ends[rows], pick(keys, rows.tolist()),
                opened.states(rows),
            )  # fmt: skip
            opened.forget(rows)
            several, others = np.flatnonzero(opened.others > 0), opened.others
        if len(several):
            keys, times = pick(keys, several.tolist()), times[several]
            self._close_several(store, keys, bins[several], 1 + others[several], times, found)

    def _close_several(
        self, store: Store, keys: list[bytes], bins: Bins, room: Int64s, times: Int64s,
        found: Closed,
    ) -> None:  # fmt: skip
        """Close the sessions of keys that have several, and are due at some times."""
        with self._open(store, keys, bins, room.tolist()) as opened:
            changed, closed, due = dict[int, list[Session]](), list[Session](), list[bytes]()
            for number, now in enumerate(times.tolist()):
                changed[number] = []
                for one in opened.of(number):
                    if one.end + self._late_ms > now:
                        changed[number].append(one)
                    else:
                        closed.append(one)
                        due.append(keys[number])
            opened.set(changed)
        starts, ends = ([*map(attrgetter(name), closed)] for name in ("start", "end"))
        closes = np.array(ends, np.int64) + self._late_ms
        states = self._defined.folding.of([one.state for one in closed])
        found.add(closes, np.array(starts), np.array(ends), due, states)

    # -- records

    def _add(self, store: Store, bins: Bins, batch: Batch, calls: Calls) -> Batch:
        """Add records to their sessions. Return the late ones."""
        assert batch.keys is not None
        by_key: dict[bytes, int] = {}
        numbers = np.array([by_key.setdefault(key, len(by_key)) for key in batch.keys])
        keys = [*by_key]
        own = bins[np.unique(numbers, return_index=True)[1]]
        with self._open(store, keys, own, [1] * len(keys)) as opened:
            found, others = self._add_runs(opened, batch, numbers, keys, own, calls), opened.others
        left = np.flatnonzero(~found)
        if not len(left):
            return late_records(batch, left, self._defined.guard)
        rows = np.flatnonzero(~found[numbers])
        place = np.cumsum(~found) - 1
        some = place[numbers[rows]]
        keys, own = pick(keys, left.tolist()), own[left]
        room = 1 + others[left] + np.bincount(some)
        with self._open(store, keys, own, room.tolist()) as opened:
            one_pass = SessionPass(self._defined, batch, rows.tolist(), some.tolist(), opened.of)
            one_pass.add()
            opened.set(one_pass.opened)
        changed = [
            (one.end + self._late_ms, one.now, number)
            for number, sessions in one_pass.opened.items() for one in sessions if one.now >= 0
        ]  # fmt: skip
        closes, now, owners = np.array(changed, np.int64).reshape(-1, 3).T
        self._set_timers(closes, now, owners, keys, own, calls)
        return late_records(batch, np.array(one_pass.late, np.int64), self._defined.guard)

    def _add_runs(
        self, opened: OpenSessions, batch: Batch, numbers: Int64s, keys: list[bytes], bins: Bins,
        calls: Calls,
    ) -> Mask:  # fmt: skip
        """Add the records of keys that extend one session, and return which keys they are."""
        defined = self._defined
        at = np.asarray(batch.extra_column(EVENT_MS))
        runs = runs_of(
            defined.windows, numbers, at, batch.times >> SEQUENCE_BITS, opened.has, opened.starts,
            opened.ends,
        )  # fmt: skip
        found: Mask = runs.found & (opened.others == 0)
        rows, chosen = np.flatnonzero(found[numbers]), np.flatnonzero(found)
        if not len(rows):
            return found
        if defined.guard.keepalive.due:
            defined.guard.keepalive.send()
        try:
            values = defined.reader.column(batch.values)[rows]
            used = [np.asarray(batch.extra_column(name))[rows] for name in defined.fold.uses]
            every = opened.states(np.arange(len(keys)))
            after = defined.folding.fold(every, numbers[rows], values, used)
        except failure():
            # The pass over single records finds the failing ones.
            return np.zeros(len(keys), np.bool_)
        starts, ends = runs.starts[chosen], runs.ends[chosen]
        opened.set_alone(chosen, starts, ends, tuple(column[chosen] for column in after))
        self._set_timers(ends + self._late_ms, runs.last[chosen], chosen, keys, bins, calls)
        return found

    def _set_timers(
        self, closes: Int64s, now: Int64s, numbers: Int64s, keys: list[bytes], bins: Bins,
        calls: Calls,
    ) -> None:  # fmt: skip
        """Set the timers of sessions that have changed: by their closes, the logical times of their
        last records, and the numbers of their keys."""
        begins = closes - 1 - (closes - 1) % self._span_ms
        waits, owners = begins > now, bins[numbers]
        for bin, begin in {*zip(owners[waits].tolist(), begins[waits].tolist(), strict=True)}:
            calls.set_timer(Bin(bin), from_millis(begin), bin_tag(bin))
        for row in np.flatnonzero(~waits).tolist():
            key = keys[int(numbers[row])]
            calls.set_timer(Bin(int(owners[row])), before_millis(int(closes[row])), key)

    def _open(self, store: Store, keys: list[bytes], bins: Bins, room: list[int]) -> OpenSessions:
        return OpenSessions(
            store, self._defined.folding, self.layout, self.sealing, keys, bins, room
        )
