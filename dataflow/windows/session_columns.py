"""Sessions of a columnar aggregate: one state per session, in columns.

Guarantees of `columnar.py`. The n-th open session of a key has the key `(n, key)`, in the bin of
the key, and the first one tells how many others there are. Most keys have one, so a pass over these
comes first. Invariant: an open session either closes in a span of time that has not begun, and its
bin has a timer for the begin, or its key has a timer for the close. At a begin the sessions of the
bin that close in the span get timers. So few timers are pending. Cost: that of a pass; per begin
one reading of the states of the bin; per session one timer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Self, cast

import numpy as np

from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.columnar import NumberStates, SealedStates
from meander.dataflow.operators.keyed.columns import ColumnFold
from meander.dataflow.operators.keyed.logic import Applied, Sealing
from meander.dataflow.records.batch import Batch
from meander.dataflow.windows.columnar import (
    OTHERS,
    OWN,
    PREFIX_BYTES,
    Closed,
    bin_of_tag,
    bin_tag,
    late_records,
    name_prefix,
    session_layout,
)
from meander.dataflow.windows.folding import states_of
from meander.dataflow.windows.session_pass import Session, SessionFold, SessionPass, State
from meander.dataflow.windows.window import Sessions
from meander.state.encoding.cells import pick
from meander.state.encoding.columns import column_of
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import from_millis, to_millis

SPANS: Final = 8
"""The spans of time in a gap, in whose order sessions get timers."""
UNBOUNDED: Final = 1 << 60


class SessionColumns:
    """The logic of sessions of a columnar fold."""

    call_kinds: Collection[CallKind] = ("timer",)

    def __init__(self, windows: Sessions, fold: ColumnFold, sealing: Sealing, guard: Guard) -> None:
        self._defined = SessionFold.of(windows, fold, guard)
        self.layout, self.sealing = session_layout(fold), sealing
        self._late_ms, self._span_ms = windows.late_ms, max(1, windows.gap_ms // SPANS)

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Close the sessions that are due before the records, then add the records. Where many
        close, the records wait for the next pass."""
        batch = rows.batch
        before = int(batch.times[0]) if len(batch) else None
        closed, behind = self._close(store, calls, before)
        late = batch.between(0, 0)
        if not behind and len(batch):
            late = self._add(store, bins, batch, calls)
        return Applied(closed, 0 if behind else len(batch), closed, (late,))

    # -- closes

    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the sessions that close before a time, about `max_calls` of them,
        and whether others wait."""
        found, states = Closed.none(), list[State]()
        while len(found) < calls.max_calls and (due := calls.due_timers(before)):
            keys = dict[bytes, int]()
            calls.drop_timers(len(due))
            for time, tag in due:
                if (bin := bin_of_tag(tag)) is None:
                    keys[tag] = to_millis(time)
                else:
                    self._begin(store, calls, bin, to_millis(time))
            if keys:
                self._close_keys(store, keys, calls, found, states)
            if self._defined.guard.keepalive.due:
                self._defined.guard.keepalive.send()
        folding = self._defined.folding
        behind = len(found) >= calls.max_calls
        return found.results(folding, folding.of(states), calls, self._defined.guard), behind

    def _begin(self, store: Store, calls: Calls, bin: Bin, begin_ms: int) -> None:
        """Begin a span: set a timer for each session of a bin that closes in it."""
        for name, sealed in store.sealed_states(bin):
            _, end, *_ = cast(tuple[int, ...], self.sealing.unseal(sealed))
            close = end + self._late_ms
            if begin_ms <= close < begin_ms + self._span_ms:
                calls.set_timer(bin, from_millis(close), name[PREFIX_BYTES:])

    def _close_keys(
        self, store: Store, due: Mapping[bytes, int], calls: Calls, found: Closed,
        states: list[State],
    ) -> None:  # fmt: skip
        """Close the sessions of keys that are due at their times."""
        keys, times = [*due], [*due.values()]
        bins = calls.bins_of(keys)

        def close(number: int, sessions: list[Session]) -> list[Session]:
            now, kept = times[number], list[Session]()
            for one in sessions:
                close = one.end + self._late_ms
                if close > now:
                    kept.append(one)
                else:
                    found.add(close, one.start, one.end, [keys[number]])
                    states.append(one.state)
            return kept

        with _OpenSessions(self, store, keys, bins, [1] * len(keys)) as opened:
            several, room = opened.several, [1 + count for count in opened.others]
            alone = (number for number in range(len(keys)) if number not in several)
            opened.set({number: close(number, opened.of(number)) for number in alone})
        if several:
            some = [*several]
            with _OpenSessions(
                self, store, pick(keys, some), bins[some], pick(room, some)
            ) as opened:
                opened.set({n: close(number, opened.of(n)) for n, number in enumerate(some)})

    # -- records

    def _add(self, store: Store, bins: Bins, batch: Batch, calls: Calls) -> Batch:
        """Add records to their sessions. Return the late ones."""
        assert batch.keys is not None
        by_key: dict[bytes, int] = {}
        numbers = [by_key.setdefault(key, len(by_key)) for key in batch.keys]
        keys, rows = [*by_key], range(len(batch))
        _, first = np.unique(numbers, return_index=True)
        own = bins[first]
        with _OpenSessions(self, store, keys, own, [1] * len(keys)) as opened:
            one_pass = SessionPass(self._defined, batch, rows, numbers, opened.of, most=1)
            one_pass.left_out |= opened.several
            one_pass.add()
            self._set(opened, one_pass, keys, own, calls)
            left, others = sorted(one_pass.left_out), opened.others
        late = one_pass.late
        if left:
            rest = [row for row, number in enumerate(numbers) if number in one_pass.left_out]
            place = {number: n for n, number in enumerate(left)}
            some = [place[numbers[row]] for row in rest]
            counts = np.bincount(some).tolist()
            room = [1 + others[number] + more for number, more in zip(left, counts, strict=True)]
            keys, own = pick(keys, left), own[left]
            with _OpenSessions(self, store, keys, own, room) as opened:
                one_pass = SessionPass(self._defined, batch, rest, some, opened.of, most=UNBOUNDED)
                one_pass.add()
                self._set(opened, one_pass, keys, own, calls)
            late = sorted([*late, *one_pass.late])
        return late_records(batch, np.array(late, np.int64), self._defined.guard)

    def _set(
        self, opened: _OpenSessions, one_pass: SessionPass, keys: list[bytes], bins: Bins,
        calls: Calls,
    ) -> None:  # fmt: skip
        """Set the sessions of the keys of a pass, with their timers."""
        opened.set(one_pass.opened)
        begins = set[tuple[int, int]]()
        own_bins, span = bins.tolist(), self._span_ms
        for number, sessions in one_pass.opened.items():
            for one in sessions:
                if not one.now:
                    continue
                close = one.end + self._late_ms
                begin = close - close % span
                if begin > one.now:
                    begins.add((own_bins[number], begin))
                else:
                    calls.set_timer(Bin(own_bins[number]), from_millis(close), keys[number])
        for bin, begin in begins:
            calls.set_timer(Bin(bin), from_millis(begin), bin_tag(bin))


class _OpenSessions:
    """The sessions of some keys while they are open in the store, with room for some per key."""

    def __init__(
        self, logic: SessionColumns, store: Store, keys: Sequence[bytes], bins: Bins,
        room: Sequence[int],
    ) -> None:  # fmt: skip
        self._folding, self._room = logic._defined.folding, room
        names = [name_prefix(i) + key for key, n in zip(keys, room, strict=True) for i in range(n)]
        self._batch = store.open_batch(names, np.repeat(bins, room))
        self._states = (
            NumberStates(self._batch) if store.layout is not None
            else SealedStates(self._batch, names, logic.layout, logic.sealing)
        )  # fmt: skip
        self._first: list[int] = (np.cumsum(room) - room).tolist()
        """The row of the first session of each key."""
        self._has: list[bool] = self._batch.has(self._batch.slots).tolist()
        columns = self._states.read(np.arange(len(names)))
        self._rows = states_of(columns)
        self.others = pick(columns[OTHERS].tolist(), self._first)
        """The number of further sessions of each key."""
        self.several = {n for n, (more, has) in enumerate(zip(self.others, room, strict=True))
                        if more >= has}  # fmt: skip
        """The keys with more sessions than there is room for."""

    def __enter__(self) -> Self:
        self._batch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._batch.__exit__(None, None, None)

    def of(self, number: int) -> list[Session]:
        """Return the sessions of a key."""
        first = self._first[number]
        if not self._has[first]:
            return []
        rows = self._rows[first : first + 1 + self.others[number]]
        return [Session(cast(int, r[0]), cast(int, r[1]), r[OWN:]) for r in rows]

    def set(self, changed: Mapping[int, Sequence[Session]]) -> None:
        """Set the sessions of some keys."""
        rows, own, states, removed = list[int](), list[State](), list[State](), list[int]()
        for number, sessions in changed.items():
            first, count = self._first[number], len(sessions)
            for i, one in enumerate(sessions):
                rows.append(first + i)
                own.append((one.start, one.end, 0 if i else count - 1))
                states.append(one.state)
            if self._has[first]:
                removed += range(first + count, first + 1 + self.others[number])
        if rows:
            columns = map(partial(column_of, dtype="int64"), zip(*own, strict=True))
            self._states.write(np.array(rows), (*columns, *self._folding.of(states)))
        if removed:
            self._batch.forget(self._batch.slots[removed])
