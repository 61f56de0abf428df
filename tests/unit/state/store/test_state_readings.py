"""A reading of a bin finds each state once, in memory and on disk, and no rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meander.state.encoding.codec import encode
from meander.state.encoding.columns import ColumnLayout
from meander.state.encoding.timers import TIMER, row_key
from meander.state.store.store import Database, RowChange, Store

KEYS = [f"{'ab'[n % 2]}{n}".encode() for n in range(400)]
NUMBERS = ColumnLayout((0, 0), ("int64", "int64"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state", budget_bytes=64 << 10)
    yield opened
    opened.close()


@pytest.fixture(params=[None, NUMBERS], ids=["objects", "numbers"])
def store(request: pytest.FixtureRequest, database: Database) -> Store:
    """A store of which most states are on disk, some of those are changed in memory, and some are
    forgotten."""
    store = database.store("op", layout=request.param)
    store.write_rows([RowChange(3, row_key(TIMER, 5, encode("a")), None, b"\0")])
    store.install(3, KEYS, [encode((n, 0)) for n in range(len(KEYS))])
    put(store, KEYS[:20], 1000)
    put(store, [b"a-new", b"b-new"], 2000)
    with store.open_batch(KEYS[20:30], np.full(10, 3)) as batch:
        batch.forget(batch.slots)
    return store


def put(store: Store, keys: list[bytes], since: int) -> None:
    with store.open_batch(keys, np.full(len(keys), 3)) as batch:
        numbers = np.arange(since, since + len(keys))
        if store.layout is not None:
            batch.numbers.write(batch.slots, (numbers, numbers * 0))
            return
        for slot, number in zip(batch.slots.tolist(), numbers.tolist(), strict=True):
            batch.sealed[slot] = (number, 0)


WANTED = {
    **{key: n for n, key in enumerate(KEYS)},
    **{key: 1000 + n for n, key in enumerate(KEYS[:20])},
    b"a-new": 2000, b"b-new": 2001,
}  # fmt: skip
for forgotten in KEYS[20:30]:
    del WANTED[forgotten]


def test_a_column_of_a_bin_has_each_state_once(store: Store) -> None:
    keys, column = store.int_column(3, 0)
    assert sorted(zip(keys, column.tolist(), strict=True)) == sorted(WANTED.items())
    assert column.dtype == np.int64
    assert store.int_column(4, 0)[0] == []


def test_the_keys_under_a_prefix_are_each_there_once(store: Store) -> None:
    found = store.keys_under(3, b"a")
    assert sorted(found) == sorted(key for key in WANTED if key.startswith(b"a"))
