"""Windows of a columnar aggregate: what they are, and what their three logics share.

Guarantees the results of `logic.py`. A record counts for a window by its own logical time alone, so
all records of a pass are folded before windows close; panes end a pass before some of them.
Invariant: a fold changes no state where it raises, so its records are folded one by one then. Cost:
`hopping_columns.py`, `pane_columns.py`, `session_columns.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from meander.dataflow.operators.buffer.rows import NO_ROWS, Rows
from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.callbacks import Call, CallKind, Calls
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.logic import Applied
from meander.dataflow.operators.stateless import INDEX_LIMIT, TooManyLevelsError, passed_on
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.logic import LATE
from meander.dataflow.windows.window import Hopping, Sessions
from meander.state.encoding import codec
from meander.state.encoding.columns import ColumnLayout, Columns
from meander.state.keys.ids import Bin
from meander.state.store.store import Bins, Store
from meander.state.times.time import SEQUENCE_BITS

LATE_COUNTER: Final = "window_late"
"""Counts the records that are late for all their windows."""
OWN: Final = 3
"""The columns of a session before those of its fold: start, end, and in the first session of a key
the number of others."""
PAIR_HEAD: Final = codec.encode((0, 0))[:-2] + b"\xd3"
"""The first bytes of a pair whose first item is a number of 8 bytes."""
_NUMBER_BYTES: Final = 8
PREFIX_BYTES: Final = len(PAIR_HEAD) + _NUMBER_BYTES


def name_prefix(number: int) -> bytes:
    """Return the first bytes of the key of a state, which is a pair of a number and a key of
    records. The encoded key follows.

    >>> codec.decode(name_prefix(60_000) + codec.encode("home"))
    (60000, 'home')
    """
    return PAIR_HEAD + number.to_bytes(_NUMBER_BYTES, "big", signed=True)


def numbers_of(names: Sequence[bytes]) -> Int64s:
    """Return the numbers of the keys of states, shape (n,).

    >>> numbers_of([name_prefix(-7) + codec.encode("home"), name_prefix(60_000)]).tolist()
    [-7, 60000]
    """
    data = b"".join([name[len(PAIR_HEAD) : PREFIX_BYTES] for name in names])
    return np.frombuffer(data, ">i8").astype(np.int64)


def bin_tag(bin: int) -> bytes:
    """Return the tag of a timer of a bin. No key of records equals it, as the encoding of a small
    number is shorter."""
    return b"\xd3" + bin.to_bytes(_NUMBER_BYTES, "big")


def bin_of_tag(tag: bytes) -> Bin | None:
    """Return the bin whose timer has a tag, or None where the tag is a key of records.

    >>> bin_of_tag(bin_tag(7)), bin_of_tag(codec.encode(7)), bin_of_tag(codec.encode(1 << 40))
    (7, None, None)
    """
    if len(tag) != 1 + _NUMBER_BYTES or not tag.startswith(b"\xd3\0\0\0\0"):
        return None
    return Bin(int.from_bytes(tag[1:], "big"))


def session_layout(fold: ColumnFold) -> ColumnLayout:
    """Return the columns of the sessions of a fold."""
    layout = fold.layout
    return ColumnLayout((*[0] * OWN, *layout.init), (*["int64"] * OWN, *layout.dtypes))


@dataclass(frozen=True, slots=True)
class ColumnarWindows:
    """The windows of an operator whose aggregate is a columnar fold."""

    windows: Hopping | Sessions
    fold: ColumnFold
    side: tuple[str, ...] = (LATE,)

    @property
    def in_panes(self) -> bool:
        """Return whether windows that overlap share the states of their panes."""
        fold, windows = self.fold, self.windows
        overlap = isinstance(windows, Hopping) and windows.every_ms < windows.size_ms
        return overlap and fold.commutative and fold.merge is not None

    @property
    def uses(self) -> tuple[str, ...]:
        """Return the extra columns that it reads."""
        return tuple(dict.fromkeys((EVENT_MS, *self.fold.uses)))

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the functions of the fold, each with its role."""
        return self.fold.functions

    @property
    def layout(self) -> ColumnLayout:
        """Return the columns of its states."""
        match self.windows:
            case Hopping():
                return self.fold.layout
            case Sessions():
                return session_layout(self.fold)


_KINDS: Final[tuple[CallKind, ...]] = ("timer",)


