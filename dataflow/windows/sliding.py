"""The logic of sliding windows: each record ends one, which holds the records of a time before it.

Guarantees of `logic.py`. A window has the records that are not late for it, in the total order,
also those that are late for their own window. Invariant: a key keeps a record until no window that
could hold it is open. Cost: per window one call of the fold for each of its records, as a state
cannot lose a record; per distinct own time of a key one timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.windows.aggregation import Aggregation
from meander.dataflow.windows.logic import LATE, Emission
from meander.dataflow.windows.window import Sliding, Window


class Entry(NamedTuple):
    """The records of a key with one own time. The state of the key holds it as a plain tuple."""

    time: int
    """The own time, in milliseconds since 1970."""
    due: int
    """When its window closes, or behind that when it is deleted, in logical time."""
    records: Sequence[tuple[int, object]]
    """The values, each with its place among the records of the key."""


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """The logic of sliding windows. A timer has the own time of its entry as its name."""

    windows: Sliding
    aggregation: Aggregation
    emission: Emission

    def init(self) -> Sequence[object]:
        """Return the state of a key without records."""
        return []

    def step(self, context: Context, rows: Any, value: Any) -> object:  # noqa: ANN401 (as stored)
        """Keep a record, or send it to the late ones."""
        now, at, last = context.time_ms, context.event_ms, self.windows.last
        known = [*map(Entry._make, rows)]
        # A record of the very time of a close is late for the window, whose timer comes behind it.
        kept = [
            self._closed(context, one, known) if self._closes(one, now) else one for one in known
        ]
        if last(at) <= now:
            context.emit(value, to=LATE)
            return self._state(context, kept)
        place = 1 + max((place for one in kept for place, _ in one.records), default=-1)
        record = place, value
        if at in {one.time for one in kept}:
            kept = [
                one._replace(records=[*one.records, record]) if one.time == at else one
                for one in kept
            ]
        else:
            close = self.windows.close(at)
            due = close if close > now else self._end(at)
            kept = sorted([*kept, self._timed(context, Entry(at, due, [record]))], key=_time)
        if self.emission.each:
            for one in kept:
                window = self.windows.window(one.time)
                if window.holds(at) and now < one.due == self.windows.close(one.time):
                    self._give(context, window, kept)
        return self._state(context, kept)

    def on_timer(self, context: Context, rows: Any) -> object:  # noqa: ANN401 (as stored)
        """Give the result of a window that closes, or delete records that no window needs."""
        entries, kept = [Entry._make(row) for row in rows], list[Entry]()
        for one in entries:
            if str(one.time) != context.timer_name:
                kept.append(one)
            elif self._closes(one, context.time_ms):
                kept.append(self._timed(context, self._closed(context, one, entries)))
            elif one.due > context.time_ms:
                # A record of this very time has closed the window.
                kept.append(self._timed(context, one))
        return self._state(context, kept)

    def _closes(self, entry: Entry, now_ms: int) -> bool:
        """Return whether the window that an entry ends closes now."""
        return entry.due == now_ms == self.windows.close(entry.time)

    def _closed(self, context: Context, entry: Entry, entries: Sequence[Entry]) -> Entry:
        """Give the result of a window that closes, and return its entry."""
        if not self.emission.each:
            self._give(context, self.windows.window(entry.time), entries)
        return entry._replace(due=self._end(entry.time))

    def _end(self, at: int) -> int:
        """Return when records of an own time are deleted, behind all timers of their windows."""
        return self.windows.last(at) + 1

    def _give(self, context: Context, window: Window, entries: Sequence[Entry]) -> None:
        held = (record for one in entries if window.holds(one.time) for record in one.records)
        first, *rest = [value for _, value in sorted(held, key=_place)]
        # A reduction may change it, and later windows need it as it came.
        state = self.aggregation.first(context, window, deepcopy(first))
        for value in rest:
            state = self.aggregation.add(context, window, state, value)
        self.aggregation.give(context, window, state)

    def _timed(self, context: Context, entry: Entry) -> Entry:
        """Set the timer of an entry."""
        context.timer(entry.due, name=str(entry.time))
        return entry

    def _state(self, context: Context, entries: list[Entry]) -> object:
        """Return the state of a key, or forget the key where it has no records."""
        if not entries:
            context.forget()
        return [tuple(one) for one in entries]


def _time(entry: Entry) -> int:
    return entry.time


def _place(record: tuple[int, object]) -> int:
    return record[0]
