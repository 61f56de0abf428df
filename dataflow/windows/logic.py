"""The logic of windows: a process function that keeps the open windows of each key.

Guarantees that the logs alone decide about results. A record is late for a window if and only if
its logical time is at or past the end of the window plus `late`. A timer at the last time before
closes the window: it gives the result and deletes the state. Timers come behind the records of
their time, so a record meets no window that is closed. Invariant: a window that is due has a timer
at the last time before or earlier; the rows of a key are in order of their starts, none closed.
Cost: per record the state of its key is read and written, and one timer per window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.windows.aggregation import Aggregation
from meander.dataflow.windows.window import MAX_SECONDS, Counts, Hopping, Sessions, Window
from meander.schemas.option_values import checked_number

LATE: Final = "late"
"""The side output of records that are late for all their windows."""


@dataclass(frozen=True, slots=True)
class Emission:
    """The times at which a window gives results, besides its close."""

    each: bool = False
    """Whether each record gives the result so far, in place of the close."""
    every_ms: int | None = None
    """The milliseconds of logical time after which a window that has changed gives its result."""

    @staticmethod
    def of(operator: str, emit: object) -> Emission:
        """Return the emission that a user asks for. Raises SetupError for any other value.

        >>> Emission.of("views", 0.5)
        Emission(each=False, every_ms=500)
        """
        if emit in ("closed", "each"):
            return Emission(each=emit == "each")
        unit = "'closed', 'each' or seconds"
        seconds = checked_number(
            f"operator {operator!r}", "emit", emit, 0.001, MAX_SECONDS, unit=unit
        )
        return Emission(every_ms=round(seconds * 1000))

    def due(self, now_ms: int, close_ms: int) -> int:
        """Return before which time a window that changes now gives its next result."""
        if self.every_ms is None:
            return close_ms
        return min(close_ms, (now_ms // self.every_ms + 1) * self.every_ms)


class Row(NamedTuple):
    """An open window of a key, with its state. The state of the key holds it as a plain tuple."""

    start: int
    end: int
    due: int
    """Its next result holds the records before this millisecond of logical time."""
    state: object

    @property
    def window(self) -> Window:
        """Return the window."""
        return Window(self.start, self.end)


class WindowLogic(Protocol):
    """A process function of windows."""

    def init(self) -> Sequence[object]:
        """Return the state of a key without windows."""

    def step(self, context: Context, rows: Any, value: Any) -> object:  # noqa: ANN401 (as stored)
        """Apply a record."""

    def on_timer(self, context: Context, rows: Any) -> object:  # noqa: ANN401 (as stored)
        """Handle a timer of a window."""


@dataclass(frozen=True, slots=True)
class TimedWindows:
    """The logic of windows that close at a logical time. A timer has the start of its window as its
    name."""

    windows: Hopping | Sessions
    aggregation: Aggregation
    emission: Emission

    def init(self) -> Sequence[object]:
        """Return the state of a key without windows."""
        return []

    def step(self, context: Context, rows: Any, value: Any) -> object:  # noqa: ANN401 (as stored)
        """Add a record to its open windows, or send it to the late ones."""
        kept, added = [*map(Row._make, rows)], False
        for alone in self.windows.assign(context.event_ms):
            window, joined = self.windows.join(alone, [row.window for row in kept])
            if not self._is_closed(window, context.time_ms):
                kept, added = self._added(context, kept, window, joined, value), True
        if not added:
            context.emit(value, to=LATE)
        return self._state(context, kept)

    def on_timer(self, context: Context, rows: Any) -> object:  # noqa: ANN401 (as stored)
        """Give the result of a window that is due, and delete its state if it closes."""
        kept = list[Row]()
        for row in map(Row._make, rows):
            close = self._close(row.window)
            if str(row.start) != context.timer_name:
                kept.append(row)
            elif row.due > context.time_ms + 1:
                # Records have moved its close.
                kept.append(self._timed(context, row))
            elif row.due < close:
                give_in_time(self.aggregation, context, row.window, row.state)
                kept.append(self._timed(context, row._replace(due=close)))
            elif not self.emission.each:
                # A dead letter of the close holds what the window has lost.
                context._lost = {
                    "key": context.key, "start": row.start, "end": row.end, "state": row.state,
                }  # fmt: skip
                give_in_time(self.aggregation, context, row.window, row.state)
        return self._state(context, kept)

    def _close(self, window: Window) -> int:
        return window.end + self.windows.late_ms

    def _is_closed(self, window: Window, now_ms: int) -> bool:
        """Return whether a record of a logical time is late for a window."""
        return self._close(window) <= now_ms

    def _added(
        self, context: Context, rows: list[Row], window: Window, joined: Sequence[Window],
        value: object,
    ) -> list[Row]:  # fmt: skip
        """Return the rows of a key with one more record in a window, which takes the place of those
        that it has joined."""
        aggregation, before = self.aggregation, [row for row in rows if row.window in joined]
        if before:
            state = before[0].state
            for row in before[1:]:
                state = aggregation.merge(state, row.state)
            state = aggregation.add(context, window, state, value)
        else:
            state = aggregation.first(context, window, value)
        due = self.emission.due(context.time_ms, self._close(window))
        # What a window has to tell it tells at its time, also as a part of another one.
        pending = [row.due for row in before if row.due < self._close(row.window)]
        row = Row(*window, min([due, *pending]), state)
        has_timer = [one for one in before if one.start == row.start and one.due <= row.due]
        if not has_timer:
            self._timed(context, row)
        for one in before:
            if one.start != row.start:
                context.cancel(str(one.start))
        if self.emission.each:
            aggregation.give(context, window, state)
        return sorted([row, *(one for one in rows if one not in before)], key=_start)

    def _timed(self, context: Context, row: Row) -> Row:
        """Set the timer of a window."""
        context._timer_before(row.due, str(row.start))
        return row

    def _state(self, context: Context, rows: list[Row]) -> object:
        """Return the state of a key, or forget the key where no window is open."""
        if not rows:
            context.forget()
        return [tuple(row) for row in rows]


def _start(row: Row) -> int:
    return row.start


def give_in_time(aggregation: Aggregation, context: Context, window: Window, state: object) -> None:
    """Send the result of a window at a timer. Its own time is the last one of the window, so a
    window behind takes it for the time that it is about; a result so far has that of the timer."""
    context._set_own_time(min(window.end - 1, context.time_ms))
    aggregation.give(context, window, state)


@dataclass(frozen=True, slots=True)
class CountedWindows:
    """The logic of windows of a number of records. The state of a key is its open window and the
    number of records in it."""

    windows: Counts
    aggregation: Aggregation
    emission: Emission

    def init(self) -> Sequence[object]:
        """Return the state of a key without windows."""
        return []

    def step(self, context: Context, rows: Any, value: Any) -> object:  # noqa: ANN401 (as stored)
        """Add a record, and close the window with its last one."""
        at = context.event_ms
        if rows:
            start, end, before, state = rows
            window, number = Window(min(start, at), max(end, at + 1)), before + 1
            state = self.aggregation.add(context, window, state, value)
        else:
            window, number = Window(at, at + 1), 1
            state = self.aggregation.first(context, window, value)
        full = number == self.windows.size
        if full or self.emission.each:
            self.aggregation.give(context, window, state)
        if full:
            context.forget()
        return [*window, number, state]

    def on_timer(self, context: Context, rows: Any) -> object:  # noqa: ANN401 (as stored)
        """Raise, as no window of a count has a timer."""
        raise AssertionError("a window of a count has no timer")
