"""A store is a dictionary, whatever lies in memory and what in RocksDB, within one budget (I6)."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from meander.schemas.errors import MeanderError, SetupError
from meander.state.encoding.cells import INITIAL_SLOTS, SealedCells, weigh
from meander.state.encoding.codec import PLAIN, Sealed, decode, encode, seal, unseal
from meander.state.encoding.columns import ColumnLayout
from meander.state.store.memtable import ENTRY_BYTES, SLOT_BYTES, SPARSE, Memtable, StateTable
from meander.state.store.sst_writer import TableWriter
from meander.state.store.store import Database, Store
from tests.support.state.store_access import forget, got, put
from tests.support.state.store_machine import StoreMachine, entries_of

SMALL = 64 << 10
"""A budget of which some dozens of the states below are too many."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "state", budget_bytes=SMALL)
    yield opened
    opened.close()


def contents(store: Store, bin: int) -> dict[bytes, object]:
    return {key: decode(data) for key, data in store.scan(bin)}


keys = st.integers(min_value=0, max_value=40).map(encode)
states = st.one_of(
    st.integers(),
    st.tuples(st.integers(), st.floats(allow_nan=False)),
    st.integers(min_value=0, max_value=3000).map(lambda n: "x" * n),
    st.lists(st.integers(), max_size=4),
)
BINS = [0, 1, 65535]
OPERATORS = ["a", "a\x01"]
bins = st.sampled_from(BINS)
operators = st.sampled_from(OPERATORS)
entries = st.dictionaries(keys, states, max_size=25)


def own(bin: int, key: bytes) -> bytes:
    return key + b"/%d" % bin


class StoreAgainstDictionary(StoreMachine):
    """Each bin has keys of its own, as a key's bin follows from the key."""

    @initialize()
    def open(self) -> None:
        self.open_database(SMALL)
        self.stores = {name: self.database.store(name) for name in OPERATORS}
        self.oracle: dict[tuple[str, int], dict[bytes, object]] = {}

    def held(self, operator: str, bin: int) -> dict[bytes, object]:
        return self.oracle.setdefault((operator, bin), {})

    @rule(operator=operators, bin=bins, entries=entries)
    def write(self, operator: str, bin: int, entries: dict[bytes, object]) -> None:
        entries = {own(bin, key): state for key, state in entries.items()}
        sealed = [seal(state) for state in entries.values()]
        put(self.stores[operator], [bin] * len(entries), list(entries), sealed)
        self.held(operator, bin).update(entries)

    @rule(operator=operators, bin=bins, entries=entries)
    def install(self, operator: str, bin: int, entries: dict[bytes, object]) -> None:
        entries = {own(bin, key): state for key, state in entries.items()}
        encoded = [encode(state) for state in entries.values()]
        self.stores[operator].install(bin, list(entries), encoded)
        self.held(operator, bin).update(entries)

    @rule(operator=operators, bin=bins, forgotten=st.lists(keys, max_size=12), again=states)
    def forget(self, operator: str, bin: int, forgotten: list[bytes], again: object) -> None:
        """The first of them gets a state again in the same batch."""
        forgotten = [own(bin, key) for key in forgotten]
        forget(
            self.stores[operator],
            [bin] * len(forgotten),
            forgotten,
            again=forgotten[:1],
            to=seal(again),
        )
        for key in forgotten:
            self.held(operator, bin).pop(key, None)
        self.held(operator, bin).update(dict.fromkeys(forgotten[:1], again))

    @rule(operator=operators, bin=bins)
    def drop(self, operator: str, bin: int) -> None:
        self.stores[operator].drop(bin)
        self.held(operator, bin).clear()

    @rule(operator=operators, bin=bins, wanted=st.lists(keys, max_size=30))
    def fetch(self, operator: str, bin: int, wanted: list[bytes]) -> None:
        wanted = [own(bin, key) for key in wanted]
        found = got(self.stores[operator], [bin] * len(wanted), wanted)
        held = self.held(operator, bin)
        expected = {key: held[key] for key in wanted if key in held}
        assert {key: unseal(state) for key, state in found.items()} == expected

    @rule(operator=operators, bin=bins, taken=st.integers(min_value=0, max_value=10))
    def begin_scan(self, operator: str, bin: int, taken: int) -> None:
        self.begin(self.stores[operator], bin, self.held(operator, bin), taken)

    @invariant()
    def all_operators_hold_what_they_should(self) -> None:
        for operator, store in getattr(self, "stores", {}).items():
            expected = {b for (o, b), held in self.oracle.items() if o == operator and held}
            assert expected <= {*store.bins()}, "a bin may hold forgotten keys alone"
            for bin in store.bins():
                store.note_empty(bin)
            assert store.bins() == sorted(expected)
            for bin in BINS:
                held = self.held(operator, bin)
                assert list(store.scan(bin)) == entries_of(held)
                assert store.count(bin) == len(held)

    @invariant()
    def the_memtable_is_within_its_half_of_the_budget(self) -> None:
        if hasattr(self, "database"):
            memtable = self.database.memtable
            assert memtable.size <= SMALL // 2
            held = 0
            for table in memtable.tables.values():
                keys = list(chain(*table.bins.values()))
                assert sorted(keys) == sorted(table.slots)
                held += sum(len(key) + ENTRY_BYTES for key in keys)
                held += sum(map(weigh, table.cells.get(table.find(keys))))
                held += (len(table.cells) - INITIAL_SLOTS) * (SLOT_BYTES + table.cells.cell_bytes)
                assert len(table.cells) <= max(INITIAL_SLOTS, SPARSE * len(keys))
            assert memtable.size == held


