"""A read of the bins of a checkpoint gives what was written, and waits for answers alone."""

from __future__ import annotations

from itertools import count

import pytest

from meander.state.checkpoint.bin_reader import BinReader
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding.codec import encode, seal
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.store.store import Store
from tests.support.state.memory_topic import MemoryTopic, drive
from tests.support.state.store_access import put

BINS = [Bin(bin) for bin in range(16)]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_read_of_many_bins_waits_for_missing_answers_alone(
    old: Store, new: Store, delay: int
) -> None:
    topic, numbers, waits = MemoryTopic(delay), count(), list[int]()
    layers = BinLayers(
        old.operator, old, topic, lambda: LayerId(ExecutionId(1), WorkerId(0), next(numbers))
    )
    for bin in BINS:
        keys = [encode((int(bin), n)) for n in range(100)]
        put(old, [bin] * 100, keys, list(map(seal, range(100))))
        drive(layers.write(bin, 1, ()).step, 100)
    manifests = tuple(map(layers.manifest, BINS))
    checkpoint = Checkpoint(1, ExecutionId(1), BinSpace(4), 0, manifests)
    reader = BinReader(
        checkpoint, old.operator, new, topic, MemoryTopic(), lambda: waits.append(1)
    )  # fmt: skip
    assert list(reader.entries()) == [[*old.scan(bin)] for bin in BINS]
    assert not waits, "each answer was there at its second request"
