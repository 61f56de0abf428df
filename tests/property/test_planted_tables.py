"""Bugs planted in tables and their joins, to see that random flows with tables catch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meander.dataflow.api import table as tables
from meander.dataflow.api.nodes import KeyedNode
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.tables import foreign_keys
from meander.dataflow.tables.copies import keys_of_bins
from meander.dataflow.tables.foreign_keys import ForeignKeyJoin
from meander.dataflow.tables.logic import TableJoin
from meander.dataflow.tables.row_expiry import RowExpiry
from meander.dataflow.tables.row_join import RowJoin
from meander.state.store.store import Databases, StateBatch
from tests.support.property.cases import Case
from tests.support.property.planted import expect_caught, runs
from tests.support.property.planted_runs import RUNS, moves, recovers, silent_case


def case_of(seed: int) -> Case:
    return silent_case(seed, "tables")


set_row, clean_rows = TableJoin._set, StateBatch._clean_rows
notified, left_sent = ForeignKeyJoin.on_notify, foreign_keys.send_left


def _lasting(self: TableJoin, batch: StateBatch, slot: int, time: int, *rest: Any) -> None:
    set_row(self, batch, slot, time + (1 << 20), *rest)


def _never_deleted(self: TableJoin, *rest: Any) -> None:
    if rest[-1] is not None:
        set_row(self, *rest)


def _at_the_first_timer(_: RowExpiry, context: Context, state: Any) -> Any:
    context.emit((context.key, None))
    context.forget()
    return state


def _inner(self: RowJoin, sides: Sequence[Any]) -> bool:
    return None not in sides


def _kept(context: Context, state: Any) -> Any:
    """A left row is not taken back from its former foreign key."""
    sent, _ = state
    if sent is not None:
        state = [None, state[1]]
    return left_sent(context, state)


def _left_alone(self: ForeignKeyJoin, context: Context, state: Any) -> Any:
    """A change of the right row reaches no left row that stays."""
    right, rows, changed, _ = state
    return notified(self, context, [right, rows, changed, None])


def _last(context: Context, state: Any, record: Any) -> Any:
    """What comes last at a time wins, not the pair."""
    context.notify()
    return [state[0], [record[-1]]]


def _first_alone(space: Any) -> Sequence[int]:
    return keys_of_bins(space)[:1]


def _unrecorded(self: StateBatch, first: int = 0) -> Any:
    """A change of a row does not count as one."""
    return clean_rows(self, first) if self._writes is None else np.zeros(0, np.int64)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "changes come after the records of their time": (
        KeyedNode, "inputs_first", property(lambda _: False),
    ),
    "a row lives a millisecond longer": (TableJoin, "_set", _lasting),
    "a deleted row stays": (TableJoin, "_set", _never_deleted),
    "a renewed row ends at its first timer": (RowExpiry, "on_timer", _at_the_first_timer),
    "a left join of tables is an inner one": (RowJoin, "_matches", _inner),
    "a row stays at its former foreign key": (foreign_keys, "send_left", _kept),
    "a right row changes in silence": (ForeignKeyJoin, "on_notify", _left_alone),
    "the former foreign key takes the new pair away": (foreign_keys, "pair_changed", _last),
    "one bin alone has a copy": (tables, "keys_of_bins", _first_alone),
}  # fmt: skip
SHOWN = dict.fromkeys(BUGS, 0) | {
    "changes come after the records of their time": 7, "a row lives a millisecond longer": 22,
    "a renewed row ends at its first timer": 2, "a left join of tables is an inner one": 2,
    "one bin alone has a copy": 28,
}  # fmt: skip
"""The seeds that show them, as it is now."""
LOST = (StateBatch, "_clean_rows", _unrecorded)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = moves(case_of, databases, 99_000_000 + 1000 * list(BUGS).index(bug))
    expect_caught(monkeypatch, BUGS[bug], move, runs(SHOWN[bug], RUNS))


def test_a_row_that_does_not_count_as_changed_is_lost_by_a_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expect_caught(monkeypatch, LOST, recovers(case_of), runs(2, RUNS))
