"""A pass over records that finds the session of each, and folds all of them in columns.

The sessions of a key follow from times alone, so records find theirs first. The fold comes behind
that. Sessions that a record merges are done before the merged one, so the fold goes by generations.
Invariant: the sessions of a key are in order of their starts. Cost: about a microsecond per record,
and a few calls of the fold per generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meander.dataflow.operators.error_policy import Guard, failure
from meander.dataflow.operators.keyed.column_fold import ColumnFold, ValueReader
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.window import Sessions, Window
from meander.state.encoding.cells import pick
from meander.state.encoding.columns import Column, Columns
from meander.state.times.time import SEQUENCE_BITS, checked_millis

State = tuple[object, ...]
"""The columns of the fold's state of a session."""


@dataclass(slots=True, eq=False)
class Session:
    """An open session of a key."""

    start: int
    end: int
    state: State
    """Its state, before the records of the pass and after the fold."""
    now: int = -1
    """The logical time of its last record, in milliseconds, or -1 where that is not of the pass."""
    rows: list[int] = field(default_factory=list)
    """The records of the pass in it, behind those of its parts."""
    parts: Sequence[Session] = ()
    """The sessions that have merged into it in the pass."""
    generation: int = 0
    """The number of merges of the pass that lie before it, one behind the other."""


@dataclass(frozen=True, slots=True)
class SessionFold:
    """The definition of sessions with their fold."""

    windows: Sessions
    fold: ColumnFold
    folding: Folding
    reader: ValueReader
    guard: Guard

    @staticmethod
    def of(windows: Sessions, fold: ColumnFold, guard: Guard) -> SessionFold:
        """Return the definition of an operator."""
        return SessionFold(windows, fold, Folding(fold), ValueReader(fold), guard)


class SessionPass:
    """A pass over some records of a batch."""

    def __init__(
        self, defined: SessionFold, batch: Batch, rows: Sequence[int], numbers: Sequence[int],
        sessions: Callable[[int], list[Session]],
    ) -> None:  # fmt: skip
        """`numbers[i]` is that of the key of `rows[i]`, and `sessions` gives the open sessions of a
        key by its number."""
        self._defined, self._batch, self._rows, self._numbers = defined, batch, rows, numbers
        self._before = sessions
        self._used = [np.asarray(batch.extra_column(name)) for name in defined.fold.uses]
        self.opened: dict[int, list[Session]] = {}
        """The sessions of each key of the pass."""
        self.late: list[int] = []
        """The late records."""

    def add(self) -> None:
        """Add the records at once; where that fails, one after the other."""
        try:
            values = self._defined.reader.column(self._batch.values)
            self._find(self._grow)
            self._fold_all(values)
        except failure():
            self._find(self._grow_alone)

    def _find(self, grow: _AddRecord) -> None:
        """Find the session of each record, and add it by a function."""
        self.opened, self.late = {}, []
        opened, before = self.opened, self._before
        batch, windows = self._batch, self._defined.windows
        gap, longest, late = windows.gap_ms, windows.longest_ms, windows.late_ms
        own = pick(np.asarray(batch.extra_column(EVENT_MS)).tolist(), [*self._rows])
        times = pick((batch.times >> SEQUENCE_BITS).tolist(), [*self._rows])
        for row, number, at, now in zip(self._rows, self._numbers, own, times, strict=True):
            sessions = opened.get(number)
            if sessions is None:
                sessions = opened[number] = before(number)
            end = at + gap
            if len(sessions) == 1:
                # Most keys have one session, and most records are in it.
                one = sessions[0]
                last = max(end, one.end)
                is_open = one.end + late > now
                if is_open and one.start <= at < one.end and last - one.start <= longest:
                    grow(sessions, sessions, Window(one.start, last), row, now)
                    continue
            by_start = {one.start: one for one in sessions if one.end + late > now}
            window, joined = windows.join(
                Window(at, end), [Window(one.start, one.end) for one in by_start.values()]
            )
            if window.end + late <= now:
                self.late.append(row)
            else:
                grow(sessions, [by_start[one.start] for one in joined], window, row, now)

    def _grow(
        self, sessions: list[Session], joined: list[Session], window: Window, row: int, now: int
    ) -> None:
        """Add a record to the session that it makes of others."""
        start, end = window
        if len(joined) == 1:
            (one,) = joined
            one.rows.append(row)
            one.end, one.now = end, now
            if one.start != start:
                one.start = start
                sessions.sort(key=_start)
            return
        checked_millis(end + self._defined.windows.late_ms)
        generation = 1 + max(one.generation for one in joined) if joined else 0
        new = Session(start, end, self._defined.fold.init, now, [row], joined, generation)
        sessions[:] = sorted([*(one for one in sessions if one not in joined), new], key=_start)

    def _grow_alone(
        self, sessions: list[Session], joined: list[Session], window: Window, row: int, now: int
    ) -> None:
        """Add a record to the session that it makes of others, with its state. The error policy
        applies to a record that fails."""
        defined = self._defined
        try:
            checked_millis(window.end + defined.windows.late_ms)
            value = defined.reader.column(self._batch.values[row : row + 1])
            states = self._merged([[one.state for one in joined] or [defined.fold.init]])
            used = [column[row : row + 1] for column in self._used]
            defined.folding.step(states, np.zeros(1, np.int64), value, used)
        except failure() as error:
            defined.guard.failed(self._batch, row, error)
            return
        (state,) = states_of(states)
        kept = [one for one in sessions if one not in joined]
        sessions[:] = sorted([*kept, Session(*window, state, now)], key=_start)

    def _fold_all(self, values: Column) -> None:
        generations = dict[int, list[Session]]()
        for sessions in self.opened.values():
            _collect(sessions, generations)
        for _, some in sorted(generations.items()):
            self._fold(some, values)

    def _fold(self, sessions: list[Session], values: Column) -> None:
        """Fold the records of sessions of one generation, whose parts are done."""
        if self._defined.guard.keepalive.due:
            self._defined.guard.keepalive.send()
        states = self._merged([[p.state for p in one.parts] or [one.state] for one in sessions])
        rows = np.array([row for one in sessions for row in one.rows], np.int64)
        groups = np.repeat(np.arange(len(sessions)), [len(one.rows) for one in sessions])
        used = [column[rows] for column in self._used]
        after = self._defined.folding.fold(states, groups, values[rows], used)
        for one, state in zip(sessions, states_of(after), strict=True):
            one.state = state

    def _merged(self, states: Sequence[Sequence[State]]) -> Columns:
        """Return one state for each list of states, as columns."""
        folding = self._defined.folding
        merged = folding.of([some[0] for some in states])
        for number in range(1, max(map(len, states))):
            rows = np.array([row for row, some in enumerate(states) if len(some) > number])
            later = folding.of([states[row][number] for row in rows.tolist()])
            changed = folding.merge(tuple(column[rows] for column in merged), later)
            for column, new in zip(merged, changed, strict=True):
                column[rows] = new
        return merged


_AddRecord = Callable[[list[Session], list[Session], Window, int, int], None]


def _collect(sessions: Iterable[Session], generations: dict[int, list[Session]]) -> None:
    """Add sessions that have records of the pass, and their parts, to those of their
    generations."""
    for one in sessions:
        if one.rows:
            generations.setdefault(one.generation, []).append(one)
            _collect(one.parts, generations)


def _start(session: Session) -> int:
    return session.start
