"""I4 at a cut: a bin is written as it was when it was frozen, whatever becomes of it meanwhile."""

from __future__ import annotations

import random

import numpy as np
import pytest

from meander.state.encoding.codec import encode, seal
from meander.state.encoding.columns import ColumnLayout
from meander.state.keys.ids import Bin, CheckpointId, ExecutionId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.store.store import Database, Store
from tests.support.state.layered_store import LayeredStore
from tests.support.state.memory_topic import BIN, MemoryTopic, drive, install
from tests.support.state.store_access import put

KEYS = 4000
AT = CheckpointId(ExecutionId(7), 1)


@pytest.fixture
def layered(old: Store) -> LayeredStore:
    return LayeredStore(old, MemoryTopic(delay=1))


def some(store: Store, rng: random.Random, most: int, state: int) -> None:
    """Change some keys, a few of which are new."""
    chosen = sorted(rng.sample(range(most), rng.randint(1, 60)))
    keys = [encode((int(BIN), n)) for n in chosen]
    put(store, [BIN] * len(keys), keys, [seal((state, n)) for n in chosen])


def written(trace: BinLayers, store: Store, rng: random.Random, most: int) -> Manifest:
    """The bin as it was frozen, written while it changes."""
    extraction = trace.write_frozen(BIN)
    assert extraction is not None
    state = 1000
    while not extraction.step(rng.randint(1, 200)):
        state += 1
        some(store, rng, most, state)
    return extraction.manifest


@pytest.mark.parametrize("seed", range(6))
def test_a_bin_is_written_as_it_was_while_it_changes_and_spills(
    layered: LayeredStore, new: Store, seed: int
) -> None:
    rng, (store, trace) = random.Random(seed), (layered.store, layered.trace)
    layered.set(0, rng.choice([50, KEYS]), (0, 0))
    if rng.random() < 0.7:
        layered.write()
        some(store, rng, KEYS, 1)
    then = dict(store.scan(BIN))
    trace.freeze(AT, [BIN], {BIN: [(5, b"a")]}, 7)
    for state in range(2, 40):
        some(store, rng, 2 * KEYS, state)
    manifest = written(trace, store, rng, 2 * KEYS)
    assert BIN not in trace.frozen
    assert install(new, manifest, layered.topic).timers == [(5, b"a")]
    assert dict(new.scan(BIN)) == then

    later = layered.write(timers=[(5, b"a")])
    new.drop(BIN)
    install(new, later, layered.topic)
    assert dict(new.scan(BIN)) == dict(store.scan(BIN)), "the next layer has what changed meanwhile"


def test_columns_are_frozen_too(workers: tuple[Database, Database]) -> None:
    layout = ColumnLayout((0,), ("int64",))
    store, other = (database.store("columns", layout=layout) for database in workers)
    topic = MemoryTopic()
    layered = LayeredStore(store, topic)
    keys = [encode((int(BIN), n)) for n in range(300)]
    change(store, keys, 1)
    then = dict(store.scan(BIN))
    layered.trace.freeze(AT, [BIN], {}, 1)
    change(store, keys[100:], 2)
    extraction = layered.trace.write_frozen(BIN)
    assert extraction is not None
    drive(extraction.step, 100)
    install(other, extraction.manifest, topic)
    assert dict(other.scan(BIN)) == then


def change(store: Store, keys: list[bytes], state: int) -> None:
    with store.open_batch(keys, np.full(len(keys), BIN)) as batch:
        batch.numbers.write(batch.slots, (np.full(len(keys), state),))


def test_a_bin_that_has_not_changed_needs_no_layer(layered: LayeredStore) -> None:
    layered.set(0, 10, 1)
    before = layered.write()
    layered.trace.freeze(AT, [BIN], {}, 2)
    layered.set(0, 5, 2)
    assert layered.trace.write_frozen(BIN) is None
    assert layered.trace.layers(BIN) == before.layers
    assert layered.store.count_changed(BIN) == 5, "what changed after it is for the next"


def test_a_checkpoint_that_is_given_up_leaves_its_changes_to_the_next(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 100, 1)
    layered.write()
    layered.set(0, 10, 2)
    layered.trace.freeze(AT, [BIN], {}, 2)
    extraction = layered.trace.write_frozen(BIN)
    assert isinstance(extraction, LayerWriter)
    layered.set(10, 10, 3)
    then = dict(layered.store.scan(BIN))
    layered.trace.thaw()
    layered.trace.freeze(AT, [BIN], {}, 3)
    assert extraction.cancelled
    layered.set(20, 10, 4)
    again = layered.trace.write_frozen(BIN)
    assert again is not None
    drive(again.step, 100)
    install(new, again.manifest, layered.topic)
    assert dict(new.scan(BIN)) == then


def test_a_frozen_bin_is_written_for_nothing_else_first(layered: LayeredStore) -> None:
    layered.set(0, 10, 1)
    layered.set(0, 10, 1, Bin(3))
    layered.trace.freeze(AT, [BIN], {}, 2)
    with pytest.raises(AssertionError, match="frozen"):
        layered.trace.write(BIN, 3, [])
    layered.trace.write(Bin(3), 3, [])
