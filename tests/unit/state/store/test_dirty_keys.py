"""A store knows which keys have changed since they were last taken, each of them once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meander.state.encoding.codec import encode, seal
from meander.state.encoding.columns import ColumnLayout
from meander.state.store.dirty_keys import KEY_BYTES, UNSORTED_KEYS
from meander.state.store.store import Database, Store
from tests.support.state.store_access import got, put

BUDGET = 1 << 20
NOTED = BUDGET // 32
"""Bytes of changed keys in memory."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state", BUDGET)
    yield opened
    opened.close()


@pytest.fixture
def store(database: Database) -> Store:
    return database.store("op")


def some(count: int, first: int = 0) -> list[bytes]:
    return [encode(n) for n in range(first, first + count)]


def write(store: Store, bin: int, keys: list[bytes], state: object = 1) -> None:
    put(store, [bin] * len(keys), keys, [seal(state)] * len(keys))


def taken(store: Store, bin: int) -> list[bytes]:
    """The keys of a bin that have changed, in order, once all is taken."""
    keys = sorted(store.pop_changes(bin))
    store.collect_states(bin, keys)
    return keys


def test_what_was_set_has_changed_until_it_is_taken(store: Store) -> None:
    write(store, 3, [b"b", b"a", b"b"])
    write(store, 5, [b"c"])
    assert store.changed_bins() == [3, 5]
    assert taken(store, 3) == [b"a", b"b"]
    assert taken(store, 3) == []
    assert store.changed_bins() == [5]


def test_what_changes_again_after_it_was_taken_is_taken_again(store: Store) -> None:
    write(store, 3, some(5))
    taken(store, 3)
    write(store, 3, some(2))
    assert taken(store, 3) == some(2)


def test_a_key_that_was_lent_and_got_no_state_has_not_changed(store: Store) -> None:
    write(store, 3, [b"a"])
    taken(store, 3)
    with store.open_batch([b"a", b"none"], np.array([3, 3])) as batch:
        batch.sealed[batch.slots[0]] = 2
    assert taken(store, 3) == [b"a"]
    got(store, [3], [b"none"])
    assert store.changed_bins() == []


def test_columns_that_were_written_have_changed(database: Database) -> None:
    store = database.store("columns", layout=ColumnLayout((0,), ("int64",)))
    with store.open_batch([b"a", b"b"], np.array([3, 3])) as batch:
        batch.numbers.write(batch.slots[:1], (np.array([7]),))
    assert taken(store, 3) == [b"a"]
    assert store.collect_states(3, [b"a"]) == [encode(7)]


def test_what_was_spilled_meanwhile_has_changed_still(store: Store) -> None:
    keys = some(20_000)
    for first in range(0, len(keys), 500):
        write(store, 3, keys[first : first + 500], "x" * 40)
    assert taken(store, 3) == sorted(keys)
    assert store.changed_bins() == []
    got(store, [3] * 100, keys[:100])  # brings them back into memory, and may have changed them
    assert taken(store, 3) == sorted(keys[:100])


def test_what_is_noted_in_memory_is_bounded_and_the_rest_is_on_disk(
    database: Database, store: Store
) -> None:
    keys = some(4 * NOTED // KEY_BYTES)
    other = database.store("op\x01")
    for first in range(0, len(keys), 100):
        write(store, first % 7, keys[first : first + 100])
        write(other, first % 7, keys[first : first + 100])
        assert database._changes_size() <= NOTED
    found = [key for bin in range(7) for key in taken(store, bin)]
    assert sorted(found) == sorted(keys)
    assert store.changed_bins() == []
    assert other.changed_bins() == list(range(7))


def test_a_hot_key_takes_no_more_room_than_one(database: Database, store: Store) -> None:
    hot = [b"k"] * (UNSORTED_KEYS + 1)
    write(store, 3, hot)
    assert database._changes_size() == KEY_BYTES + 1
    assert taken(store, 3) == [b"k"]
    assert database._changes_size() == 0


@pytest.mark.parametrize("count", [10, 20_000])
def test_what_is_installed_has_not_changed_nor_what_it_takes_the_place_of(
    store: Store, count: int
) -> None:
    keys = some(count)
    write(store, 3, keys)
    store.install(3, keys[:5], [encode(2)] * 5)
    assert taken(store, 3) == sorted(keys[5:])
    write(store, 3, keys[:1])
    assert taken(store, 3) == keys[:1]


@pytest.mark.parametrize("count", [10, 20_000])
def test_a_bin_that_is_dropped_has_not_changed(store: Store, count: int) -> None:
    write(store, 3, some(count))
    write(store, 4, [b"other"])
    store.drop(3)
    assert store.changed_bins() == [4]
    write(store, 3, [b"new"])
    assert taken(store, 3) == [b"new"]


def test_what_is_given_back_is_taken_again_and_once(store: Store) -> None:
    write(store, 3, some(5))
    keys = store.pop_changes(3)
    store.collect_states(3, keys[:3])
    write(store, 3, some(2))
    store.restore_changes(3, keys)
    assert taken(store, 3) == sorted(some(5))
    assert taken(store, 3) == []


def test_slots_that_change_hands_say_nothing_of_their_new_keys(store: Store) -> None:
    keys = some(500)
    write(store, 3, keys)
    write(store, 4, some(10, first=1000))
    taken(store, 4)
    store.drop(3)  # its slots are free, and those of the other bin are compacted
    got(store, [3] * len(keys), keys)
    assert store.changed_bins() == []
    write(store, 4, some(1, first=1000))
    write(store, 3, keys[:3])
    assert (taken(store, 3), taken(store, 4)) == (keys[:3], some(1, first=1000))


def test_states_are_read_from_memory_and_disk_as_they_are_now(store: Store) -> None:
    keys = some(20_000)
    for first in range(0, len(keys), 500):
        write(store, 3, keys[first : first + 500], "x" * 40)
    write(store, 3, keys[::1000], ("now",))
    asked = sorted(keys[::500])
    expected = [encode(("now",)) if k in set(keys[::1000]) else encode("x" * 40) for k in asked]
    assert store.collect_states(3, asked) == expected
    assert store.changed_bins() == [3]


def test_a_bin_that_is_marked_has_changed_until_it_is_looked_at(store: Store) -> None:
    store.mark_changed(3)
    store.mark_changed(4)
    store.mark_changed(5)
    assert taken(store, 3) == []
    store.drop_changes(4)
    store.drop(5)
    assert store.changed_bins() == []
