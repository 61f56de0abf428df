"""Bugs planted in interval joins, to see that random flows with joins catch them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meander.dataflow.joins import kept_records
from meander.dataflow.joins.interval import LEFT, Interval
from meander.dataflow.joins.kept_records import Block, KeptRecords, KeptSide
from meander.dataflow.joins.logic import _Pass
from meander.dataflow.records.batch import Batch
from meander.state.store.store import Databases
from tests.support.property.case_run import run_of
from tests.support.property.cases import Case
from tests.support.property.intervals import rows_of
from tests.support.property.planted import expect_caught
from tests.support.property.planted_runs import RUNS, CaseOf, moves, recovers, silent_case


def case_of(seed: int) -> Case:
    return silent_case(seed, "intervals")


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> CaseOf:
    """The cases, with blocks of few records."""

    def small(seed: int) -> Case:
        monkeypatch.setattr(kept_records, "ROWS", rows_of(seed))
        return case_of(seed)

    return small


close, partners, insert = Interval.close, Interval.partners, KeptSide.insert
paired, changed = _Pass._paired, KeptSide.changed


def _at_its_close(self: Interval, own_ms: int, now_ms: int) -> bool:
    return own_ms + 1 + self.late < now_ms


def _too_soon(self: Interval, side: int, own_ms: int) -> int:
    return close(self, side, own_ms) - 1


def _without_end(self: Interval, side: int, own_ms: int) -> tuple[int, int]:
    first, last = partners(self, side, own_ms)
    return first, last - 1


def _same_for_both(self: Interval, side: int, own_ms: int) -> tuple[int, int]:
    return partners(self, LEFT, own_ms)


def _never_paired(self: KeptSide, time: int, paired: bool, value: bytes) -> None:
    insert(self, time, False, value)


def _of_left_alone(self: _Pass, kept: KeptRecords) -> int | None:
    first = kept.sides[LEFT].first
    return None if first is None else close(self._interval, LEFT, first)


def _first_of_two(self: KeptSide) -> Iterator[Block]:
    yield from [*changed(self)][:1]


def _without_own_times(self: _Pass, every: Batch) -> Batch:
    return replace(paired(self, every), extra=None)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a record counts at its very close": (Interval, "is_late", _at_its_close),
    "a record waits a millisecond too short": (Interval, "close", _too_soon),
    "the end of the interval does not count": (Interval, "partners", _without_end),
    "both sides look for partners behind them": (Interval, "partners", _same_for_both),
    "a record that has paired counts as alone": (KeptSide, "insert", _never_paired),
    "left records alone have timers": (_Pass, "_first_close", _of_left_alone),
    "of the changed blocks one is written": (KeptSide, "changed", _first_of_two),
    "the own times of results are lost": (_Pass, "_paired", _without_own_times),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = moves(small_blocks(monkeypatch), databases, 97_000_000 + 1000 * list(BUGS).index(bug))
    expect_caught(monkeypatch, BUGS[bug], move, range(RUNS))


def test_a_planted_bug_is_caught_by_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = "of the changed blocks one is written"
    expect_caught(monkeypatch, BUGS[bug], recovers(small_blocks(monkeypatch)), range(RUNS))


def test_random_joins_hold_with_small_blocks(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few records divide and go in each of these cases."""
    for seed in (3, 8):
        monkeypatch.setattr(kept_records, "ROWS", 1)
        run_of(case_of(seed)).check(databases, 97_900_000 + seed)