TestStoreAgainstDictionary = StoreAgainstDictionary.TestCase
TestStoreAgainstDictionary.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None
)


def test_many_more_keys_than_fit_in_memory_stay_correct(database: Database) -> None:
    store, chance = database.store("op"), random.Random(1)
    oracle: dict[bytes, object] = {}
    for turn in range(200):
        chosen = [chance.randrange(20_000) for _ in range(200)]
        keys = [encode(n) for n in chosen]
        bins = [n % 16 for n in chosen]
        found = got(store, bins, keys)
        assert found.keys() == {key for key in keys if key in oracle}
        assert all(unseal(found[key]) == oracle[key] for key in found)
        written = {key: (turn, key, float(turn)) for key in keys}
        put(store, bins, keys, [written[key] for key in keys])
        oracle.update(written)
    assert sum(store.count(bin) for bin in range(16)) == len(oracle)
    assert {k: v for b in range(16) for k, v in contents(store, b).items()} == oracle


def test_the_last_of_equal_keys_in_one_write_wins(database: Database) -> None:
    store = database.store("op")
    put(store, [0, 0], [b"k", b"k"], [1, 2])
    assert got(store, [0], [b"k"]) == {b"k": 2}


def test_what_is_installed_replaces_what_was_written(database: Database) -> None:
    store = database.store("op")
    put(store, [0, 0], [b"k", b"other"], [1, 2])
    store.install(0, [b"k"], [encode(3)])
    assert contents(store, 0) == {b"k": 3, b"other": 2}
    assert unseal(got(store, [0], [b"k"])[b"k"]) == 3


def test_none_is_a_state_and_not_an_absence(database: Database) -> None:
    store = database.store("op")
    put(store, [0], [b"k"], [None])
    assert got(store, [0, 0], [b"k", b"absent"]) == {b"k": None}


def test_a_scan_is_in_key_order_and_ends_with_its_bin(database: Database) -> None:
    store = database.store("op")
    for bin in (0, 1, 255, 256, 65535):
        keys = [bytes([n]) * size for n in (0, 255, 7) for size in (1, 3)]
        store.install(bin, keys, [encode(bin)] * len(keys))
        put(store, [bin], [b"in memory %d" % bin], [bin])
    for bin in (0, 1, 255, 256, 65535):
        found = list(store.scan(bin))
        assert [key for key, _ in found] == sorted({b"in memory %d" % bin, *keys})
        assert {decode(data) for _, data in found} == {bin}
    assert list(store.scan(2)) == []


