"""I4: a layer that is not what was written is caught at the install, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meander.state.keys.ids import Bin
from meander.state.layers.chunk import Head, LayerChunk, LayerCorrupt
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.manifest import LayerPointer
from meander.state.layers.topic import Ticket
from meander.state.store.store import Store
from tests.support.state.memory_topic import BIN, LAYER, MemoryTopic, drive, extract, fill, install

Spoil = Callable[[MemoryTopic, LayerPointer], LayerPointer]


def _flip_a_bit(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    key, payload = topic.records[1]
    topic.records[1] = key, payload[:5000] + bytes([payload[5000] ^ 1]) + payload[5001:]
    return layer


def _truncate(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    key, payload = topic.records[1]
    topic.records[1] = key, payload[:-1]
    return layer


def _empty(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    topic.records[1] = topic.records[1][0], b""
    return layer


def _swap_payloads(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    (a, b), (c, d) = topic.records[:2]
    topic.records[:2] = [(a, d), (c, b)]
    return layer


def _swap_places(_: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    first, second, *rest = layer.chunks
    return replace(layer, chunks=(second, first, *rest))


def _leave_out_the_last(_: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return replace(layer, chunks=layer.chunks[:-1])


def _leave_out_the_first(_: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return replace(layer, chunks=layer.chunks[1:])


def _miscount(_: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return replace(layer, count=layer.count + 1)


def _another_checksum(_: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return replace(layer, checksum=layer.checksum ^ 1)


def _another_chunk(
    topic: MemoryTopic, layer: LayerPointer, operator: str = "per_plane", bin: Bin = BIN
) -> LayerPointer:
    """A whole and valid chunk, but of some other layer, bin or operator."""
    head = Head(operator, bin, layer.id, layer.kind, layer.codec, layer.description)
    topic.records[1] = topic.records[1][0], LayerChunk([b"k"], [b"s"]).to_bytes(head, 1)
    return layer


def _chunk_of_another_bin(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return _another_chunk(topic, layer, bin=Bin(8))


def _chunk_of_another_operator(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return _another_chunk(topic, layer, operator="per_carrier")


def _chunk_of_another_layer(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    _another_chunk(topic, replace(layer, id=replace(LAYER, sequence=41)))
    return layer


def _chunk_of_another_time(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    _another_chunk(topic, replace(layer, description=replace(layer.description, upper=899)))
    return layer


def _other_contents(topic: MemoryTopic, layer: LayerPointer) -> LayerPointer:
    return _another_chunk(topic, layer)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_flip_a_bit, "chunk 1: its checksum"),
        (_truncate, "chunk 1: its checksum"),
        (_empty, "chunk 1: its checksum"),
        (_swap_payloads, "chunk 0: its chunk is 1, but 0 was expected"),
        (_swap_places, "chunk 0: its key is b'layer/2/1/40/1', but b'layer/2/1/40/0'"),
        (_leave_out_the_last, "its count of keys is 7608, but 9000 was expected"),
        (_leave_out_the_first, "chunk 0: its key"),
        (_miscount, "its count of keys is 9000, but 9001 was expected"),
        (_another_checksum, "bin 7: its checksum"),
        (_chunk_of_another_bin, "chunk 1: its bin is 8, but 7 was expected"),
        (_chunk_of_another_operator, "chunk 1: its operator is per_carrier, but per_plane"),
        (_chunk_of_another_layer, "chunk 1: its sequence is 41, but 40 was expected"),
        (_chunk_of_another_time, "chunk 1: its upper is 899, but 900 was expected"),
        (_other_contents, "its count of keys is 5184, but 9000 was expected"),
    ],
)
def test_what_is_not_what_was_written_is_caught_and_named(
    old: Store, new: Store, spoil: Spoil, told: str
) -> None:
    fill(old, 9000, 500)
    topic = MemoryTopic()
    manifest = extract(old, topic).manifest
    manifest = replace(manifest, layers=(spoil(topic, manifest.layers[0]),))
    with pytest.raises(LayerCorrupt) as caught:
        install(new, manifest, topic)
    assert told in str(caught.value)
    assert "layer/2/1/40 of operator 'per_plane', bin 7" in str(caught.value)


def test_nothing_is_installed_from_the_chunk_that_is_corrupt_on(old: Store, new: Store) -> None:
    fill(old, 9000, 500)
    topic = MemoryTopic()
    manifest = extract(old, topic).manifest
    _flip_a_bit(topic, manifest.layers[0])
    installation = LayerLoader(new, manifest, topic)
    with pytest.raises(LayerCorrupt):
        drive(installation.step, 100)
    assert not installation.step(100)
    assert 0 < new.count(BIN) < 9000


def test_a_topic_that_answers_with_too_few_records_is_caught(old: Store, new: Store) -> None:
    class Forgetful(MemoryTopic):
        def fetched(self, ticket: Ticket) -> list[bytes] | None:
            payloads = super().fetched(ticket)
            return payloads and payloads[:-1]

    fill(old, 9000, 500)
    topic = Forgetful()
    manifest = extract(old, topic).manifest
    with pytest.raises(LayerCorrupt, match="number of records is 0, but 1"):
        install(new, manifest, topic)
