"""Bins on their way: out of a store as a layer on the state topic, and from there into another.

Invariants: the entries that are installed are those that were extracted, byte for byte (I4), or
LayerCorrupt is raised; at most `WINDOW` chunks are in memory (I6). Both are fuelled: a step does at
most its budget of entries, or one chunk, and never waits. Cost: 2 to 3 us a small entry each way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import Final

import xxhash

from schemas.errors import MeanderError
from state.chunk import CHECKSUM_BYTES, Chunk, Head, LayerCorrupt
from state.ids import Bin, LayerId
from state.manifest import Description, LayerPointer, Manifest
from state.store import Store
from state.time import MIN_TIME
from state.topic import Place, StateTopic, Ticket

CHUNK_BYTES: Final = 512 << 10
"""The most that a chunk takes on the topic, unless one state alone takes more."""
CHUNK_ENTRIES: Final = 2048
"""The most entries of a chunk, so that to read or write one takes about a millisecond."""
STATE_LIMIT: Final = 8 << 20
"""Bytes of the greatest state; the topic's `max.message.bytes` must be somewhat larger."""
WINDOW: Final = 4
"""Chunks under way at once, and so in memory."""
ENTRY_BYTES: Final = 16
"""What an entry takes at most in a chunk, besides its key and its state."""


