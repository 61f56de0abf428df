"""I4: what is handed over for a layer is what is installed, whatever pieces it comes in."""

from __future__ import annotations

import random

import pytest

from meander.schemas.errors import SetupError
from meander.state.encoding.codec import encode
from meander.state.layers.bootstrap_input import BootstrapInput, first_layer
from meander.state.layers.layer import CHUNK_ENTRIES
from meander.state.layers.manifest import Description, Manifest
from meander.state.store.store import Store
from tests.support.state.memory_topic import BIN, LAYER, MemoryTopic, install


def written(topic: MemoryTopic, keys: list[bytes], states: list[bytes], piece: int) -> Manifest:
    given = BootstrapInput("per_plane")
    extraction = first_layer(given, LAYER, "per_plane", BIN, "msgpack", topic)
    for start in range(0, len(keys), piece):
        given.add(keys[start : start + piece], states[start : start + piece])
        while given.pending:
            assert not extraction.step(500)
    given.end()
    while not extraction.step(500):
        """It waits for its last chunks."""
    return extraction.manifest


@pytest.mark.parametrize(("count", "size"), [(1, 9), (2 * CHUNK_ENTRIES + 1, 20), (300, 30_000)])
def test_what_is_handed_over_is_what_is_installed(new: Store, count: int, size: int) -> None:
    chance = random.Random(count)
    keys = sorted(encode(n) for n in range(count))
    states = [encode("x" * chance.randrange(size)) for _ in keys]
    records = []
    for piece in (1, 700, count):
        topic = MemoryTopic(delay=2)
        manifest = written(topic, keys, states, piece)
        assert install(new, manifest, topic).count == count
        assert list(new.scan(BIN)) == list(zip(keys, states, strict=True))
        records.append(topic.records)
    assert records[0] == records[1] == records[2], "chunks do not depend on the pieces"


def test_the_layer_covers_what_was_before_all_records() -> None:
    manifest = written(MemoryTopic(), [encode("a")], [encode(1)], 1)
    (layer,) = manifest.layers
    assert (layer.kind, layer.description, manifest.epoch) == ("base", Description(0, 0, 0), 0)


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_a_key_that_comes_twice_is_named(piece: int) -> None:
    keys = [encode("a"), encode("b"), encode("b")]
    with pytest.raises(SetupError, match="operator 'per_plane', key 'b': it has two states"):
        written(MemoryTopic(), keys, [encode(n) for n in range(3)], piece)
