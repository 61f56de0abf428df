"""I4 over bundles: a bin's layers and the bundles of its chain are the bin as it was at the
checkpoint that names them, whichever checkpoints before it came to nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from meander.state.encoding.codec import encode, seal
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import CheckpointId, ExecutionId
from meander.state.layers.delta_chains import Link
from meander.state.layers.layer import NO_DELTA, DeltaEntries, merge_deltas
from meander.state.layers.manifest import LayerPointer, Manifest
from meander.state.layers.topic import UNPLACED
from meander.state.store.store import Database, Store
from tests.support.state.layered_store import LayeredStore
from tests.support.state.memory_topic import BIN, MemoryTopic, drive, install
from tests.support.state.store_access import put

LITTLE = 2000
KEYS = 60
CHECKPOINTS = 40


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[tuple[Database, Database]]:
    pair = Database(tmp_path / "old", 1 << 20), Database(tmp_path / "new", 1 << 20)
    yield pair
    for one in pair:
        one.close()


class Bundled:
    """One bin over many checkpoints, driven by hand; `bundles` are those that are not forgotten."""

    def __init__(self, rng: random.Random, old: Store, new: Store) -> None:
        self.rng, self.new = rng, new
        self.layer_store = LayeredStore(old, MemoryTopic())
        self.store, self.trace = old, self.layer_store.trace
        self.bundles: dict[Link, DeltaEntries] = {}
        self.timers: list[tuple[int, bytes]] = []
        self.number = self.state = 0
        self.unheard: CheckpointId | None = None
        """A checkpoint that exists, as is heard too late."""
        self.seen = Counter[int]()
        """How many bundles told of the bin, by checkpoint."""

    def change(self) -> None:
        self.state += 1
        first, most = self.rng.randrange(KEYS), self.rng.choice([1, 3, 9])
        keys = [encode((int(BIN), n)) for n in range(first, first + self.rng.randint(0, most))]
        if keys:
            put(self.store, [BIN] * len(keys), keys, [seal(self.state)] * len(keys))
        if self.rng.random() < 0.3:
            self.timers = [(self.rng.randrange(3), b"k")][: self.rng.randrange(2)]

    def checkpoint(self) -> None:
        """Take one; it exists, is given up, or nobody has heard of its end before the next."""
        self.number += 1
        at = CheckpointId(ExecutionId(7), self.number)
        self.layer_store.now += 1
        then, timers = dict(self.store.scan(BIN)), [*self.timers]
        self.trace.freeze(at, [BIN], {BIN: timers}, self.layer_store.now)
        self.change()
        anew = self.rng.random() < 0.1
        if self.unheard is not None and self.rng.random() < 0.3:
            self.trace.complete_checkpoint(self.unheard)
        little = self.trace.frozen_delta(BIN, LITTLE, cumulative=anew)
        if little is None:
            layers, links = self.layered(), list[Link]()
        else:
            layers, links = self.trace.layers(BIN), [*little.links]
            if self.unheard is not None:
                self.trace.complete_checkpoint(self.unheard)
            if little.entries != NO_DELTA:
                links.append(Link(self.number, 0, UNPLACED))
                self.bundles[links[-1]] = little.entries
                self.change()
                self.trace.record_bundle(at, [BIN], links[-1])
        self.expect(Manifest("per_plane", BIN, 0, layers), links, then, timers)
        self.end(at)

    def layered(self) -> tuple[LayerPointer, ...]:
        extraction = self.trace.write_frozen(BIN)
        if extraction is None:
            return self.trace.layers(BIN)
        while not extraction.step(self.rng.randint(1, 50)):
            self.change()
        return extraction.manifest.layers

    def expect(
        self, manifest: Manifest, links: list[Link], then: dict[bytes, bytes], timers: Timers
    ) -> None:
        """The bin is what the checkpoint names."""
        self.seen[len(links)] += 1
        installed = install(self.new, manifest, self.layer_store.topic)
        told = merge_deltas([self.bundles[link] for link in links])
        found = dict(self.new.scan(BIN)) | dict(zip(told.keys, told.states, strict=True))
        assert found == then
        assert list(installed.timers if told.timers is None else told.timers) == list(timers)
        self.new.drop(BIN)

    def end(self, at: CheckpointId) -> None:
        self.unheard = None
        match self.rng.choice(["exists"] * 4 + ["is heard of late", "given up"]):
            case "exists":
                self.trace.complete_checkpoint(at)
            case "is heard of late":
                self.unheard = at
            case "given up":
                for link in [link for link in self.bundles if link.checkpoint == at.number]:
                    del self.bundles[link]

    def between(self) -> None:
        for _ in range(self.rng.randrange(3)):
            self.change()
        match self.rng.randrange(12):
            case 0:
                self.layer_store.write(timers=self.timers)
            case 1:
                extraction = self.layer_store.begin(timers=self.timers)
                extraction.step(2)
                self.trace.cancel(BIN)
            case 2:
                drive(lambda budget: not self.trace.compact(budget), 50)
            case 3:
                self.trace.schedule_rewrite(BIN)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_checkpoint_names_is_the_bin(
    databases: tuple[Database, Database], seed: int
) -> None:
    rng = random.Random(seed)
    run = Bundled(rng, databases[0].store("op"), databases[1].store("op"))
    for _ in range(CHECKPOINTS):
        run.between()
        run.checkpoint()
    assert sum(run.seen.values()) == CHECKPOINTS
    assert sum(seen for links, seen in run.seen.items() if links > 1) >= 5, run.seen
