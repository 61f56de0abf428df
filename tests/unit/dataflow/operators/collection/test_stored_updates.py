"""The entries of a bin are what its traces hold, and not much more (I2, I4)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.operators.collection import stored_updates
from meander.dataflow.operators.collection.stored_updates import StoredUpdates
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
from meander.state.collections.trace import Trace
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.store.store import Database, Store
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import Row, rows_of

SPACE = BinSpace(2)
KEYS = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    database = Database(tmp_path / "states", 8 << 20)
    yield database.store("join")
    database.close()


DICTIONARY = Dictionary()
NUMBERS = [UpdateCoding(DICTIONARY, key=False, value=False)] * 2


class Traces:
    """Two traces and their stored updates."""

    def __init__(self, store: Store) -> None:
        self.traces = Trace(1), Trace(1)
        self.readers = [trace.reader() for trace in self.traces]
        self.stored = StoredUpdates(
            store,
            SPACE,
            lambda trace, *hashes: (0, self.traces[trace].between(*hashes)),
            DICTIONARY,
            NUMBERS,
        )

    def add(self, trace: int, now: int, rows: Sequence[Row]) -> None:
        """One step of one trace, at one time."""
        lower, upper = Antichain.of(now), Antichain.of(now + 1)
        held = self.traces[trace].upper
        layer = layer_of(Updates.of([*rows]), LayerDescription(held, upper, held))
        self.traces[trace].insert(layer)
        self.readers[trace].advance(lower)
        for some in layer.updates():
            self.stored.add(trace, some)

    def sums(self, bin: Bin) -> Counter[tuple[int, int, int]]:
        """The counts of the rows of a bin, by trace, key and value."""
        width = 64 - SPACE.bits
        found = Counter[tuple[int, int, int]]()
        for number, trace in enumerate(self.traces):
            for key, value, _, diff in rows_of(trace.between(bin << width, (bin + 1 << width) - 1)):
                found[number, key, value] += diff
        return Counter({row: count for row, count in found.items() if count})


def stored_sums(store: Store, bin: Bin) -> Counter[tuple[int, int, int]]:
    found = Counter[tuple[int, int, int]]()
    loaded = StoredUpdates(store, SPACE, lambda *_: (0, iter(())), DICTIONARY, NUMBERS).load(bin)
    for number, updates in loaded.items():
        assert set(SPACE.bins_of(hashes_of(updates.keys)).tolist()) == {bin}
        for key, value, _, diff in rows_of([updates]):
            found[number, key, value] += diff
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("seed", range(8))
def test_the_entries_of_each_bin_hold_what_the_traces_hold(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_updates, "BUFFER_ROWS", 40)
    monkeypatch.setattr(stored_updates, "PIECE_ROWS", 8)
    monkeypatch.setattr(stored_updates, "SPARE_PIECES", 2)
    rng, traces, rewritten = random.Random(seed), Traces(store), 0
    for now in range(200):
        rows = [
            (rng.randrange(KEYS), rng.randrange(3), (now,), rng.choice([1, 1, -1]))
            for _ in range(rng.randrange(12))
        ]
        traces.add(rng.randrange(2), now, rows)
        rewritten += traces.stored.compact(rng.choice([0, 10, 100]))
        if rng.random() < 0.1:
            traces.stored.write()
            for bin in map(Bin, range(SPACE.count)):
                assert stored_sums(store, bin) == traces.sums(bin)
    assert rewritten


def test_a_bin_whose_rows_cancel_each_other_takes_few_entries(store: Store) -> None:
    traces = Traces(store)
    for now in range(1000):
        traces.add(0, now, [(7, now % 5, (now,), 1 if now // 5 % 2 else -1)])
        traces.stored.write()
        traces.stored.compact(100)
    (bin,) = store.bins()
    filled = [key for key, data in store.scan(bin) if len(data) > 8]
    assert len(filled) <= stored_updates.SPARE_PIECES + 2


def test_a_bin_that_has_left_comes_back_with_its_new_entries_alone(store: Store) -> None:
    traces = Traces(store)
    traces.add(0, 0, [(7, 1, (0,), 1)])
    traces.stored.write()
    (bin,) = store.bins()
    traces.stored.forget(bin)
    store.drop(bin)
    assert traces.stored.load(bin) == {}
    traces.add(0, 1, [(7, 2, (1,), 1)])
    traces.stored.write()
    assert stored_sums(store, bin) == Counter({(0, 7, 2): 1})
