"""I4 over many layers: a bin's deltas, merged or not, are the bin; and nothing that is still needed
gets a tombstone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from meander.schemas.errors import MeanderError
from meander.state.encoding.codec import encode, seal
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.chunk import LayerCorrupt
from meander.state.layers.compaction import RATIO, layers_to_merge
from meander.state.layers.layer import CHUNK_ENTRIES
from meander.state.layers.layer_input import AHEAD_BYTES
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import Description, LayerPointer
from meander.state.layers.retention import Retention
from meander.state.layers.topic import RecordLocation, RecordMissing
from meander.state.store.store import Store
from tests.support.state.layered_store import LayeredStore
from tests.support.state.memory_topic import BIN, MemoryTopic, drive, install
from tests.support.state.store_access import put

PLACE = RecordLocation(b"", 0, 0, 0)


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic(delay=1)


@pytest.fixture
def layered(old: Store, topic: MemoryTopic) -> LayeredStore:
    return LayeredStore(old, topic)


def chunk_keys(*layers: LayerPointer) -> set[bytes]:
    return {place.key for layer in layers for place in layer.chunks}


def test_what_has_changed_since_the_last_layer_is_all_that_the_next_one_holds(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 9000, 1)
    layered.write()
    layered.set(5, 3, 2)
    manifest = layered.write()
    base, delta = manifest.layers
    assert (base.kind, base.count, base.description) == ("base", 9000, Description(0, 1, 1))
    assert (delta.kind, delta.count, delta.description) == ("delta", 3, Description(1, 2, 2))
    assert (manifest.epoch, layered.trace.layers(BIN)) == (2, manifest.layers)
    assert layered.trace.size(BIN) == sum(len(payload) for _, payload in layered.topic.records)
    installation = install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))
    assert (installation.count, installation.bytes) == (9003, layered.trace.size(BIN))


def test_a_manifest_of_a_bin_is_the_same_until_a_layer_changes(
    layered: LayeredStore,
) -> None:
    layered.set(0, 10, 1)
    first = layered.write()
    manifest = layered.trace.manifest(BIN)
    assert manifest == replace(first, epoch=0)
    assert layered.trace.manifest(BIN) is manifest, "so its bytes are written once"
    layered.set(5, 3, 2)
    assert layered.write().layers == layered.trace.manifest(BIN).layers != manifest.layers
    layered.trace.release(BIN)
    assert layered.trace.manifest(BIN).layers == ()


def test_a_bin_that_has_not_changed_needs_no_further_layer(layered: LayeredStore) -> None:
    layered.set(0, 10, 1)
    first = layered.write()
    assert layered.begin().step(1), "there is nothing to do"
    assert layered.write() == replace(first, epoch=3)
    assert layered.write(Bin(9)).layers == ()
    assert len(layered.topic.records) == 1


def test_no_layer_ends_before_it_begins_whatever_its_writer_can_tell(layered: LayeredStore) -> None:
    """A bin comes with layers up to its move's time, and its owner's frontier may be earlier."""
    layered.set(0, 10, 1)
    layered.now = 100
    layered.write()
    layered.now = 4
    layered.set(3, 2, 2)
    *_, layer = layered.write().layers
    assert layer.description == Description(101, 101, 101)


def test_the_newest_layer_says_which_timers_there_are(layered: LayeredStore, new: Store) -> None:
    layered.set(0, 1, 1)
    for timers in ([(5, b"a"), (6, b"b")], [(6, b"b")], [(6, b"b")], [], []):
        manifest = layered.write(timers=timers)
        assert install(new, manifest, layered.topic).timers == timers
    assert len(manifest.layers) == 3
    layered.merge()
    assert install(new, layered.write(), layered.topic).timers == []


def test_what_changes_while_a_delta_is_written_is_in_it_or_in_the_next(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 5000, 1)
    layered.write()
    layered.set(0, 5000, 2)
    fuzzy = layered.begin()
    fuzzy.step(100)
    layered.set(0, 5000, 3)
    drive(fuzzy.step, 100)
    manifest = layered.write()
    assert [layer.count for layer in manifest.layers] == [5000, 5000, 5000]
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_a_delta_is_written_a_budget_at_a_time(layered: LayeredStore) -> None:
    layered.set(0, 1000, 1)
    layered.write()
    layered.set(0, 1000, 2)
    extraction, steps = layered.begin(), 1
    while not extraction.step(10):
        steps += 1
    assert steps >= 100


def test_a_second_layer_cancels_the_first_whose_keys_it_takes_over(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 10, 1)
    layered.write()
    layered.set(0, CHUNK_ENTRIES * 2, 2)
    first = layered.begin()
    for _ in range(30):
        first.step(100)
    written = len(layered.topic.records)
    assert written > 1
    manifest = layered.write()
    assert not first.step(100), "it has been given up"
    assert manifest.layers[1].count == CHUNK_ENTRIES * 2
    assert layered.topic.live == chunk_keys(*manifest.layers), "what it wrote is forgotten"
    assert layered.topic.idle
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_what_little_has_changed_since_the_last_layer_is_the_remainder(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 3000, 1)
    assert layered.trace.pop_delta(BIN, [], 1 << 20) is None, "nothing lies on the topic yet"
    manifest = layered.write(timers=[(5, b"t")])
    layered.set(10, 3, 2)
    remainder = layered.trace.pop_delta(BIN, [(5, b"t")], 1 << 20)
    assert remainder is not None and remainder.timers is None
    assert dict(zip(remainder.keys, remainder.states, strict=True)) == {
        encode((int(BIN), n)): encode(2) for n in (10, 11, 12)
    }
    assert layered.store.changed_bins() == []
    install(new, manifest, layered.topic)
    new.install_changed(BIN, remainder.keys, remainder.states)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))
    heir = LayeredStore(new, layered.topic, worker=2)
    heir.trace.adopt(manifest)
    assert heir.write().layers[-1].count == 3, "it gets to the topic with the next layer"


def test_a_remainder_that_is_too_large_is_none_and_is_left_to_the_next_layer(
    layered: LayeredStore,
) -> None:
    layered.set(0, 3000, 1)
    layered.write()
    for keys, state in ((5, "x" * 300), (300, 1)):
        layered.set(0, keys, state)
        assert layered.trace.pop_delta(BIN, [], 1000) is None
        assert layered.write().layers[-1].count == keys
    timers = [(5, bytes(1001))]
    assert layered.trace.pop_delta(BIN, timers, 1000) is None
    found = layered.trace.pop_delta(BIN, timers, 1001)
    assert found is not None and found.timers == timers


def test_what_was_staged_is_completed_by_the_last_layer_alone(
    layered: LayeredStore, old: Store, new: Store
) -> None:
    layered.set(0, 5000, 1)
    staged = layered.write()
    first = install(new, staged, layered.topic)
    layered.set(10, 5, 2)
    manifest = layered.write(timers=[(9, b"t")])
    last = LayerLoader(new, manifest, layered.topic, [layer.id for layer in staged.layers])
    drive(last.step, 100)
    assert (first.count, last.count, last.timers) == (5000, 5, [(9, b"t")])
    assert list(new.scan(BIN)) == list(old.scan(BIN))
    assert new.changed_bins() == []


def test_where_nothing_came_after_what_was_staged_its_timers_stand(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 5, 1)
    manifest = layered.write(timers=[(9, b"t")])
    timers = install(new, manifest, layered.topic).timers
    layers = [layer.id for layer in manifest.layers]
    last = LayerLoader(new, manifest, layered.topic, layers, timers)
    assert last.step(1)
    assert (last.count, last.bytes, last.timers) == (0, 0, [(9, b"t")])


def test_what_was_staged_and_is_not_how_the_layers_begin_is_installed_afresh(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 50, 1)
    staged = layered.write()
    install(new, staged, layered.topic)
    layered.set(0, 50, 2)
    layered.write()
    put(new, [BIN], [b"left over"], [1])
    manifest = layered.write(renew=True)
    last = LayerLoader(new, manifest, layered.topic, [layer.id for layer in staged.layers])
    drive(last.step, 100)
    assert last.count == 50
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_layers_of_much_the_same_size_become_one_and_only_they_are_forgotten(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 20_000, 1)
    layered.write()
    for state in (2, 3):
        layered.set(0, 1000, state)
        before = layered.write()
    layered.merge()
    base, delta = layered.trace.layers(BIN)
    assert base == before.layers[0]
    assert (delta.kind, delta.count, delta.description) == ("delta", 1000, Description(1, 3, 3))
    assert layered.topic.live == chunk_keys(base, delta)
    assert layered.topic.most_fetched <= 2 * AHEAD_BYTES
    install(new, layered.write(), layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_a_base_that_its_deltas_come_near_to_is_written_again(layered: LayeredStore) -> None:
    layered.set(0, 3000, 1)
    layered.write()
    layered.set(2000, 2000, 2)
    assert len(layered.write(renew=True).layers) == 2, "until then it had none"
    layered.set(0, 5, 3)
    (base,) = layered.write(renew=True).layers
    assert (base.kind, base.count, base.description) == ("base", 4000, Description(0, 3, 3))
    assert layered.topic.live == chunk_keys(base)
    layered.set(0, 5, 4)
    assert [layer.count for layer in layered.write(renew=True).layers] == [4000, 5]


@pytest.mark.parametrize("steps", [0, 1, 5, 100])
def test_what_changed_before_a_base_that_is_given_up_is_in_the_next_layer(
    layered: LayeredStore, new: Store, steps: int
) -> None:
    for state in (1, 2):
        layered.set(0, 3000, state)
        layered.write()
    layered.set(0, 1000, 3)
    base = layered.begin(renew=True)
    for _ in range(steps):
        base.step(10)
    layered.set(500, 1000, 4)
    manifest = layered.write()
    assert not base.step(100)
    assert [layer.count for layer in manifest.layers] == [3000, 3000, 1500]
    assert layered.topic.live == chunk_keys(*manifest.layers)
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_the_base_of_a_pinned_bin_stays(layered: LayeredStore) -> None:
    for state in (1, 2):
        layered.set(0, 30, state)
        layers = layered.write().layers
    layered.trace.pin(BIN)
    assert layered.write(renew=True).layers == layers
    layered.trace.unpin(BIN)
    begun = layered.begin(renew=True)
    layered.trace.pin(BIN)
    drive(begun.step, 100)
    assert len(begun.manifest.layers) == 1
    assert layered.topic.live >= chunk_keys(*layers), "somebody reads them"
    layered.trace.unpin(BIN)
    assert layered.topic.live == chunk_keys(*begun.manifest.layers)


def test_a_layer_that_comes_while_others_are_merged_stays(
    layered: LayeredStore, new: Store
) -> None:
    for state in (1, 2, 3):
        layered.set(0, 3000, state)
        layered.write()
    for _ in range(10):
        assert layered.trace.compact(100)
    layered.set(0, 5, 3)
    layered.write()
    layered.merge()
    assert [layer.count for layer in layered.trace.layers(BIN)] == [3000, 3000, 5]
    install(new, layered.write(), layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_a_slice_of_merging_reads_or_writes_one_chunk_at_most(layered: LayeredStore) -> None:
    for state in (1, 2, 3):
        layered.set(0, CHUNK_ENTRIES * 5, state)
        layered.write()
    sent, steps = len(layered.topic.records), 0
    while layered.trace.compact(100):
        steps += 1
        assert len(layered.topic.records) <= sent + 1
        sent = len(layered.topic.records)
    assert steps >= CHUNK_ENTRIES * 5 / 100


@pytest.mark.parametrize("steps", [0, 1, 30, 60])
def test_a_pinned_bin_keeps_its_layers(layered: LayeredStore, steps: int) -> None:
    for state in (1, 2, 3):
        layered.set(0, CHUNK_ENTRIES * 3, state)
        manifest = layered.write()
    for _ in range(steps):
        layered.trace.compact(100)
    assert layered.trace.layers(BIN) == manifest.layers
    layered.trace.pin(BIN)
    layered.trace.pin(BIN)
    layered.trace.unpin(BIN)
    layered.merge()
    assert layered.trace.layers(BIN) == manifest.layers
    assert layered.topic.live == chunk_keys(*manifest.layers)
    layered.trace.unpin(BIN)
    layered.merge()
    assert layered.topic.live == chunk_keys(*layered.trace.layers(BIN))
    assert len(layered.trace.layers(BIN)) == 2
    assert layered.topic.idle


@pytest.mark.parametrize("steps", [0, 1, 30, 60])
def test_a_bin_that_leaves_keeps_the_layers_that_its_manifest_names(
    layered: LayeredStore, new: Store, steps: int
) -> None:
    for state in (1, 2, 3):
        layered.set(0, CHUNK_ENTRIES * 3, state)
        layered.write()
    for _ in range(steps):
        layered.trace.compact(100)
    manifest = layered.write()
    layered.trace.release(BIN)
    layered.merge()
    assert layered.trace.layers(BIN) == ()
    assert layered.topic.live == chunk_keys(*manifest.layers)
    assert layered.topic.idle
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_the_next_owner_goes_on_where_the_last_one_ended(
    layered: LayeredStore, new: Store, old: Store
) -> None:
    for state in (1, 2):
        layered.set(0, 300, state)
        manifest = layered.write()
    layered.trace.release(BIN)
    install(new, manifest, layered.topic)
    heir = LayeredStore(new, layered.topic, worker=2)
    heir.now = layered.now
    heir.trace.adopt(manifest)
    assert heir.trace.layers(BIN) == manifest.layers
    heir.merge()
    heir.write(renew=True)
    heir.set(0, 5, 3)
    heir.write()
    assert [layer.count for layer in heir.trace.layers(BIN)] == [300, 5]
    assert heir.topic.live == chunk_keys(*heir.trace.layers(BIN))
    old.drop(BIN)
    install(old, heir.write(), layered.topic)
    assert list(old.scan(BIN)) == list(new.scan(BIN))


def corrupt(topic: MemoryTopic, layer: LayerPointer) -> None:
    place = layer.chunks[0]
    topic.records[place.offset] = place.key, bytes(place.size)


def test_a_bin_that_is_to_be_written_again_counts_as_changed(layered: LayeredStore) -> None:
    layered.set(0, 3, 1)
    layered.begin()
    assert layered.store.changed_bins() == []
    layered.trace.cancel(BIN)
    assert layered.store.changed_bins() == [BIN]
    assert layered.write().layers[0].count == 3
    layered.trace.schedule_rewrite(BIN)
    assert layered.store.changed_bins() == [BIN]


def test_a_bin_with_unusable_layers_is_written_as_a_new_base(
    layered: LayeredStore, new: Store
) -> None:
    layered.set(0, 3000, 1)
    refused = layered.write()
    corrupt(layered.topic, refused.layers[0])
    layered.set(0, 5, 2)
    started = layered.begin()
    layered.trace.schedule_rewrite(BIN)
    assert not started.step(100)
    assert layered.topic.live >= chunk_keys(*refused.layers), "nothing stands in their place yet"
    manifest = layered.write()
    (base,) = manifest.layers
    assert (base.kind, base.count) == ("base", 3000)
    assert layered.topic.live == chunk_keys(base)
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def compact_away(topic: MemoryTopic, layer: LayerPointer) -> None:
    topic.lost.add(layer.chunks[0].key)


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (corrupt, LayerCorrupt, "layer/2/1/1 of operator 'per_plane', bin 7, chunk 0"),
        (compact_away, RecordMissing, "layer/2/1/1/0.*compaction has removed it"),
    ],
)
def test_a_layer_that_proves_unreadable_when_merged_is_named_and_replaced(
    layered: LayeredStore,
    new: Store,
    spoil: Callable[[MemoryTopic, LayerPointer], None],
    error: type[MeanderError],
    said: str,
) -> None:
    for state in (1, 2, 3):
        layered.set(0, CHUNK_ENTRIES * 3, state)
        layers = layered.write().layers
    spoil(layered.topic, layers[1])
    with pytest.raises(error, match=said):
        layered.merge()
    manifest = layered.write()
    assert layered.topic.live == chunk_keys(*manifest.layers)
    install(new, manifest, layered.topic)
    assert list(new.scan(BIN)) == list(layered.store.scan(BIN))


def test_what_was_forgotten_is_not_read_as_something_else(
    layered: LayeredStore, new: Store
) -> None:
    for state in (1, 2, 3):
        layered.set(0, 300, state)
        manifest = layered.write()
    layered.merge()
    with pytest.raises(MeanderError, match="compaction has removed it"):
        install(new, manifest, layered.topic)


def sized(*sizes: int) -> tuple[LayerPointer, ...]:
    """Layers of some sizes on the topic."""

    def layer(number: int, size: int) -> LayerPointer:
        name = LayerId(ExecutionId(1), WorkerId(0), number)
        place = replace(PLACE, key=name.key(0), size=size)
        return LayerPointer(name, Description(0, 1, 1), "delta", 1, 0, "msgpack", (place,))

    return tuple(layer(*numbered) for numbered in enumerate(sizes))


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], []),
        ([9], []),
        ([RATIO, 1], []),
        ([RATIO - 1, 1], [RATIO - 1, 1]),
        ([100 * RATIO, 50, 50], [50, 50]),
        ([100 * RATIO - 1, 50, 50], [100 * RATIO - 1, 50, 50]),
        ([100 * RATIO, 20 * RATIO, 11, 10], [20 * RATIO, 11, 10]),
        ([10, 30 * RATIO, 1], [10, 30 * RATIO, 1]),
    ],
)
def test_runs_of_similar_layers_are_merged(sizes: list[int], merged: list[int]) -> None:
    assert [layer.bytes for layer in layers_to_merge(sized(*sizes))] == merged


def test_there_are_few_layers_and_little_but_state_under_endless_updates(
    old: Store, new: Store
) -> None:
    """100,000 updates, each of one of 5,000 keys. Each layer is at least `RATIO` times as large as
    all those after it together, but for the last: so all have at most 1 + 1/RATIO times the keys of
    the first, which holds each key once; and all from one on 1 + RATIO times what all from the next
    on have: so of layers of 250 keys there are at most 1 + log(5,000 / 250 * (1 + 1/RATIO), 1 +
    RATIO) and the last, less than 6."""
    layered, chance = LayeredStore(old, MemoryTopic()), random.Random(3)
    keys = [encode(n) for n in range(5000)]
    for turn in range(400):
        chosen = [keys[chance.randrange(5000)] for _ in range(250)]
        put(old, [BIN] * 250, chosen, [seal((turn, n, "some text")) for n in range(250)])
        manifest = layered.write(renew=True)
        layered.merge()
        layers = layered.trace.layers(BIN)
        assert layered.topic.live == chunk_keys(*layers)
        bytes_of_state = sum(len(k) + len(s) + 2 for k, s in old.scan(BIN))
        assert len(layers) <= 5
        assert sum(layer.count for layer in layers) <= (1 + 1 / RATIO) * 5000 + 250
        assert layered.trace.size(BIN) <= (2 + 1 / RATIO) * (bytes_of_state + 500)
    assert len(manifest.layers) <= 5
    install(new, layered.write(), layered.topic)
    assert list(new.scan(BIN)) == list(old.scan(BIN))


def test_layers_of_an_earlier_execution_stay_while_its_checkpoint_is_retained(
    layered: LayeredStore, old: Store, topic: MemoryTopic
) -> None:
    layered.set(0, 100, 1)
    earlier = layered.write()
    now = (LayerId(ExecutionId(3), WorkerId(1), n) for n in count())
    retention = Retention(topic.delete)
    retention.start_after(7)
    later = BinLayers("per_plane", old, topic, lambda: next(now), retention)
    later.adopt(earlier)
    later.schedule_rewrite(BIN)
    drive(later.write(BIN, 5, ()).step, 100)
    assert not topic.forgotten
    retention.record_snapshot(8)
    retention.retain([7])
    assert not topic.forgotten
    retention.record_snapshot(9)
    retention.retain([8])
    assert topic.forgotten == chunk_keys(*earlier.layers)
