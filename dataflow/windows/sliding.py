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
from meander.dataflow.windows.logic import LATE, Emission, give_in_time
from meander.dataflow.windows.window import Sliding, Window


class Entry(NamedTuple):
    """The records of a key with one own time. The state of the key holds it as a plain tuple."""

    time: int
    """The own time, in milliseconds since 1970."""
    due: int
    """Its window closes before this millisecond of logical time, or behind that it is deleted."""
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
        kept = [*map(Entry._make, rows)]
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
                if window.holds(at) and one.due == self.windows.close(one.time):
                    self.aggregation.give(context, window, self._folded(context, window, kept))
        return self._state(context, kept)

    def on_timer(self, context: Context, rows: Any) -> object:  # noqa: ANN401 (as stored)
        """Give the result of a window that closes, or delete records that no window needs."""
        entries, kept = [Entry._make(row) for row in rows], list[Entry]()
        for one in entries:
            if str(one.time) != context.timer_name:
                kept.append(one)
            elif one.due == self.windows.close(one.time):
                if not self.emission.each:
                    window = self.windows.window(one.time)
                    state = self._folded(context, window, entries)
                    give_in_time(self.aggregation, context, window, state)
                kept.append(self._timed(context, one._replace(due=self._end(one.time))))
        return self._state(context, kept)

    def _end(self, at: int) -> int:
        """Return before which time records of an own time are deleted, behind all timers of their
        windows."""
        return self.windows.last(at) + 1

    def _folded(self, context: Context, window: Window, entries: Sequence[Entry]) -> object:
        """Return the state of a window, of the records that it holds."""
        own_ms, inside = context._own_ms, [one for one in entries if window.holds(one.time)]
        held = sorted(((*record, one.time) for one in inside for record in one.records), key=_place)
        (_, first, at), *rest = held
        context._set_own_time(at)
        # A reduction may change it, and later windows need it as it came.
        state = self.aggregation.first(context, window, deepcopy(first))
        for _, value, at in rest:
            context._set_own_time(at)
            state = self.aggregation.add(context, window, state, value)
        context._set_own_time(own_ms)
        return state

    def _timed(self, context: Context, entry: Entry) -> Entry:
        """Set the timer of an entry."""
        context._timer_before(entry.due, str(entry.time))
        return entry

    def _state(self, context: Context, entries: list[Entry]) -> object:
        """Return the state of a key, or forget the key where it has no records."""
        if not entries:
            context.forget()
        return [tuple(one) for one in entries]


def _time(entry: Entry) -> int:
    return entry.time


def _place(record: tuple[int, object, int]) -> int:
    return record[0]
