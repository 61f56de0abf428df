"""Layers: written to the state topic from whatever yields entries, and read from it.

Invariants: the entries that are read are those that were written, byte for byte (I4), or
LayerCorrupt is raised; at most `WINDOW` chunks of a layer are in memory (I6). All is fuelled: a
step does at most its budget of entries, or one chunk, and never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from schemas.errors import MeanderError
from state.chunk import CHECKSUM_BYTES, Chunk, Head, LayerCorrupt
from state.ids import LayerId
from state.manifest import LayerPointer, Manifest
from state.store import Store
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

Timers = Sequence[tuple[int, bytes]]
Lengths = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """Some keys with their encoded states, in key order."""

    keys: list[bytes]
    states: list[bytes]


class Contents(Protocol):
    """What a layer is to hold."""

    @property
    def timers(self) -> Timers:
        """All of the bin's; they stand once the entries have been taken."""

    def take(self, most: int) -> Entries | None:
        """Up to so many of the next entries, none at their end; None while they are not here."""

    def close(self) -> None:
        """Give up what is under way."""


class Extraction:
    """Writes one layer to the state topic.

    `stands` is told of the layer once it is durable, and says which layers its bin consists of
    then. Once `step` has returned True, `manifest`, which names these, and `bytes` (on the topic,
    of this layer) stand; its epoch is the layer's upper time.
    """

    manifest: Manifest

    def __init__(
        self,
        head: Head,
        contents: Contents,
        topic: StateTopic,
        stands: Callable[[LayerPointer], tuple[LayerPointer, ...]],
    ) -> None:
        self.bytes = self._count = 0
        self._head, self._contents, self._topic, self._stands = head, contents, topic, stands
        self._empty = len(Chunk().to_bytes(self._head, CHUNK_ENTRIES)) + ENTRY_BYTES
        self._chunk, self._size = Chunk(), self._empty
        self._checksum = xxhash.xxh3_64()
        self._tickets: deque[Ticket] = deque()
        self._places: list[Place] = []
        self._done = self.cancelled = False
        self._slices = self._run()

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

    def cancel(self) -> None:
        """Give up, before the layer stands; what lies on the topic already is forgotten there."""
        self.cancelled = True
        self._slices.close()
        self._contents.close()
        self._topic.forget(self._places)
        while self._tickets:
            self._topic.abandon(self._tickets.popleft())

    def _run(self) -> Generator[None, None, None]:
        yield from self._put_entries()
        yield from self._put_timers()
        if self._chunk:
            yield from self._send()
        while self._tickets:
            yield
        head, layer = self._head, self._sum_up()
        epoch = head.description.upper
        assert isinstance(epoch, int), "a layer ends at a time of the outer scope"
        self.manifest = Manifest(head.operator, head.bin, epoch, self._stands(layer))
        self._done = True

    def _put_entries(self) -> Iterator[None]:
        while True:
            entries = self._contents.take(min(self._fuel, CHUNK_ENTRIES))
            if entries is None:
                yield
            elif entries.keys:
                yield from self._put(*entries)
            else:
                return

    def _put(self, keys: list[bytes], states: list[bytes]) -> Iterator[None]:
        def put(first: int, end: int) -> None:
            self._chunk.keys += keys[first:end]
            self._chunk.states += states[first:end]

        yield from self._fill(keys, _lengths(keys) + _lengths(states), put)

    def _put_timers(self) -> Iterator[None]:
        timers, start = self._contents.timers, 0
        while start < len(timers):
            some = timers[start : start + min(self._fuel, CHUNK_ENTRIES)]
            start += len(some)
            keys = [key for _, key in some]

            def put(first: int, end: int, some: Timers = some) -> None:
                self._chunk.timers += some[first:end]

            yield from self._fill(keys, _lengths(keys), put)

    def _fill(
        self, keys: list[bytes], sizes: Lengths, put: Callable[[int, int], None]
    ) -> Iterator[None]:
        """Have entries of some sizes put into as many chunks as they need."""
        sizes = sizes + ENTRY_BYTES
        self._check(keys, sizes)
        sums, first = np.cumsum(sizes), 0
        while first < len(keys):
            before = int(sums[first] - sizes[first])
            end = self._fitting(sums, first, before)
            if end == first:
                yield from self._send()
                continue
            put(first, end)
            self._size += int(sums[end - 1]) - before
            self._fuel -= end - first
            first = end
            if self._fuel <= 0:
                yield

    def _fitting(self, sums: Lengths, first: int, before: int) -> int:
        """How far the entries from the first on fit into the chunk; one always fits alone."""
        room = int(np.searchsorted(sums, before + CHUNK_BYTES - self._size, side="right"))
        end = min(room, first + CHUNK_ENTRIES - len(self._chunk), len(sums))
        return max(end, first if self._chunk else first + 1)

    def _check(self, keys: list[bytes], sizes: Lengths) -> None:
        greatest = int(np.argmax(sizes))
        if sizes[greatest] > STATE_LIMIT:
            raise MeanderError(
                f"operator '{self._head.operator}', key {keys[greatest][:64]!r}",
                f"its state takes {sizes[greatest]} bytes, and a bin moves only with states up to "
                f"{STATE_LIMIT}",
                "keep less per key, or spread it over several keys",
            )

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

    def _sum_up(self) -> LayerPointer:
        head = self._head
        return LayerPointer(
            head.id, head.description, head.kind, self._count, self._checksum.intdigest(),
            head.codec, tuple(self._places),
        )  # fmt: skip


