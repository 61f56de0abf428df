"""I4: the state that leaves through the state topic is the state that arrives, byte for byte."""

from __future__ import annotations

from weakref import ref

import pytest

from meander.schemas.errors import MeanderError
from meander.state.encoding.codec import encode, seal
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.chunk import Head, LayerChunk
from meander.state.layers.layer import CHUNK_ENTRIES
from meander.state.layers.layer_loader import AHEAD_BYTES, LayerLoader
from meander.state.layers.layer_writer import CHUNK_BYTES, STATE_LIMIT, WINDOW
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation
from meander.state.store.sst_writer import TABLE_BYTES
from meander.state.store.store import Database, Store
from tests.support.state.memory_topic import (
    BIN,
    LAYER,
    MemoryTopic,
    drive,
    extract,
    extraction_of,
    fill,
    install,
)
from tests.support.state.store_access import put


@pytest.mark.parametrize("delay", [0, 1, 50])
@pytest.mark.parametrize(
    ("count", "size"), [(0, 1), (1, 1), (10_000, 20), (4_000, 2_000), (5, 300_000)]
)
def test_the_bytes_that_leave_are_the_bytes_that_arrive(
    old: Store, new: Store, count: int, size: int, delay: int
) -> None:
    fill(old, count, size)
    timers = [(5 + n // 3, encode(n)) for n in range(count // 2)]
    topic = MemoryTopic(delay)
    extraction = extract(old, topic, timers)
    installation = install(new, extraction.manifest, topic)
    assert list(new.scan(BIN)) == list(old.scan(BIN))
    assert (installation.count, new.count(BIN)) == (count, count)
    assert installation.timers == timers
    sizes = [len(payload) for _, payload in topic.records]
    assert extraction.bytes == installation.bytes == sum(sizes)
    assert all(size <= 1.05 * TABLE_BYTES for size in sizes)
    assert topic.most_unplaced <= WINDOW
    assert topic.most_fetched <= AHEAD_BYTES


@pytest.mark.parametrize("budget", [1, 3, 1000, 1_000_000])
def test_the_budget_of_a_step_changes_nothing_but_the_number_of_steps(
    old: Store, new: Store, budget: int
) -> None:
    fill(old, CHUNK_ENTRIES + 10)
    topic = MemoryTopic(delay=1)
    extraction = extract(old, topic, [(9, b"k")], budget)
    assert len(topic.records) == 2
    install(new, extraction.manifest, topic, budget)
    assert list(new.scan(BIN)) == list(old.scan(BIN))


def test_a_step_does_no_more_than_its_budget(old: Store) -> None:
    fill(old, 1000)
    topic = MemoryTopic()
    extraction = extraction_of(old, topic)
    steps = 1
    while not extraction.step(10):
        steps += 1
    assert steps >= 100


def test_a_step_sends_one_chunk_at_most(old: Store) -> None:
    fill(old, 40, size=400_000)
    topic = MemoryTopic()
    extraction = extraction_of(old, topic)
    done, sent = False, 0
    while not done:
        done = extraction.step(1_000_000)
        assert len(topic.records) <= sent + 1
        sent = len(topic.records)


def test_what_is_spilled_while_it_is_extracted_is_extracted(old: Store, new: Store) -> None:
    fill(old, 2000)
    expected = list(old.scan(BIN))
    topic = MemoryTopic()
    extraction = extraction_of(old, topic)
    extraction.step(10)
    fill(old, 3000, size=400, bin=Bin(8))  # moves much of the bin from memory to disk
    drive(extraction.step, 10)
    install(new, extraction.manifest, topic)
    assert list(new.scan(BIN)) == expected


def test_an_installation_replaces_what_the_store_held_of_the_bin_alone(
    old: Store, new: Store
) -> None:
    fill(old, 10)
    put(new, [BIN, 3], [b"stale", b"other"], [1, 2])
    new.install(BIN, [b"stale too"], [encode(3)])
    topic = MemoryTopic()
    install(new, extract(old, topic).manifest, topic)
    assert list(new.scan(BIN)) == list(old.scan(BIN))
    assert new.bins() == [3, BIN]


def test_an_empty_bin_needs_no_record(old: Store, new: Store) -> None:
    topic = MemoryTopic()
    extraction = extraction_of(old, topic)
    drive(extraction.step, 1)
    assert topic.records == []
    put(new, [BIN], [b"stale"], [1])
    assert LayerLoader(new, extraction.manifest, topic).step(1)
    assert new.count(BIN) == 0


def test_a_manifest_says_what_was_written_and_comes_back_from_its_bytes(old: Store) -> None:
    fill(old, 5000, size=1000)
    topic = MemoryTopic()
    manifest = extract(old, topic).manifest
    (layer,) = manifest.layers
    assert (manifest.operator, manifest.bin, manifest.epoch) == ("per_plane", BIN, 900)
    assert layer.description == Description(lower=0, upper=900, since=900)
    assert (layer.id, layer.kind, layer.codec) == (LAYER, "base", "msgpack")
    assert layer.count == 5000
    keys = [place.key for place in layer.chunks]
    assert keys == [key for key, _ in topic.records] == [LAYER.key(n) for n in range(3)]
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_one_huge_state_has_a_chunk_of_its_own(old: Store, new: Store) -> None:
    fill(old, 3)
    put(old, [BIN], [encode(1)], [seal("x" * CHUNK_BYTES * 2)])
    topic = MemoryTopic()
    manifest = extract(old, topic).manifest
    assert [len(payload) > CHUNK_BYTES for _, payload in topic.records] == [False, True, False]
    install(new, manifest, topic)
    assert list(new.scan(BIN)) == list(old.scan(BIN))


def test_a_state_that_is_too_large_to_move_is_named(old: Store) -> None:
    put(old, [BIN], [encode("N14228")], [seal("x" * STATE_LIMIT)])
    with pytest.raises(MeanderError, match=r"'per_plane', key b'.*N14228'.*up to 8388608"):
        extract(old, MemoryTopic())


class Shouting:
    name = "shouting"

    def encode(self, state: object, /) -> bytes:
        return str(state).upper().encode()

    def decode(self, data: bytes, /) -> object:
        return data.decode().lower()


def test_a_layer_of_another_codec_is_refused_before_anything_is_dropped(
    workers: tuple[Database, Database], old: Store
) -> None:
    fill(old, 10)
    topic = MemoryTopic()
    manifest = extract(old, topic).manifest
    store = workers[1].store("shouting", Shouting())
    store.install(BIN, [b"k"], [b"HELD"])
    with pytest.raises(MeanderError, match="codec 'msgpack', and this worker's is 'shouting'"):
        LayerLoader(store, manifest, topic)
    assert store.count(BIN) == 1


GOLDEN_HEAD = Head(
    "op", Bin(3), LayerId(ExecutionId(1), WorkerId(2), 5), "base", "msgpack",
    Description(lower=0, upper=(7, 1), since=7),
)  # fmt: skip


def test_a_chunk_has_the_bytes_that_were_agreed_on() -> None:
    payload = LayerChunk([b"k"], [b"s"], [(9, b"t")]).to_bytes(GOLDEN_HEAD, 4)
    assert payload.hex() == (
        "842dd71ce6f300ee"  # checksum
        "02"  # format version
        "02040a08046f7006000e6d73677061636b000002040e0200000e"  # head
        "0000"  # no table
        "02026b00"  # keys
        "02027300"  # states
        "00"  # no forgotten keys
        "02120002027400"  # timers
    )
    assert LayerChunk.from_bytes(payload, GOLDEN_HEAD, 4).timers == [(9, b"t")]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 3 << 20])