class Extraction:
    """Writes one bin, as it is when this is made, to the state topic as a base layer.

    `at` is the time from which the next owner owns the bin: the state is that of all records before
    `at`. Once `step` has returned True, `manifest` and `bytes` (on the topic) stand.
    """

    manifest: Manifest

    def __init__(
        self,
        store: Store,
        timers: Sequence[tuple[int, bytes]],
        layer: LayerId,
        operator: str,
        bin: Bin,
        at: int,
        topic: StateTopic,
    ) -> None:
        self.bytes = self._count = 0
        self._at, self._topic, self._timers = at, topic, tuple(timers)
        description = Description(lower=MIN_TIME, upper=at, since=at)
        self._head = Head(operator, bin, layer, "base", store.codec.name, description)
        self._empty = len(Chunk().to_bytes(self._head, CHUNK_ENTRIES)) + ENTRY_BYTES
        self._chunk, self._size = Chunk(), self._empty
        self._checksum = xxhash.xxh3_64()
        self._tickets: deque[Ticket] = deque()
        self._places: list[Place] = []
        self._done = False
        self._slices = self._run(store.scan(bin))

    def step(self, budget_entries: int) -> bool:
        """Do one slice of the work; whether all chunks are durable.

        Raises MeanderError for a state above `STATE_LIMIT`, or when the topic refuses a chunk.
        """
        while self._tickets and (place := self._topic.placed(self._tickets[0])) is not None:
            self._tickets.popleft()
            self._places.append(place)
        self._fuel = budget_entries
        next(self._slices, None)
        return self._done

    def _run(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[None]:
        states = ((key, state, None) for key, state in entries)
        timers = ((key, b"", time) for time, key in self._timers)
        for key, state, time in chain(states, timers):
            size = len(key) + len(state) + ENTRY_BYTES
            if self._full(size, key):
                yield from self._send()
            self._size += size
            if time is None:
                self._chunk.keys.append(key)
                self._chunk.states.append(state)
            else:
                self._chunk.timers.append((time, key))
            self._fuel -= 1
            if self._fuel <= 0:
                yield
        if self._chunk:
            yield from self._send()
        while self._tickets:
            yield
        self.manifest = self._sum_up()
        self._done = True

    def _full(self, size: int, key: bytes) -> bool:
        """Whether the chunk must go before an entry of some size comes in."""
        if size > STATE_LIMIT:
            raise MeanderError(
                f"operator '{self._head.operator}', key {key[:64]!r}",
                f"its state takes {size} bytes, and a bin moves only with states up to "
                f"{STATE_LIMIT}",
                "keep less per key, or spread it over several keys",
            )
        full = self._size + size > CHUNK_BYTES or len(self._chunk) >= CHUNK_ENTRIES
        return full and len(self._chunk) > 0

    def _send(self) -> Iterator[None]:
        number = len(self._places) + len(self._tickets)
        payload = self._chunk.to_bytes(self._head, number)
        self._tickets.append(self._topic.append(self._head.id.key(number), payload))
        self._checksum.update(payload[:CHECKSUM_BYTES])
        self._count += len(self._chunk.keys)
        self.bytes += len(payload)
        self._chunk, self._size = Chunk(), self._empty
        yield
        while len(self._tickets) >= WINDOW:
            yield

    def _sum_up(self) -> Manifest:
        head = self._head
        layer = LayerPointer(
            head.id, head.description, head.kind, self._count, self._checksum.intdigest(),
            head.codec, tuple(self._places),
        )  # fmt: skip
        return Manifest(head.operator, head.bin, epoch=self._at, layers=(layer,))


class Installation:
    """Reads the layers of one bin from the state topic into a store, in place of what it held.

    `timers`, `count` (keys) and `bytes` (from the topic) stand once `step` has returned True.
    Raises MeanderError where the layers were written with another codec than the store's.
    """

    def __init__(self, store: Store, manifest: Manifest, topic: StateTopic) -> None:
        for layer in manifest.layers:
            if layer.codec != store.codec.name:
                raise MeanderError(
                    str(Head.of(manifest.operator, manifest.bin, layer)),
                    f"it was written with codec '{layer.codec}', and this worker's is "
                    f"'{store.codec.name}'",
                    "run every worker with the same flow",
                )
        self.timers: list[tuple[int, bytes]] = []
        self.count = self.bytes = 0
        self._store, self._manifest, self._topic = store, manifest, topic
        self._done = False
        self._slices = self._run()

    def step(self, budget_entries: int) -> bool:
        """Do one slice of the work; whether the bin is installed.

        Raises LayerCorrupt where something is not as the manifest says, and installs no more then.
        """
        self._budget = budget_entries
        next(self._slices, None)
        return self._done

    def _run(self) -> Iterator[None]:
        self._store.drop(self._manifest.bin)
        for layer in self._manifest.layers:
            yield from self._install(layer)
        self._done = True

    def _install(self, layer: LayerPointer) -> Iterator[None]:
        head = Head.of(self._manifest.operator, self._manifest.bin, layer)
        checksum, count = xxhash.xxh3_64(), 0
        self.timers = []  # a layer has all timers of its bin
        for first in range(0, len(layer.chunks), WINDOW):
            payloads = yield from self._fetch(head, layer.chunks[first : first + WINDOW], first)
            for number, payload in enumerate(payloads, first):
                chunk = Chunk.from_bytes(payload, head, number)
                checksum.update(payload[:CHECKSUM_BYTES])
                count += len(chunk.keys)
                self.bytes += len(payload)
                self.timers += chunk.timers
                yield from self._put(chunk)
        if count != layer.count:
            raise LayerCorrupt(str(head), "count of keys", layer.count, count)
        if checksum.intdigest() != layer.checksum:
            raise LayerCorrupt(
                str(head), "checksum", f"{layer.checksum:016x}", checksum.hexdigest()
            )
        self.count += count

    def _fetch(
        self, head: Head, places: Sequence[Place], first: int
    ) -> Generator[None, None, list[bytes]]:
        for number, place in enumerate(places, first):
            if place.key != head.id.key(number):
                where = f"{head}, chunk {number}"
                raise LayerCorrupt(where, "key", head.id.key(number), place.key)
        ticket = self._topic.fetch(places)
        while (payloads := self._topic.fetched(ticket)) is None:
            yield
        if len(payloads) != len(places):
            where = f"{head}, chunks from {first} on"
            raise LayerCorrupt(where, "number of records", len(places), len(payloads))
        return payloads

    def _put(self, chunk: Chunk) -> Iterator[None]:
        keys, states = chunk.keys, chunk.states
        while True:
            n = self._budget
            self._store.install(self._manifest.bin, keys[:n], states[:n])
            keys, states = keys[n:], states[n:]
            yield
            if not keys:
                return
