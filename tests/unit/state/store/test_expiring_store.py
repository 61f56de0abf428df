"""A due time lies with the state of its key, wherever that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from meander.schemas.errors import MeanderError
from meander.state.encoding.codec import encode
from meander.state.encoding.columns import ColumnLayout
from meander.state.encoding.expiring import NEVER, split_due, with_due
from meander.state.keys.ids import Bin, CheckpointId, ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import Manifest
from meander.state.store.rocksdb import RocksDB
from meander.state.store.store import Database, Store
from tests.support.state.memory_topic import MemoryTopic, drive
from tests.support.state.store_access import forget, put

SMALL = 64 << 10
"""A budget that some hundred keys exceed."""
BIN = Bin(3)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "state", SMALL)) as database:
        yield database


def expiring(database: Database, name: str = "op") -> Store:
    return database.store(name, expires=True)


def set_due(store: Store, dues: dict[bytes, int]) -> None:
    with store.open_batch([*dues], np.full(len(dues), BIN)) as batch:
        for slot in batch.slots.tolist():
            batch.sealed[slot] = "state"
        batch.due[batch.slots] = [*dues.values()]


def dues(store: Store) -> dict[bytes, int]:
    return {key: split_due(data)[0] for key, data in store.scan(BIN)}


def numbered(count: int) -> dict[bytes, int]:
    return {encode(n): n + 1 for n in range(count)}


def swept(store: Store, until: int) -> None:
    for keys in store.due_keys(BIN, until, 50):
        store.forget_due(keys, np.full(len(keys), BIN), until)


def test_a_due_time_is_spilled_with_its_state(database: Database) -> None:
    store = expiring(database)
    set_due(store, numbered(2000))
    assert len(database.memtable.tables[b"op\0"].slots) < 2000
    assert dues(store) == numbered(2000)
    with store.open_batch([encode(0)], np.array([BIN])) as batch:
        assert batch.due[batch.slots].tolist() == [1]


def test_a_sweep_forgets_due_keys_in_memory_and_on_disk_alone(database: Database) -> None:
    store = expiring(database)
    set_due(store, numbered(2000))
    swept(store, until=1500)
    assert dues(store) == {key: due for key, due in numbered(2000).items() if due > 1500}
    assert (store.forgotten, store.keys) == (1500, 500)


def test_a_sweep_keeps_a_key_whose_due_time_has_moved_since_it_looked(database: Database) -> None:
    store = expiring(database)
    set_due(store, numbered(2000))
    for keys in store.due_keys(BIN, 2000, 50):
        if encode(7) in keys:
            set_due(store, {encode(7): 9000})
        store.forget_due(keys, np.full(len(keys), BIN), 2000)
    assert dues(store) == {encode(7): 9000}


def test_columns_have_due_times_too(database: Database) -> None:
    store = database.store("columns", layout=ColumnLayout((0,), ("int64",)), expires=True)
    keys = [encode(n) for n in range(3000)]
    with store.open_batch(keys, np.full(len(keys), BIN)) as batch:
        batch.numbers.write(batch.slots, (np.arange(3000),))
        batch.due[batch.slots] = np.arange(3000)
    swept(store, until=2998)
    assert list(store.scan(BIN)) == [(encode(2999), with_due(2999, encode(2999)))]


def test_a_rollback_restores_due_times_and_forgotten_keys(database: Database) -> None:
    store, at = expiring(database), CheckpointId(ExecutionId(7), 1)
    set_due(store, numbered(9))
    store.record_checkpoint(at, {BIN: ()})
    set_due(store, {encode(1): 99, encode(500): 5})
    swept(store, until=6)
    store.rollback(at, [BIN])
    assert dues(store) == numbered(9)


def test_a_key_that_has_never_lain_on_disk_leaves_no_tombstone_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[bytes]()
    monkeypatch.setattr(RocksDB, "remove", lambda self, keys: removed.extend(keys))
    store = database.store("op")
    put(store, [BIN, BIN], [b"a", b"b"], [1, 2])
    store.install(BIN, [b"disk"], [encode(3)])
    forget(store, [BIN] * 3, [b"a", b"never", b"disk"])
    assert removed == [b"op\0\0\x03disk"]


def test_a_bin_whose_keys_are_all_forgotten_is_no_bin_of_the_store(database: Database) -> None:
    store = database.store("op")
    store.install(BIN, [b"a"], [encode(1)])
    store.note_empty(BIN)
    assert store.bins() == [BIN], "it holds a key"
    forget(store, [BIN], [b"a"])
    store.note_empty(BIN)
    assert store.bins() == []


class Workers:
    """Two stores between which a bin moves by its layers."""

    def __init__(self, old: Store, new: Store) -> None:
        self._new, self._topic, numbers = new, MemoryTopic(0), count()
        self.layers = BinLayers(
            "op", old, self._topic, lambda: LayerId(ExecutionId(1), WorkerId(0), next(numbers))
        )

    def move(self) -> None:
        drive(self.layers.write(BIN, 1, ()).step, 100)
        manifest = Manifest("op", BIN, 1, self.layers.layers(BIN))
        drive(LayerLoader(self._new, manifest, self._topic).step, 100)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "other", SMALL)) as database:
        yield database


def test_due_times_and_deletions_go_through_layers(database: Database, other: Database) -> None:
    old, new = expiring(database), expiring(other)
    workers = Workers(old, new)
    set_due(old, numbered(2000))
    workers.move()
    assert dues(new) == numbered(2000)
    swept(old, until=1990)
    workers.move()
    assert dues(new) == dues(old)
    assert len(dues(new)) == 10


def test_plain_states_never_expire_until_they_get_a_due_time(
    database: Database, other: Database
) -> None:
    old, new = database.store("op"), expiring(other)
    put(old, [BIN], [b"a"], ["state"])
    Workers(old, new).move()
    assert dues(new) == {b"a": NEVER}


def test_states_with_due_times_are_refused_by_a_store_without(
    database: Database, other: Database
) -> None:
    old, new = expiring(database), other.store("op")
    set_due(old, numbered(1))
    with pytest.raises(MeanderError, match=r"written with codec 'msgpack\+ttl'"):
        Workers(old, new).move()