def test_a_chunk_is_read_by_any_reader_of_avro_as_it_was_written(size: int) -> None:
    keys, timers = [b"a" * (size + 1), b"b"], [(-9, b"t" * size), (1 << 62, b"u")]
    chunks = (
        LayerChunk(keys, [b"", b"s" * size], timers), LayerChunk(keys, [b"", b""]), LayerChunk(),
        LayerChunk(timers=timers, table=b"t" * (size + 1), tabled=7),
        LayerChunk([*keys, b"c"], [None, b"s" * size, None], timers),
    )  # fmt: skip
    for chunk in chunks:
        read = LayerChunk.from_bytes(chunk.to_bytes(GOLDEN_HEAD, 4), GOLDEN_HEAD, 4)
        assert read == chunk


def test_a_manifest_has_the_bytes_that_were_agreed_on() -> None:
    layer = LayerPointer(
        GOLDEN_HEAD.id, GOLDEN_HEAD.description, "delta", 1, 2**64 - 2, "msgpack",
        (RecordLocation(b"layer/1/2/5/0", 1, 300, 99),),
    )  # fmt: skip
    manifest = Manifest("op", Bin(3), epoch=7, layers=(layer,))
    assert manifest.to_bytes().hex() == (
        "01"  # format version
        "046f70060e"  # operator, bin, epoch
        "0202040a020e6d73677061636b000002040e0200000e"  # one layer: its head
        "02fffffffffffffffe"  # its count and checksum
        "021a6c617965722f312f322f352f3002d804c60100"  # its chunk
        "00"  # no more layers
    )
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_another_format_version_is_refused_by_name() -> None:
    data = Manifest("op", Bin(3), epoch=7, layers=()).to_bytes()
    with pytest.raises(MeanderError, match="format 'manifest': its version is 2, .* reads 1"):
        Manifest.from_bytes(b"\x02" + data[1:])


def test_a_manifest_is_held_only_while_it_is_in_use() -> None:
    data = Manifest("op", Bin(3), epoch=7, layers=()).to_bytes()
    manifest = Manifest.from_bytes(data)
    again, held = Manifest.from_bytes(bytes(bytearray(data))), ref(manifest)
    assert again is manifest, "its bytes are read once"
    del manifest, again
    assert held() is None, "neither its bytes nor another manifest hold it"
