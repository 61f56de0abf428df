"""A state topic in memory, and bins that travel through it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from meander.state.encoding.codec import encode, seal
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import RecordLocation, RecordMissing, Ticket
from meander.state.store.store import Store
from tests.support.state.store_access import put

BIN = Bin(7)
LAYER = LayerId(ExecutionId(2), WorkerId(1), 40)


class MemoryTopic:
    """The state topic as a list; each answer is given only after it was asked for `delay` times."""

    def __init__(self, delay: int = 0) -> None:
        self.delay = delay
        self.records: list[tuple[bytes, bytes]] = []
        self.most_unplaced = self.most_fetched = 0
        """Records, and bytes."""
        self._tickets = 0
        self._keys: set[bytes] = set()
        self._waits: dict[Ticket, int] = {}
        self._appended: dict[Ticket, int] = {}
        self._fetching: dict[Ticket, Sequence[RecordLocation]] = {}
        self.forgotten: set[bytes] = set()
        self.lost: set[bytes] = set()
        """Gone though nobody has forgotten them."""

    def append(self, key: bytes, payload: bytes) -> Ticket:
        assert key not in self._keys, "a key is used once"
        self._keys.add(key)
        ticket = self._ticket()
        self._appended[ticket] = len(self.records)
        self.records.append((key, payload))
        self.most_unplaced = max(self.most_unplaced, len(self._appended))
        return ticket

    def appended(self, ticket: Ticket) -> RecordLocation | None:
        if self._wait(ticket):
            return None
        offset = self._appended.pop(ticket)
        key, payload = self.records[offset]
        return RecordLocation(key, 0, offset, len(payload))

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        ticket = self._ticket()
        self._fetching[ticket] = locations
        sizes = (place.size for asked in self._fetching.values() for place in asked)
        self.most_fetched = max(self.most_fetched, sum(sizes))
        return ticket

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        if self._wait(ticket):
            return None
        places = self._fetching.pop(ticket)
        gone = [place.key for place in places if place.key in self.forgotten | self.lost]
        if gone:
            raise RecordMissing(f"state record {gone[0]!r}", "compaction has removed it")
        return [self.records[place.offset][1] for place in places]

    def abandon(self, ticket: Ticket) -> None:
        del self._waits[ticket]
        self._fetching.pop(ticket, None)
        if ticket in self._appended:
            self.forgotten.add(self.records[self._appended.pop(ticket)][0])

    def delete(self, locations: Sequence[RecordLocation]) -> None:
        assert not any(place.key in self.forgotten for place in locations), "forgotten once"
        self.forgotten.update(place.key for place in locations)

    @property
    def live(self) -> set[bytes]:
        """The keys of the records that compaction leaves."""
        return {key for key, _ in self.records} - self.forgotten

    @property
    def idle(self) -> bool:
        """Whether there is nothing whose answer is still to be asked for."""
        return not (self._appended or self._fetching)

    def close(self) -> None:
        self._waits.clear()

    def _ticket(self) -> Ticket:
        self._tickets += 1
        ticket = Ticket(self._tickets)
        self._waits[ticket] = self.delay
        return ticket

    def _wait(self, ticket: Ticket) -> bool:
        self._waits[ticket] -= 1
        return self._waits[ticket] >= 0


def fill(store: Store, count: int, size: int = 20, bin: Bin = BIN) -> None:
    """Put `count` states of up to `size` bytes, part of which goes to disk."""
    chance = random.Random(count)
    keys = [encode(n) for n in range(count)]
    for first in range(0, count, 500):
        some = keys[first : first + 500]
        states = [seal([n, "x" * chance.randrange(size)]) for n in range(len(some))]
        put(store, [bin] * len(some), some, states)


def extract(
    store: Store, topic: MemoryTopic, timers: Sequence[tuple[int, bytes]] = (), budget: int = 100
) -> LayerWriter:
    extraction = extraction_of(store, topic, timers)
    drive(extraction.step, budget)
    return extraction


def extraction_of(
    store: Store, topic: MemoryTopic, timers: Sequence[tuple[int, bytes]] = ()
) -> LayerWriter:
    return BinLayers("per_plane", store, topic, lambda: LAYER).write(BIN, 900, timers)


def install(store: Store, manifest: Manifest, topic: MemoryTopic, budget: int = 100) -> LayerLoader:
    installation = LayerLoader(store, manifest, topic)
    drive(installation.step, budget)
    return installation


def drive(step: Callable[[int], bool], budget: int) -> None:
    for _ in range(100_000):
        if step(budget):
            return
    raise AssertionError("it does not end")
