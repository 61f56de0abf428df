"""The oracle test can fail: each of these bugs, planted in the engine, is caught in few runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from dataflow import sim
from dataflow.migrate.arrivals import Arrivals
from dataflow.migrate.migrator import Migrator
from dataflow.migrate.routing import Routing
from dataflow.operators.keyed import Keyed
from dataflow.operators.router import Router
from dataflow.operators.rows import Rows
from dataflow.operators.timers import Timers
from state.antichain import Antichain
from state.store import Database
from tests.property.cases import random_case
from tests.property.test_migration_oracle import Run

RUNS = 12


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("stores"), 32 << 20)
    yield database
    database.close()


def _settle_early(routing: Any, _: Antichain) -> None:
    if routing._changes:
        _, _, moves, member = routing._changes.pop(0)
        routing._owners[member] = moves.target


def _only_data(keyed: Any) -> Antichain:
    return Antichain.of(*(time for port in keyed._inputs for time in port.frontier))


_receive = Router._receive


def _unbound(router: Any) -> bool:
    router._control = Antichain
    return _receive(router)


def _never_frozen(timers: Any, bin: int, time: int) -> None:
    timers._departures.setdefault(bin, []).append(time)


PLANTED: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "records do not wait for their bin": (Arrivals, "stash", lambda self, rows, bins: rows),
    "state is taken before it is final": (
        Migrator,
        "_due",
        lambda self, outlet: outlet.departures[:8],
    ),
    "the old copy stays for ever": (Migrator, "_forget", lambda self: None),
    "timers fire where the bin was": (Timers, "depart", _never_frozen),
    "records are applied as they come": (Rows, "sorted", lambda self: self),
    "records are routed before commands are known": (
        Router,
        "_receive",
        _unbound,
    ),
    "a move is folded in before it is decided": (Routing, "settle", _settle_early),
    "a worker applies what it may not own": (Keyed, "_passed", _only_data),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(
    bug: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted = PLANTED[bug]
    monkeypatch.setattr(owner, method, planted)
    monkeypatch.setattr(sim, "MOST_ACTIONS", 30_000)
    namespace = count(1_000_000 * (1 + list(PLANTED).index(bug)))
    failures = 0
    for seed in range(RUNS):
        try:
            Run(random_case(seed)).check(database, next(namespace))
        except Exception:
            failures += 1
            break
    assert failures
