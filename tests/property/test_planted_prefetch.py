"""The oracle test can fail where layers are fetched ahead of a move: each of these bugs, planted in
the engine, is caught in few runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.migration.migrator import Migrator
from meander.dataflow.operators.keyed.incoming_bins import IncomingBins
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.keyed.prefetch import NOT_PREFETCHED, PrefetchedBins
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin
from meander.state.layers.layer import NO_DELTA
from meander.state.layers.layer_writer import LayerWriter
from meander.state.store.store import Databases
from tests.support.property.case_run import DIFFERS, CaseRun
from tests.support.property.cases import (
    KINDS,
    random_case,
    with_aborts,
    with_bins_to_and_fro,
    with_full_bins,
)
from tests.support.property.planted import plant, runs

RUNS = 40
WRONG = f"{DIFFERS}|I[237]|Differing items"
"""Of results, of an invariant, or of the final states."""

_begin, _extraction, _spare, _receive = (
    IncomingBins._start_install,
    KeyedOperator.layer_writer,
    PrefetchedBins.cancel,
    Migrator._receive,
)


def _whole(arrivals: Any, time: Any, delivery: BinHandoff) -> Any:
    incoming = _begin(arrivals, time, delivery)
    if incoming.prefetched != NOT_PREFETCHED:
        incoming.loader._layers = ()
        return replace(incoming, handoff=replace(delivery, remainder=NO_DELTA))
    return incoming


def _kept(staging: Any, bin: Bin) -> None:
    staging._bins.pop(bin, None)


def _unchanged(keyed: Any, bin: Bin, at: int) -> LayerWriter:
    if keyed.bin_layers.layers(bin):
        keyed.store.drop_changes(bin)
    return _extraction(keyed, bin, at)


def _unheard(migrator: Any) -> bool:
    before = list(migrator.undecided)
    if migrator._me == 0:
        migrator._routing.revoke = lambda command, time: None
    received = _receive(migrator)
    if migrator._me == 0:
        migrator.undecided += [moves for moves in before if moves not in migrator.undecided]
    return received


PLANTED: dict[str, tuple[type, str, Callable[..., Any], tuple[str, ...], str]] = {
    "what was fetched ahead is taken for the whole": (
        IncomingBins,
        "_start_install",
        _whole,
        KINDS,
        WRONG,
    ),
    "what was fetched of a bin that stays is kept": (PrefetchedBins, "cancel", _kept, KINDS, WRONG),
    "the last layer lacks what has changed since": (
        KeyedOperator,
        "layer_writer",
        _unchanged,
        KINDS,
        WRONG,
    ),
    "one worker does not hear that nothing moves": (Migrator, "_receive", _unheard, KINDS, WRONG),
}
"""In flows of which kinds, and what is said of it."""
SHOWN = {
    "what was fetched of a bin that stays is kept": 28,
    "one worker does not hear that nothing moves": 13,
}
"""The seeds that show them, as it is now."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted, kinds, said = PLANTED[bug]
    plant(monkeypatch, owner, method, planted)
    namespace = count(1_000_000 * (301 + list(PLANTED).index(bug)))

    def tried() -> None:
        for seed in runs(SHOWN.get(bug, 0), RUNS):
            case = with_aborts(with_full_bins(random_case(seed, kinds)))
            CaseRun(case).check(databases, next(namespace))

    with pytest.raises((AssertionError, MeanderError), match=said):
        tried()


def test_a_bin_that_is_awaited_again_and_counts_as_here_is_caught(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = IncomingBins.pop_released

    def as_if_here(arrivals: Any) -> Any:
        awaited, arrivals._awaited = arrivals._awaited, {}
        released = release(arrivals)
        arrivals._awaited = awaited
        return released

    plant(monkeypatch, IncomingBins, "pop_released", as_if_here)
    namespace = count(310_000_000)

    def tried() -> None:
        # As it is now, the second shows it.
        for seed in runs(1, RUNS):
            case = with_bins_to_and_fro(random_case(seed, KINDS))
            CaseRun(case).check(databases, next(namespace))

    with pytest.raises((AssertionError, MeanderError), match=WRONG):
        tried()
