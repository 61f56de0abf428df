"""Bugs planted where keys are forgotten, to see that flows that forget keys catch them.

Those of handoffs and compactions stand in `test_layers.py`, which meets them sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from meander.dataflow.operators.keyed.sweep import Sweep
from meander.state.encoding import expiring
from meander.state.encoding.cells import EncodedState
from meander.state.encoding.expiring import NEVER
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.delta_chains import ChainedDelta
from meander.state.layers.layer import DeltaEntries
from meander.state.store.store import Databases, StateBatch, Store
from meander.state.times.time import from_millis
from tests.support.property.cases import Case
from tests.support.property.planted import expect_caught, runs
from tests.support.property.planted_runs import RUNS, disturbed_case, moves, recovers


def case_of(seed: int) -> Case:
    return disturbed_case(seed, "forgetting")


def with_many_layers(case: Case) -> Case:
    """The same case, whose bins get a layer as often as they can, and move by small deltas."""
    return replace(case, snapshot_interval=0.001, move_memory=32 << 20, max_inflight=300)


def _alive(entries: DeltaEntries) -> DeltaEntries:
    """Return a delta without its forgotten keys."""
    states = dict(zip(entries.keys, entries.states, strict=True))
    alive = {key: state for key, state in states.items() if state is not None}
    return DeltaEntries([*alive], [*alive.values()], entries.timers)


frozen_delta, rollback, install = BinLayers.frozen_delta, Store.rollback, Store.install
remove_forgotten, begin_round = StateBatch._remove_forgotten, Sweep._begin_round


def _bundle_of_living_keys(*args: Any, **options: Any) -> ChainedDelta | None:
    found = frozen_delta(*args, **options)
    return None if found is None else found._replace(entries=_alive(found.entries))


def _rollback_to_living_keys(self: Store, *args: Any) -> Any:
    """What was forgotten since the checkpoint stays forgotten."""

    def installed(
        store: Store, bin: int, keys: list[bytes], states: Sequence[EncodedState]
    ) -> None:
        there = dict(store.scan(bin))
        some = {key: one for key, one in zip(keys, states, strict=True) if key in there}
        install(store, bin, [*some], [*some.values()])

    Store.install = installed  # type: ignore[method-assign, assignment]
    try:
        return rollback(self, *args)
    finally:
        Store.install = install  # type: ignore[method-assign]


def _silent(self: StateBatch) -> None:
    """A deletion counts as no change, so no layer names it."""
    add, self._changes.add = self._changes.add, lambda *_: None  # type: ignore[method-assign]
    remove_forgotten(self)
    self._changes.add = add  # type: ignore[method-assign]


def _early(self: Sweep) -> bool:
    begun = begin_round(self)
    self._until += from_millis(10)
    return begun


def _forever(due: int, state: bytes) -> bytes:
    return b"\xc1\xc1" + NEVER.to_bytes(8, "big") + state


RECOVERIES: dict[str, tuple[Any, str, Any]] = {
    "a deletion is lost in a bundle": (BinLayers, "frozen_delta", _bundle_of_living_keys),
    "a deletion is lost in a layer or a handoff": (StateBatch, "_remove_forgotten", _silent),
    "a rollback restores no forgotten key": (Store, "rollback", _rollback_to_living_keys),
    "due times are lost on disk and in layers": (expiring, "with_due", _forever),
}
MOVES: dict[str, tuple[Any, str, Any]] = {
    "a sweep removes states that are not due": (Sweep, "_begin_round", _early),
}
SHOWN = {
    "a deletion is lost in a bundle": 0, "a deletion is lost in a layer or a handoff": 2,
    "a rollback restores no forgotten key": 13, "due times are lost on disk and in layers": 3,
    "a sweep removes states that are not due": 2,
}  # fmt: skip
"""The seeds that show them, as it is now."""


@pytest.fixture(autouse=True)
def small_chunks() -> None:
    """Let chunks and bundles be as large as in a real flow, so that more checkpoints complete."""


@pytest.mark.parametrize("bug", RECOVERIES)
def test_a_planted_bug_is_caught_by_a_recovery(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_caught(monkeypatch, RECOVERIES[bug], recovers(case_of), runs(SHOWN.get(bug, 0), RUNS))


@pytest.mark.parametrize("bug", MOVES)
def test_a_planted_bug_is_caught_where_bins_move(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = 97_000_000 + 1000 * list(MOVES).index(bug)
    move = moves(lambda seed: with_many_layers(case_of(seed)), databases, first)
    expect_caught(monkeypatch, MOVES[bug], move, runs(SHOWN.get(bug, 0), RUNS))