class ColumnarLogic(ABC):
    """What the logics of columnar windows share: each pass closes windows, then adds records."""

    call_kinds: Collection[CallKind] = _KINDS

    def apply(self, store: Store, bins: Bins, rows: Rows, calls: Calls) -> Applied:
        """Close the windows that are due before the records, then add the records. Where many
        close, the records wait for the next pass."""
        batch = rows.batch
        before = int(batch.times[0]) if len(batch) else None
        closed, behind = self._close(store, calls, before)
        while behind and not len(closed):  # a pass without a result and a record would end the turn
            closed, behind = self._close(store, calls, before)
        count = 0 if behind or not len(batch) else self._count_before_closes(batch)
        late = batch.between(0, count)
        if count:
            late = self._add(store, bins[:count], late, calls)
        return Applied(closed, count, closed, (late,))

    def _count_before_closes(self, batch: Batch) -> int:
        """Return how many of the first records can be added before other windows close."""
        return len(batch)

    @abstractmethod
    def _close(self, store: Store, calls: Calls, before: int | None) -> tuple[Batch, bool]:
        """Return the results of the windows that close before a time, about `max_calls` of them,
        and whether others wait."""

    @abstractmethod
    def _add(self, store: Store, bins: Bins, batch: Batch, calls: Calls) -> Batch:
        """Add records to their windows. Return those that are late for all of them."""


class Closed:
    """The windows that close in one pass. The result of each has the last time before its close."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        """The encoded keys of the records."""
        self._columns: list[tuple[Int64s, Int64s, Int64s]] = []
        """Closes, starts and ends in milliseconds."""
        self._states: list[Columns] = []
        self._failed: list[tuple[int, int, int, bytes, object, BaseException]] = []

    def __len__(self) -> int:
        return len(self.keys)

    def add(
        self, closes: Int64s, starts: Int64s, ends: Int64s, keys: Sequence[bytes], states: Columns
    ) -> None:
        """Add windows, shapes (n,)."""
        if keys:
            self.keys += keys
            self._columns.append((closes, starts, ends))
            self._states.append(states)

    def add_failed(
        self, close: int, start: int, end: int, key: bytes, state: object, error: BaseException
    ) -> None:
        """Add a window that has failed before its result."""
        self._failed.append((close, start, end, key, state, error))

    def results(self, folding: Folding, calls: Calls, guard: Guard) -> Batch:
        """Return the results of the windows. Each stands where the timer of the window would call.
        The error policy applies to a window that fails."""
        for close, start, end, key, state, error in self._failed:
            times = np.array([[close], [start], [end]], np.int64)
            window = {"key": codec.decode(key), "start": start, "end": end, "state": state}
            guard.failed(_places(calls, [key], *times).with_values([window]), 0, error)
        if not self.keys:
            return calls.at(NO_ROWS, NO_ROWS, [])
        closes, starts, ends = map(np.concatenate, zip(*self._columns, strict=True))
        states = tuple(map(np.concatenate, zip(*self._states, strict=True)))
        batch = _places(calls, self.keys, closes, starts, ends)
        rows = [*zip(map(codec.decode, self.keys), starts.tolist(), ends.tolist(), strict=True)]
        try:
            values = folding.results(states)
        except failure():
            return _one_by_one(folding, states, rows, batch, guard)
        return batch.with_values(
            [{"key": k, "start": s, "end": e, "value": v}
             for (k, s, e), v in zip(rows, values, strict=True)]
        )  # fmt: skip


def _places(calls: Calls, keys: list[bytes], closes: Int64s, starts: Int64s, ends: Int64s) -> Batch:
    """Return records without values where the timers of windows would call, with the last times of
    the windows."""
    different, place = np.unique(starts, return_inverse=True)
    offsets = [Call(0, "timer", b"", str(start)).offset for start in different.tolist()]
    batch = calls.at((closes << SEQUENCE_BITS) - 1, np.array(offsets)[place], keys)
    return batch.with_own_times(ends - 1)


def _one_by_one(
    folding: Folding, states: Columns, rows: Sequence[tuple[object, int, int]], batch: Batch,
    guard: Guard,
) -> Batch:  # fmt: skip
    """Return the results of single windows, given by key, start and end."""
    values, kept = list[object](), list[int]()
    for row, (key, start, end) in enumerate(rows):
        own = tuple(column[row : row + 1] for column in states)
        window: dict[str, object] = {"key": key, "start": start, "end": end}
        try:
            values.append({**window, "value": folding.results(own)[0]})
        except failure() as error:
            window["state"] = states_of(own)[0]
            guard.failed(batch.take(np.array([row])).with_values([window]), 0, error)
        else:
            kept.append(row)
    return batch.take(np.array(kept, np.int64)).with_values(values)


def late_records(batch: Batch, rows: Int64s, guard: Guard) -> Batch:
    """Return the records of some rows as results of the side output of late ones."""
    if (full := batch.indexes[rows] >= INDEX_LIMIT).any():
        for row in rows[full].tolist():
            guard.failed(batch, row, TooManyLevelsError())
        rows = rows[~full]
    guard.counters[LATE_COUNTER] += len(rows)
    return passed_on(batch.take(rows))
