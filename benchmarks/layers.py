"""What lies on the state topic under endless updates: how many layers, how many bytes, and how many
are written to keep it so.

Each update is of a key at random out of all, which is the worst case: nothing is hot. After every
`INTERVAL` updates each bin that has changed gets one more layer, or a new base in place of its old
layers, and what is due is merged.
`python -m benchmarks.layers` takes some five minutes, and prints JSON.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import count
from tempfile import TemporaryDirectory

import numpy as np

from meander.dataflow.simulation.simulator import SimTopic
from meander.state.encoding.cells import pick
from meander.state.encoding.codec import encode
from meander.state.encoding.columns import ColumnLayout
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.topic import Ticket
from meander.state.store.store import Database, Store

UPDATES = 20_000_000
INTERVAL = 20_000
KEYS = 1_000_000
BATCH = 5_000
ENTRIES = 2048
MEMORY = 512 << 20
SPACE = BinSpace(bits=6)


class Counting(SimTopic):
    """A topic that counts the bytes that are appended."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.bytes = 0

    def append(self, key: bytes, payload: bytes) -> Ticket:
        self.bytes += len(payload)
        return super().append(key, payload)


def measure(updates: int = UPDATES, keys: int = KEYS) -> dict[str, float]:
    """Layers per bin and bytes on the topic are the most seen after any interval."""
    with TemporaryDirectory() as folder:
        database = Database(folder, MEMORY)
        store = database.store("op", layout=ColumnLayout((0, 0), ("int64", "int64")))
        seen = _run(store, Counting(), updates, keys)
        database.close()
    return seen


def _run(store: Store, topic: Counting, updates: int, keys: int) -> dict[str, float]:
    numbers, writes = count(), Writes(store, keys)
    trace = BinLayers(
        "op", store, topic, lambda: LayerId(ExecutionId(0), WorkerId(0), next(numbers))
    )
    most_layers = most_bytes = deltas = bases = 0
    for upper in range(1, updates // INTERVAL + 1):
        for _ in range(INTERVAL // BATCH):
            writes.batch()
        for bin in store.changed_bins():
            first = not trace.layers(bin)
            extraction = trace.write(bin, upper, (), rebase=True)
            while not extraction.step(ENTRIES):
                pass
            deltas += extraction.bytes * (extraction.manifest.layers[-1].kind == "delta")
            bases += extraction.bytes * first
        while trace.compact(ENTRIES):
            pass
        most_layers = max(most_layers, *(len(trace.layers(bin)) for bin in store.bins()))
        most_bytes = max(most_bytes, sum(map(trace.size, store.bins())))
    held = sum(len(key) + len(state) for bin in store.bins() for key, state in store.scan(bin))
    return {
        "updates": updates,
        "layers_per_bin_max": most_layers,
        "topic_bytes_over_state_bytes": most_bytes / held,
        "rewritten_bytes_over_deltas": (topic.bytes - bases - deltas) / deltas,
    }


class Writes:
    """Updates of keys at random: a state is how often it was set, and when."""

    def __init__(self, store: Store, keys: int) -> None:
        self._store, self._chance, self._now = store, np.random.default_rng(0), 0
        self._keys = [encode(f"key {n}") for n in range(keys)]
        self._bins = SPACE.bins_of(SPACE.hash_keys(self._keys))

    def batch(self) -> None:
        chosen = self._chance.integers(len(self._keys), size=BATCH)
        self._now += 1
        with self._store.open_batch(pick(self._keys, chosen.tolist()), self._bins[chosen]) as batch:
            counts, _ = batch.numbers.read(batch.slots)
            now = np.full(BATCH, self._now)
            batch.numbers.write(batch.slots, (counts.astype(np.int64) + 1, now))


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
