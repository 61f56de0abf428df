"""A store of columns is a dictionary of numbers, whatever lies in slots and what in RocksDB (I4),
within the same budget (I6)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import INITIAL_SLOTS
from meander.state.encoding.codec import decode, encode
from meander.state.encoding.columns import ColumnLayout, NumberCells
from meander.state.store.memtable import ENTRY_BYTES, SLOT_BYTES, SPARSE
from meander.state.store.store import Database, Store
from tests.support.state.store_machine import StoreMachine, entries_of

SMALL = 64 << 10
"""A budget that holds some hundred keys."""
BINS = [0, 1, 65535]
PAIR = ColumnLayout((0, 0.5), ("int64", "float64"))
LONE = ColumnLayout((7,), ("int32",))
Pair = tuple[int, float]

keys = st.integers(0, 400)
bins = st.sampled_from(BINS)
numbers = st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False))


def write(
    store: Store, bin: int, entries: dict[bytes, Pair], rows: list[int] | None = None
) -> None:
    """Set the states of the keys at some rows; of all that are opened."""
    chosen = np.array(range(len(entries)) if rows is None else rows, np.int64)
    with store.open_batch([*entries], np.full(len(entries), bin)) as batch:
        states = [[*entries.values()][row] for row in chosen.tolist()]
        counts = np.array([count for count, _ in states], np.int64)
        totals = np.array([total for _, total in states], np.float64)
        batch.numbers.write(batch.slots[chosen], (counts, totals))


def read(store: Store, bin: int, wanted: list[bytes]) -> list[Pair]:
    with store.open_batch(wanted, np.full(len(wanted), bin)) as batch:
        counts, totals = batch.numbers.read(batch.slots)
    return list(zip(counts.tolist(), totals.tolist(), strict=True))


class ColumnsAgainstDictionary(StoreMachine):
    """Each bin has keys of its own, as a key's bin follows from the key."""

    @initialize()
    def open(self) -> None:
        self.open_database(SMALL)
        self.store = self.database.store("op", layout=PAIR)
        self.held: dict[int, dict[bytes, Pair]] = {bin: {} for bin in BINS}

    @rule(bin=bins, entries=st.dictionaries(keys, numbers, max_size=120), some=st.booleans())
    def write(self, bin: int, entries: dict[int, Pair], some: bool) -> None:
        """All that is opened, or each second of it: what is not set is as before."""
        own = {key(bin, number): state for number, state in entries.items()}
        rows = list(range(0, len(own), 1 + some))
        write(self.store, bin, own, rows)
        self.held[bin].update([[*own.items()][row] for row in rows])

    @rule(bin=bins, entries=st.dictionaries(keys, numbers, max_size=25))
    def install(self, bin: int, entries: dict[int, Pair]) -> None:
        own = {key(bin, number): state for number, state in entries.items()}
        self.store.install(bin, [*own], [encode(state) for state in own.values()])
        self.held[bin].update(own)

    @rule(bin=bins)
    def drop(self, bin: int) -> None:
        self.store.drop(bin)
        self.held[bin].clear()

    @rule(bin=bins, wanted=st.lists(keys, max_size=60))
    def read(self, bin: int, wanted: list[int]) -> None:
        """A key without a state reads as a new one's, and has none afterwards."""
        own = [key(bin, number) for number in wanted]
        assert read(self.store, bin, own) == [self.held[bin].get(one, PAIR.init) for one in own]

    @rule(bin=bins, taken=st.integers(min_value=0, max_value=10))
    def begin_scan(self, bin: int, taken: int) -> None:
        self.begin(self.store, bin, self.held[bin], taken)

    @invariant()
    def the_store_holds_what_it_should(self) -> None:
        for bin, held in getattr(self, "held", {}).items():
            assert list(self.store.scan(bin)) == entries_of(held)

    @invariant()
    def the_memtable_is_within_its_half_of_the_budget(self) -> None:
        if hasattr(self, "database"):
            memtable = self.database.memtable
            (table,) = memtable.tables.values()
            held = list(chain(*table.bins.values()))
            assert sorted(held) == sorted(table.slots)
            assert memtable.size <= SMALL // 2
            slots = (len(table.cells) - INITIAL_SLOTS) * (SLOT_BYTES + table.cells.cell_bytes)
            assert memtable.size == slots + sum(len(one) + ENTRY_BYTES for one in held)
            assert len(table.cells) <= max(INITIAL_SLOTS, SPARSE * len(held))


def key(bin: int, number: int) -> bytes:
    return b"%d/%d" % (bin, number)


TestColumnsAgainstDictionary = ColumnsAgainstDictionary.TestCase
TestColumnsAgainstDictionary.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state", budget_bytes=8 << 20)
    yield opened
    opened.close()


def test_columns_grow_with_their_slots() -> None:
    cells = NumberCells(LONE)
    before = len(cells)
    cells.write(np.arange(before), (np.arange(before, dtype=np.int32),))
    cells.grow()
    assert len(cells) == 2 * before
    assert cells.get(np.arange(before)) == [*range(before)], "what is there stays"
    assert [column.tolist() for column in cells.read(np.array([before]))] == [[7]], "a new key's"
    cells.clear(np.array([5]))
    assert cells.has(np.array([4, 5, before])) == [True, False, False]
    assert [column.tolist() for column in cells.read(np.array([5]))] == [[7]], "as if it were new"


def test_a_lone_number_stands_for_a_tuple_of_one(database: Database) -> None:
    """As where states are sealed: both kinds of fold read what the other has written."""
    store = database.store("op", layout=LONE)
    with store.open_batch([b"a"], np.zeros(1, np.int64)) as batch:
        batch.numbers.write(batch.slots[:1], (np.array([3], np.int32),))
    assert [(key, decode(state)) for key, state in store.scan(0)] == [(b"a", 3)]


def test_who_fails_in_the_middle_leaves_no_key_without_a_state(database: Database) -> None:
    """I4."""
    store = database.store("op", layout=LONE)

    def fail() -> None:
        with store.open_batch([b"a", b"b"], np.zeros(2, np.int64)) as batch:
            batch.numbers.write(batch.slots[:1], (np.array([3], np.int32),))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [key for key, _ in store.scan(0)] == [b"a"]


@pytest.mark.parametrize("state", ["x", 1.5, 1 << 40, (1, 2), None])
def test_a_state_that_the_columns_cannot_hold_is_refused(database: Database, state: object) -> None:
    """I4: it is not bent to fit."""
    store = database.store("op", layout=LONE)
    store.install(0, [b"a"], [encode(state)])
    with pytest.raises(MeanderError, match="over columns: it does not fit columns of int32"):
        store.open_batch([b"a"], np.zeros(1, np.int64))