def chunks_of(
    topic: StateTopic, head: Head, layer: LayerPointer, window: int
) -> Generator[Chunk | None, None, None]:
    """The chunks of a layer in order, each as soon as it is here, None before; so many are asked
    for at once. Raises LayerCorrupt where something is not as the layer's pointer says."""
    checksum, count = xxhash.xxh3_64(), 0
    for first in range(0, len(layer.chunks), window):
        payloads = yield from _fetch(topic, head, layer.chunks[first : first + window], first)
        for number, payload in enumerate(payloads, first):
            chunk = Chunk.from_bytes(payload, head, number)
            checksum.update(payload[:CHECKSUM_BYTES])
            count += len(chunk.keys)
            yield chunk
    if count != layer.count:
        raise LayerCorrupt(str(head), "count of keys", layer.count, count)
    if checksum.intdigest() != layer.checksum:
        raise LayerCorrupt(str(head), "checksum", f"{layer.checksum:016x}", checksum.hexdigest())


def _fetch(
    topic: StateTopic, head: Head, places: Sequence[Place], first: int
) -> Generator[None, None, list[bytes]]:
    for number, place in enumerate(places, first):
        if place.key != head.id.key(number):
            where = f"{head}, chunk {number}"
            raise LayerCorrupt(where, "key", head.id.key(number), place.key)
    ticket = topic.fetch(places)
    try:
        while (payloads := topic.fetched(ticket)) is None:
            yield
    except GeneratorExit:
        topic.abandon(ticket)
        raise
    if len(payloads) != len(places):
        where = f"{head}, chunks from {first} on"
        raise LayerCorrupt(where, "number of records", len(places), len(payloads))
    return payloads


class Installation:
    """Reads the layers of one bin from the state topic into a store.

    Where the first of the layers are those that are `staged` in the store already, with `timers` as
    of the last of them, the others are put over them; else all take the place of what it held.
    `timers`, `count` (keys installed) and `bytes` (from the topic) stand once `step` has returned
    True. Raises MeanderError where the layers were written with another codec than the store's.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        topic: StateTopic,
        staged: Sequence[LayerId] = (),
        timers: Timers = (),
    ) -> None:
        for layer in manifest.layers:
            if layer.codec != store.codec.name:
                raise MeanderError(
                    str(Head.of(manifest.operator, manifest.bin, layer)),
                    f"it was written with codec '{layer.codec}', and this worker's is "
                    f"'{store.codec.name}'",
                    "run every worker with the same flow",
                )
        first = [layer.id for layer in manifest.layers[: len(staged)]]
        self._staged = len(staged) if first == list(staged) else 0
        self.timers = list(timers) if self._staged else []
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

    def cancel(self) -> None:
        """Give up; what has been installed stays."""
        self._slices.close()

    def _run(self) -> Generator[None, None, None]:
        if not self._staged:
            self._store.drop(self._manifest.bin)
        for layer in self._manifest.layers[self._staged :]:
            yield from self._install(layer)
        self._done = True

    def _install(self, layer: LayerPointer) -> Iterator[None]:
        head = Head.of(self._manifest.operator, self._manifest.bin, layer)
        self.timers = []  # a layer has all timers of its bin
        for chunk in chunks_of(self._topic, head, layer, WINDOW):
            if chunk is None:
                yield
            else:
                self.timers += chunk.timers
                yield from self._put(chunk)
        self.count += layer.count
        self.bytes += layer.bytes

    def _put(self, chunk: Chunk) -> Iterator[None]:
        keys, states = chunk.keys, chunk.states
        while True:
            n = self._budget
            self._store.install(self._manifest.bin, keys[:n], states[:n])
            keys, states = keys[n:], states[n:]
            yield
            if not keys:
                return


def _lengths(items: Sequence[bytes]) -> Lengths:
    return np.fromiter(map(len, items), np.int64, len(items))