def test_scans_do_not_leak_into_the_next_bin_when_memory_is_reused(database: Database) -> None:
    store = database.store("op")
    for bin in range(200):
        store.install(bin, [b"%d" % n for n in range(20)], [b"s"] * 20)
    scans = [store.scan(bin) for bin in range(200)]
    litter = [bytes([255]) * size for size in range(64) for _ in range(20)]
    assert [sum(1 for _ in scan) for scan in scans] == [20] * 200
    assert litter


def test_one_state_larger_than_the_memtable_goes_to_disk(database: Database) -> None:
    store = database.store("op")
    put(store, [0], [b"k"], ["x" * SMALL])
    assert database.memtable.size == 0
    assert unseal(got(store, [0], [b"k"])[b"k"]) == "x" * SMALL


def test_what_is_written_as_bytes_comes_back_as_bytes_from_memory_and_disk(
    database: Database,
) -> None:
    store = database.store("op")
    put(store, [0], [b"k"], [encode([1])])
    in_memory = unseal(got(store, [0], [b"k"])[b"k"])
    put(store, [1], [b"other"], ["x" * SMALL])
    assert database.memtable.size == 0
    assert in_memory == unseal(got(store, [0], [b"k"])[b"k"]) == encode([1])


def test_a_database_starts_empty_whatever_lies_there(tmp_path: Path) -> None:
    first = Database(tmp_path, SMALL)
    first.store("op").install(0, [b"k"], [encode(1)])
    first.close()
    second = Database(tmp_path, SMALL)
    assert second.store("op").bins() == []
    second.close()


def test_a_second_process_is_kept_out(tmp_path: Path, database: Database) -> None:
    with pytest.raises(SetupError, match="choose a separate folder for each worker"):
        Database(tmp_path / "state", SMALL)


def test_names_that_cannot_be_kept_apart_are_refused(database: Database) -> None:
    class Impostor:
        name = PLAIN.name

        def encode(self, state: object, /) -> bytes:
            return b""

        def decode(self, data: bytes, /) -> object:
            return None

    with pytest.raises(MeanderError, match="NUL"):
        database.store("a\0b")
    with pytest.raises(MeanderError, match="may write other bytes; rename it"):
        database.store("op", Impostor())


def test_many_operators_and_bins_share_one_budget(tmp_path: Path) -> None:
    budget = 4 << 20
    database = Database(tmp_path, budget)
    keys = [b"%04d" % n for n in range(256)]
    stores = [database.store(f"operator {n}") for n in range(60)]
    for store in stores:
        for bin in range(0, 256, 8):
            put(store, [bin] * 8, keys[bin : bin + 8], ["x" * 1000] * 8)
            assert database.memory_bytes() <= budget
    for store in stores:
        for bin in range(0, 256, 8):
            assert len(got(store, [bin] * 8, keys[bin : bin + 8])) == 8
            assert database.memory_bytes() <= budget
    database.close()


@pytest.mark.parametrize("layout", [None, ColumnLayout((0.0,) * 20, ("float64",) * 20)])
def test_what_one_operator_has_had_is_free_for_the_others(
    tmp_path: Path, layout: ColumnLayout | None
) -> None:
    """I6: as Python counts it; each of four operators alone would fill the memtable."""
    half = 4 << 20
    database = Database(tmp_path, 2 * half)
    lots = [[b"%d" % (lot * 1000 + n) for n in range(1000)] for lot in range(30)]
    tracemalloc.start()
    stores = [database.store(f"operator {n}", layout=layout) for n in range(4)]
    for store in stores:
        for lot in lots:
            with store.open_batch(lot, np.arange(1000) % 256) as batch:
                if layout is None:
                    for slot in batch.slots.tolist():
                        batch.sealed[slot] = 1.5 * slot
                else:
                    batch.numbers.write(batch.slots, tuple(np.ones(1000) for _ in range(20)))
        taken, _ = tracemalloc.get_traced_memory()
        assert half // 2 < taken < half * 5 // 4
    for bin in range(256):
        for store in stores:
            store.drop(bin)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert database.memtable.size == 0
    assert taken < half // 4, "their bins have left"
    database.close()


