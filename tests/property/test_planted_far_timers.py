"""Bugs planted in far timers, to see that flows that move, fail and start again catch them.

`test_spilling_timers.py` meets them in the structure alone, and more of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meander.dataflow.operators.keyed.spilling_queue import SpillingQueue
from meander.dataflow.progress.capability import CapabilityError
from meander.state.encoding.timers import Timer, row_key
from meander.state.keys.ids import Bin
from meander.state.store import timer_rows
from meander.state.store.store import Databases, RowChange, Store
from meander.state.store.timer_rows import TimerRows
from tests.support.property.cases import Case
from tests.support.property.planted import expect_caught, runs
from tests.support.property.planted_runs import RUNS, disturbed_case, moves, recovers


def case_of(seed: int) -> Case:
    """A case whose timers are all far, or nearly so."""
    return replace(disturbed_case(seed, "timers", "connect"), room=300)


add, load = TimerRows.add, TimerRows.load
set_horizon, write_rows = SpillingQueue._set_horizon, Store.write_rows


def _lost(rows: TimerRows, bin: Bin | None = None) -> None:
    """A bin leaves, and a checkpoint begins, ahead of the last rows."""


def _unseen(rows: TimerRows, bin: Bin) -> bool:
    """The rows of a bin that arrives, or restarts, are not seen."""
    return False


def _stays(queue: SpillingQueue, bin: Bin, timer: Timer) -> None:
    if queue._horizon(bin) is None:
        set_horizon(queue, bin, timer)


def _unindexed(rows: TimerRows, bin: Bin, clock: Any, timer: Timer, **options: Any) -> None:
    """A timer with a name gets a row, and no index row."""
    if options["named"]:
        key, value = row_key(clock, *timer), timer_rows._NAMED[True]
        rows._set(RowChange(bin, key, None, value))
    else:
        add(rows, bin, clock, timer, **options)


def _left(rows: TimerRows, *args: Any, **options: Any) -> Any:
    """Timers that become near stay far as well."""
    found = load(rows, *args, **options)
    rows._pending.clear()
    return found


def _silent(store: Store, rows: Any) -> None:
    """Rows count as no changes, so no delta has them."""
    store._changes.add, add = (lambda *_: None), store._changes.add  # type: ignore[method-assign]
    write_rows(store, rows)
    store._changes.add = add  # type: ignore[method-assign]


def _without_images(store: Store, rows: Any) -> None:
    """A rollback leaves rows as they are."""
    undo, store._undo = store._undo, type(store._undo)()
    write_rows(store, rows)
    store._undo = undo


MOVES: dict[str, tuple[Any, str, Any]] = {
    "rows are lost where a bin leaves": (TimerRows, "settle", _lost),
    "rows are lost where a bin arrives": (TimerRows, "open", _unseen),
    "the horizon is not moved": (SpillingQueue, "_set_horizon", _stays),
    "an index row is forgotten": (TimerRows, "add", _unindexed),
    "rows are left after timers have fired": (TimerRows, "load", _left),
}
RECOVERIES: dict[str, tuple[Any, str, Any]] = {
    "rows are lost at a restart": (TimerRows, "open", _unseen),
    "rows are lost in a delta": (Store, "write_rows", _silent),
    "rows are lost in a rollback": (Store, "write_rows", _without_images),
}
SHOWN = {
    "rows are lost where a bin leaves": 2, "rows are lost where a bin arrives": 2,
    "rows are lost in a delta": 2, "rows are lost in a rollback": 11,
    "rows are left after timers have fired": 1,
}  # fmt: skip
"""The seeds that show them, as it is now."""


@pytest.mark.parametrize("bug", MOVES)
def test_a_planted_bug_is_caught_where_bins_move(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = moves(case_of, databases, 98_000_000 + 1000 * list(MOVES).index(bug))
    expect_caught(monkeypatch, MOVES[bug], move, runs(SHOWN.get(bug, 0), RUNS))


@pytest.mark.parametrize("bug", RECOVERIES)
def test_a_planted_bug_is_caught_by_a_recovery(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(seed: int) -> None:
        try:
            recovers(case_of)(seed)
        except CapabilityError as error:
            raise AssertionError("a timer fires late") from error

    expect_caught(monkeypatch, RECOVERIES[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
