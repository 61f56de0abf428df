"""Timers over a store of their own, for tests that have no operator."""

from __future__ import annotations

from functools import cache
from itertools import count
from tempfile import TemporaryDirectory

from meander.dataflow.operators.keyed.timers import Timers
from meander.state.keys.ids import Bin
from meander.state.store.store import Database, Store
from meander.state.store.timer_rows import TimerRows

_stores = count()


@cache
def _database() -> tuple[TemporaryDirectory[str], Database]:
    folder = TemporaryDirectory()
    return folder, Database(f"{folder.name}/db", budget_bytes=4 << 20)


def new_store() -> Store:
    """An empty store."""
    return _database()[1].store(f"timers {next(_stores)}")


def new_timers(near_bytes: int | None = None, store: Store | None = None) -> Timers:
    """Timers, of which about so many bytes are near; without a number the usual ones."""
    timers = Timers(TimerRows(store or new_store()))
    if near_bytes is not None:
        timers.set_max_bytes(near_bytes)
    return timers


def carried(timers: Timers, store: Store, bin: Bin) -> tuple[list[tuple[int, bytes]], Store]:
    """What a bin takes along: its near timers, and its rows in another store. It has left."""
    timers.settle(bin)
    near, entries, other = timers.near(bin), [*store.scan(bin)], new_store()
    timers.remove_departed(bin)
    other.install(bin, [key for key, _ in entries], [state for _, state in entries])
    return near, other
