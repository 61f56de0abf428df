"""A state topic in memory, and bins that travel through it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from state.codec import encode, seal
from state.ids import Bin, Incarnation, LayerId, WorkerId
from state.layer import Extraction, Installation
from state.manifest import Manifest
from state.store import Store
from state.topic import Place, Ticket
from tests.lent import put

BIN = Bin(7)
LAYER = LayerId(Incarnation(2), WorkerId(1), 40)


class MemoryTopic:
    """The state topic as a list; each answer is given only after it was asked for `delay` times."""

    def __init__(self, delay: int = 0) -> None:
        self.delay = delay
        self.records: list[tuple[bytes, bytes]] = []
        self.most_unplaced = self.most_fetched = 0
        self._waits: dict[Ticket, int] = {}
        self._appended: dict[Ticket, int] = {}
        self._fetching: dict[Ticket, Sequence[Place]] = {}

    def append(self, key: bytes, payload: bytes) -> Ticket:
        assert key not in dict(self.records), "a key is used once"
        ticket = self._ticket()
        self._appended[ticket] = len(self.records)
        self.records.append((key, payload))
        self.most_unplaced = max(self.most_unplaced, len(self._appended))
        return ticket

    def placed(self, ticket: Ticket) -> Place | None:
        if self._wait(ticket):
            return None
        offset = self._appended.pop(ticket)
        key, payload = self.records[offset]
        return Place(key, 0, offset, len(payload))

    def fetch(self, places: Sequence[Place]) -> Ticket:
        ticket = self._ticket()
        self._fetching[ticket] = places
        self.most_fetched = max(self.most_fetched, sum(map(len, self._fetching.values())))
        return ticket

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        if self._wait(ticket):
            return None
        return [self.records[place.offset][1] for place in self._fetching.pop(ticket)]

    def close(self) -> None:
        self._waits.clear()

    def _ticket(self) -> Ticket:
        ticket = Ticket(len(self._waits))
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
) -> Extraction:
    extraction = Extraction(store, timers, LAYER, "per_plane", BIN, 900, topic)
    drive(extraction.step, budget)
    return extraction


def install(
    store: Store, manifest: Manifest, topic: MemoryTopic, budget: int = 100
) -> Installation:
    installation = Installation(store, manifest, topic)
    drive(installation.step, budget)
    return installation


def drive(step: Callable[[int], bool], budget: int) -> None:
    for _ in range(100_000):
        if step(budget):
            return
    raise AssertionError("it does not end")
