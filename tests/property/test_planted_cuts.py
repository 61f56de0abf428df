"""The oracle of checkpoints can fail: each of these bugs, planted in the engine, is caught in few
runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meander.dataflow.checkpoint import state_writer
from meander.dataflow.checkpoint.checkpoint_writer import CheckpointWriter
from meander.dataflow.checkpoint.in_flight_restore import InFlightRestore
from meander.dataflow.checkpoint.snapshot import SnapshotHandler
from meander.dataflow.checkpoint.state_writer import StateWriter
from meander.dataflow.checkpoint.upload import Upload
from meander.dataflow.interfaces import Rest
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.ports import InputPort
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation import in_memory
from meander.state.checkpoint.orphans import Orphans
from meander.state.keys.ids import execution_of
from meander.state.layers.retention import Retention
from meander.state.store.before_images import BeforeImages
from meander.state.store.store import Store
from meander.state.store.undo_log import UndoLog
from tests.support.property.cases import (
    KINDS,
    random_case,
    with_aborts,
    with_full_bins,
    with_some_comings_and_goings,
)
from tests.support.property.planted import expect_caught, runs
from tests.support.property.recovery_run import RecoveryRun

RUNS = 100
LATER = "states are those of later"
LATE_LETTERS = "a checkpoint does not wait for dead letters"
MOVING = "bins on their way are left out"
"""Seldom in a cut, so this is looked for in flows whose bins move again and again."""


def _nothing(*_: object) -> Any:
    return ()


def _ignored(*_: object) -> None:
    pass


_parcels = SourceOperator.partition_handoffs


def _once_more(source: Any) -> Any:
    return [
        type(one)(one.partition, Rest(max(0, one.rest.offset - 1), one.rest.end), one.maximum,
                  one.newest, one.frontier)
        for one in _parcels(source)
    ]  # fmt: skip


_freeze = Store.freeze


def _without_before_images(store: Any, bins: Any) -> Any:
    changed = _freeze(store, bins)
    store._frozen = BeforeImages(())
    return changed


_complete = CheckpointWriter.complete


def _without_what_came(persisting: Any) -> None:
    persisting._recorded.clear()
    _complete(persisting)


_part = CheckpointWriter._part


def _without_bins_on_their_way(persisting: Any) -> Any:
    persisting._contents.bin_handoffs.clear()
    return _part(persisting)


def _into_nothing(written: Any) -> None:
    written._gathered = []


def _before_it_is_durable(sending: Any) -> bool:
    for count, one in sending._under_way:
        parts = [sending._tickets.popleft() for _ in range(count)]
        places = tuple(sending._topic._pending[ticket] for ticket, _ in parts)
        sending.placed.append(sending._with_locations(one, places))
    sending._under_way.clear()
    return False


def _at_once(retention: Any, _: Any, places: Any) -> None:
    retention._delete(places)


def _of_any_earlier_life(_: Any, key: bytes) -> bool:
    return execution_of(key) is not None


def _all_of_it(resuming: Any, _: object, columns: Any) -> Any:
    return np.arange(len(columns))


BUGS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "what waits for an operator is left out": (InputPort, "waiting", property(_nothing)),  # type: ignore[dict-item]
    "what a router keeps is left out": (Exchange, "in_flight", _nothing),
    "what a stateful operator keeps is left out": (KeyedOperator, "in_flight", _nothing),
    "what was on links is left out": (CheckpointWriter, "complete", _without_what_came),
    "messages from after the cut are taken before it": (SnapshotHandler, "reach", _ignored),
    LATER: (Store, "freeze", _without_before_images),
    "sources read a record once more": (SourceOperator, "partition_handoffs", _once_more),
    MOVING: (CheckpointWriter, "_part", _without_bins_on_their_way),
    "what layers lack is left out": (StateWriter, "_send_bundle", _into_nothing),
    "a checkpoint names what is not durable": (Upload, "poll", _before_it_is_durable),
    "replaced layers are forgotten at once": (Retention, "replace", _at_once),
    "what has changed since is not undone": (UndoLog, "record", _ignored),
    "what was another's meanwhile is gone back to": (UndoLog, "drop", _ignored),
    "each worker puts back all that was in flight": (InFlightRestore, "_own_rows", _all_of_it),
    "the checkpoint of an execution is swept": (Orphans, "includes", _of_any_earlier_life),
    LATE_LETTERS: (
        Worker,
        "_delivered_dead_letters",
        lambda *_: True,
    ),
}


SHOWN = {
    "what waits for an operator is left out": 5, "what a router keeps is left out": 5,
    "what a stateful operator keeps is left out": 14, "what was on links is left out": 24,
    "messages from after the cut are taken before it": 13, LATER: 35,
    "sources read a record once more": 9,
    MOVING: 6, "what layers lack is left out": 0, "a checkpoint names what is not durable": 0,
    "replaced layers are forgotten at once": 26, "what has changed since is not undone": 5,
    "what was another's meanwhile is gone back to": 14,
    "each worker puts back all that was in flight": 0, "the checkpoint of an execution is swept": 0,
    "a checkpoint does not wait for dead letters": 5,
}  # fmt: skip
"""The seeds that show them, as it is now."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == LATER:
        # Layers alone, one after the other: they take long enough for states to change.
        monkeypatch.setattr(state_writer, "SMALL_DELTA", -1)
        monkeypatch.setattr(state_writer, "AT_ONCE", 1)

    kinds: tuple[str, ...] = KINDS
    if bug == LATE_LETTERS:
        monkeypatch.setattr(in_memory, "SLOW_DEAD_LETTERS", 0.005)
        kinds = ("faulty",)

    def recover(seed: int) -> None:
        case = with_some_comings_and_goings(with_aborts(random_case(seed, kinds)))
        RecoveryRun(with_full_bins(random_case(seed)) if bug == MOVING else case).recover()

    expect_caught(monkeypatch, BUGS[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