def test_the_largest_operator_makes_room(tmp_path: Path) -> None:
    """One with few keys that are asked for all the time keeps them, whoever was opened first."""
    database = Database(tmp_path, SMALL)
    hot, cold = database.store("hot"), database.store("cold")
    for turn in range(100):
        put(hot, [0] * 20, [b"%d" % n for n in range(20)], [turn] * 20)
        put(cold, [0] * 20, [b"%d/%d" % (turn, n) for n in range(20)], [turn] * 20)
    held = {table.prefix: len(table.slots) for table in database.memtable.tables.values()}
    assert held[b"hot\0"] == 20
    assert 20 < held[b"cold\0"] < 2000
    database.close()


RESIDENT = """
import sys
import numpy as np
from meander.state.store.store import Database

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

database = Database(sys.argv[1], budget_bytes=32 << 20)
stores = [database.store(f"operator {n}") for n in range(20)]
before = resident()
for turn in range(1000):
    keys = [b"%d/%d" % (turn, n) for n in range(100)]
    states = [(turn, n, "x" * (1500 + n)) for n in range(100)]
    with stores[turn % 20].open_batch(keys, np.full(100, turn % 256)) as batch:
        for slot, state in zip(batch.slots.tolist(), states):
            batch.sealed[slot] = state
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read there")
def test_the_process_grows_by_no_more_than_the_budget_says(tmp_path: Path) -> None:
    """160 MB of state, written through a budget of 32 MB."""
    command = [sys.executable, "-c", RESIDENT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 64 << 20


def test_weights_grow_with_what_they_weigh() -> None:
    small, large = (1, "a"), (1, "a" * 1000)
    assert weigh(large) >= weigh(small) + 999
    assert weigh((small, small)) > 2 * weigh(small)
    assert weigh((1, (2, large))) > weigh(large)
    assert weigh(Sealed(b"x" * 5000)) > 5000


def spilled(memtable: Memtable, count: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    group, entries = memtable.spill(count)
    return group, list(entries)


def test_the_memtable_spills_oldest_first(database: Database) -> None:
    store, memtable = database.store("op"), database.memtable
    a, b = b"op\0\x00\x01", b"op\0\x00\x02"
    put(store, [1, 2, 1], [b"x", b"y", b"z"], [10, 20, 30])
    assert spilled(memtable, 1) == (a, [(a + b"x", encode(10))])
    put(store, [1, 1], [b"w", b"z"], [40, 50])
    assert spilled(memtable, 9) == (a, [(a + b"z", encode(50)), (a + b"w", encode(40))])
    assert spilled(memtable, 9) == (b, [(b + b"y", encode(20))])
    (table,) = memtable.tables.values()
    assert (memtable.size, table.slots, table.bins) == (0, {}, {})


def test_slots_are_used_again_and_grow_in_number_where_none_is_free() -> None:
    table = StateTable(b"op", SealedCells())
    many = [b"%d" % n for n in range(3 * INITIAL_SLOTS)]
    first = table.insert(dict.fromkeys(many, 7))
    assert len(set(first.tolist())) == len(many)
    table.cells.load(first, [encode(n) for n in range(len(many))])
    table.remove(many[::2], [7] * len(many[::2]))
    again = table.insert({b"new %d" % n: 8 for n in range(len(many) // 2)})
    assert {*again.tolist()} <= {*range(4 * INITIAL_SLOTS)}
    kept = table.cells.get(table.find(many[1::2]))
    assert [unseal(state) for state in kept] == list(range(1, len(many), 2)), "who stays keeps it"
    assert not any(table.cells.has(again)), "who comes has none"
    assert (len(table.bins[7]), len(table.bins[8])) == (len(many[1::2]), len(again))


def test_an_operators_states_are_opened_once(database: Database) -> None:
    database.store("op")
    with pytest.raises(MeanderError, match="it is open already"):
        database.store("op")


def test_a_full_disk_is_reported_with_its_remedy(database: Database) -> None:
    database.rocks.folder.rmdir()
    with pytest.raises(SetupError, match="; check that its disk has room"):
        database.rocks.ingest([b"a table"])


def test_a_table_for_which_the_disk_has_no_room_is_an_error_that_names_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = TableWriter(tmp_path, b"operator")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        writer.put([b"%d" % n for n in range(9)], [bytes(1000)] * 9)
        with pytest.raises(SetupError, match=r"the table .*writing: .*File too large; check that"):
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
