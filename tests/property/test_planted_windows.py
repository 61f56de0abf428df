"""Bugs planted in windows, to see that random flows with windows catch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meander.dataflow.operators.keyed.callbacks import TimerChange
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.windows.logic import Emission, Row, TimedWindows
from meander.dataflow.windows.open_sessions import OpenSessions
from meander.dataflow.windows.pane_columns import Closing
from meander.dataflow.windows.session_columns import SessionColumns
from meander.dataflow.windows.sliding import SlidingWindows
from meander.dataflow.windows.window import Sessions, Window
from meander.state.store.store import Databases, Store
from meander.state.times.time import from_millis
from tests.support.property.cases import Case
from tests.support.property.planted import expect_caught, runs
from tests.support.property.planted_runs import RUNS, moves, recovers, silent_case


def case_of(seed: int) -> Case:
    return silent_case(seed, "windows")


on_timer, state = TimedWindows.on_timer, TimedWindows._state
join, put_timer = Sessions.join, TimedWindows._timed


def _early(self: TimedWindows, window: Window) -> int:
    return window.end + self.windows.late_ms - 1


def _lenient(self: TimedWindows, window: Window, now_ms: int) -> bool:
    return window.end + self.windows.late_ms < now_ms


def _at_first_timer(self: TimedWindows, context: Context, rows: Any) -> object:
    """A session that has grown closes by the timer that it had before."""
    kept = [row for row in rows if str(row[0]) != context.timer_name]
    for row in map(Row._make, rows):
        if str(row.start) == context.timer_name:
            self.aggregation.give(context, row.window, row.state)
    return state(self, context, [*map(Row._make, kept)])


def _kept(_: object, context: Context, rows: list[Row]) -> object:
    return [tuple(row) for row in rows]


def _first_alone(self: Sessions, window: Window, opened: Any) -> tuple[Window, Sequence[Window]]:
    found, joined = join(self, window, opened)
    return found, joined[:1]


def _untimed(_: object, context: Context, row: Row) -> Row:
    """A window that grows gets no other timer."""
    if context.timer_name is None:
        context.timer(row.due, name=str(row.start))
    return row


def _now(self: Emission, now_ms: int, close_ms: int) -> int:
    if self.every_ms is None:
        return close_ms
    return min(close_ms, now_ms + self.every_ms)


def _in_memory(self: Store, bin: int, prefix: bytes) -> list[bytes]:
    return [key for key in self._table.bins.get(bin, ()) if key.startswith(prefix)]


def _at_last_millisecond(self: Context, end_ms: int, name: str) -> None:
    """A window closes as its last millisecond begins, before records within this millisecond."""
    self._timers.append(TimerChange("timer", max(from_millis(end_ms - 1), self._time), name))


def _without_own_times(self: Batch, own: Int64s) -> Batch:
    return self


def _stays(*_: object) -> None:
    """Do nothing."""


def _none(*_: object) -> list[object]:
    return []


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a window closes a millisecond early": (TimedWindows, "_close", _early),
    "a record counts at the very close": (TimedWindows, "_is_closed", _lenient),
    "a session that has grown closes by its old timer": (TimedWindows, "on_timer", _at_first_timer),
    "a session that has grown gets no later timer": (TimedWindows, "_timed", _untimed),
    "a window closes within its last millisecond": (
        Context, "_timer_before", _at_last_millisecond,
    ),
    "the own times of results are lost": (Batch, "with_own_times", _without_own_times),
    "the state of a closed window stays": (TimedWindows, "_state", _kept),
    "records that no sliding window needs stay": (SlidingWindows, "_state", _kept),
    "of merged sessions one stays": (Sessions, "join", _first_alone),
    "results so far come by the time of the record": (Emission, "due", _now),
    "windows of columns on disk do not close": (Store, "keys_under", _in_memory),
    "a closed session of columns stays": (OpenSessions, "forget", _stays),
    "windows in panes close once": (Closing, "next_closes", _none),
    "no session of columns gets a timer as its span begins": (SessionColumns, "_begin", _stays),
}  # fmt: skip
SHOWN = dict.fromkeys(BUGS, 0) | {
    "a window closes a millisecond early": 1, "of merged sessions one stays": 41,
    "results so far come by the time of the record": 1,
    "windows of columns on disk do not close": 2, "a closed session of columns stays": 17,
    "no session of columns gets a timer as its span begins": 17,
    "windows in panes close once": 29,
    "a record counts at the very close": 1,
    "the own times of results are lost": 1,
}  # fmt: skip
"""The seeds that show them, as it is now."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = moves(case_of, databases, 98_000_000 + 1000 * list(BUGS).index(bug))
    expect_caught(monkeypatch, BUGS[bug], move, runs(SHOWN[bug], RUNS))


def test_a_planted_bug_is_caught_by_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = "the state of a closed window stays"
    expect_caught(monkeypatch, BUGS[bug], recovers(case_of), runs(SHOWN[bug], RUNS))
