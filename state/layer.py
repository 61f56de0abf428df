"""Layers: written to the state topic from whatever yields entries, and read from it.

Invariants: the entries that are read are those that were written, byte for byte (I4), or
LayerCorrupt is raised; what is in memory of them is at most what is said to be (I6). All is
fuelled: a step does at most its budget of entries, or one chunk, and never waits. The many entries
of a base travel as tables, which no reader has to touch one by one; they are only ever installed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from schemas.errors import MeanderError
from state.chunk import CHECKSUM_BYTES, Chunk, Head, LayerCorrupt
from state.ids import LayerId
from state.manifest import LayerPointer, Manifest
from state.store import Store
from state.table import EMPTY_BYTES, TABLE_BYTES, TableWriter
from state.topic import Place, StateTopic, Ticket

CHUNK_BYTES: Final = 512 << 10
"""The most that a chunk without a table takes on the topic, unless one state alone takes more."""
CHUNK_ENTRIES: Final = 2048
"""The most entries of a chunk without a table: to read or write them takes a millisecond."""
STATE_LIMIT: Final = 8 << 20
"""Bytes of the greatest state; the topic's `max.message.bytes` must be somewhat larger."""
WINDOW: Final = 2
"""Chunks of a layer that are on their way to the topic at once."""
AHEAD_BYTES: Final = 2 * TABLE_BYTES
"""The most that an installation has of its bin at once, unless one chunk alone takes more."""
ENTRY_BYTES: Final = 16
"""What an entry takes at most in a chunk, besides its key and its state."""

Timers = Sequence[tuple[int, bytes]]
Lengths = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """Some keys with their encoded states, in key order."""

    keys: list[bytes]
    states: list[bytes]


class Remainder(NamedTuple):
    """What a bin's layers lack: some keys with their encoded states, in key order."""

    keys: list[bytes]
    states: list[bytes]
    timers: Timers | None
    """All of the bin's; None where they are those of its last layer."""


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
    then. Where tables can be made, entries that are too many for a chunk go into these. Once `step`
    has returned True, `manifest`, which names the bin's layers, and `bytes` (on the topic, of this
    layer) stand; its epoch is the layer's upper time.
    """

    manifest: Manifest

    def __init__(
        self,
        head: Head,
        contents: Contents,
        topic: StateTopic,
        stands: Callable[[LayerPointer], tuple[LayerPointer, ...]],
        table: Callable[[], TableWriter] | None = None,
    ) -> None:
        self.bytes = self._count = 0
        self._new_table = table
        self._table: TableWriter | None = None
        """That of the chunk, where it has one."""
        self._head, self._contents, self._topic, self._stands = head, contents, topic, stands
        self._empty = len(Chunk().to_bytes(self._head, CHUNK_ENTRIES)) + ENTRY_BYTES
        self._chunk, self._size = Chunk(), self._empty
        self._checksum = xxhash.xxh3_64()
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._under_way = 0
        """Bytes of chunks that are not durable yet."""
        self._taken = False
        """Whether all has been put into chunks."""
        self._places: list[Place] = []
        self._done = self.cancelled = False
        self._slices = self._run()

    def step(self, budget_entries: int) -> bool:
        """Do one slice of the work; whether all chunks are durable.

        Raises MeanderError for a state above `STATE_LIMIT`, or when the topic refuses a chunk.
        """
        while self._tickets and (place := self._topic.placed(self._tickets[0][0])) is not None:
            self._under_way -= self._tickets.popleft()[1]
            self._places.append(place)
        self._fuel = budget_entries
        next(self._slices, None)
        return self._done

    @property
    def held(self) -> int:
        """The most bytes that this may have in memory until the next step."""
        if self._taken:
            return self._under_way
        return (WINDOW + 1) * (CHUNK_BYTES if self._new_table is None else TABLE_BYTES)

    def cancel(self) -> None:
        """Give up, before the layer stands; what lies on the topic already is forgotten there."""
        self.cancelled = self._taken = True
        self._slices.close()
        self._contents.close()
        if self._table is not None:
            self._table.discard()
        self._topic.forget(self._places)
        while self._tickets:
            self._topic.abandon(self._tickets.popleft()[0])
        self._under_way = 0

    def _run(self) -> Generator[None, None, None]:
        yield from self._put_entries()
        if self._table is not None:
            yield from self._send()
        self._new_table = None
        yield from self._put_timers()
        if self._chunk:
            yield from self._send()
        self._taken = True
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
            if self._table is not None:
                self._table.put(keys[first:end], states[first:end])
                self._chunk.tabled += end - first
            else:
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
                yield from self._full()
                continue
            put(first, end)
            self._size += int(sums[end - 1]) - before
            self._fuel -= end - first
            first = end
            if self._fuel <= 0:
                yield

    def _fitting(self, sums: Lengths, first: int, before: int) -> int:
        """How far the entries from the first on fit into the chunk; one always fits alone."""
        most = CHUNK_BYTES if self._table is None else TABLE_BYTES
        end = int(np.searchsorted(sums, before + most - self._size, side="right"))
        if self._table is None:
            end = min(end, first + CHUNK_ENTRIES - len(self._chunk))
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

    def _full(self) -> Iterator[None]:
        """The chunk takes no more: it gets a table, or goes."""
        if self._table is not None or self._new_table is None:
            yield from self._send()
            return
        keys, states = self._chunk.keys, self._chunk.states
        self._table = self._new_table()
        self._table.put(keys, states)
        self._chunk = Chunk(tabled=len(keys))
        self._size += EMPTY_BYTES
        yield

    def _send(self) -> Iterator[None]:
        if self._table is not None:
            self._chunk.table, self._table = self._table.finish(), None
        number = len(self._places) + len(self._tickets)
        payload = self._chunk.to_bytes(self._head, number)
        ticket = self._topic.append(self._head.id.key(number), payload)
        self._tickets.append((ticket, len(payload)))
        self._under_way += len(payload)
        self._checksum.update(payload[:CHECKSUM_BYTES])
        self._count += self._chunk.count
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


Payloads = Generator[bytes | None, None, None]


def payloads(topic: StateTopic, places: Sequence[Place], most_bytes: int) -> Payloads:
    """What lies at some places, in order, each as soon as it is here, None before; so many bytes
    are asked for at once, or one place."""
    first = 0
    while first < len(places):
        sizes = np.fromiter((place.size for place in places[first:]), np.int64)
        end = first + max(1, int(np.searchsorted(np.cumsum(sizes), most_bytes, side="right")))
        ticket = topic.fetch(places[first:end])
        try:
            while (found := topic.fetched(ticket)) is None:
                yield None
        except GeneratorExit:
            topic.abandon(ticket)
            raise
        if len(found) != end - first:
            where = f"state record {places[first].key!r} and what was asked for with it"
            raise LayerCorrupt(where, "number of records", end - first, len(found))
        yield from found
        first = end


def chunks_of(
    head: Head, layer: LayerPointer, found: Payloads
) -> Generator[Chunk | None, None, None]:
    """The chunks of a layer in order, out of what lies at their places; None while it is not here.

    Raises LayerCorrupt where something is not as the layer's pointer says.
    """
    checksum, count = xxhash.xxh3_64(), 0
    for number, place in enumerate(layer.chunks):
        if place.key != head.id.key(number):
            where = f"{head}, chunk {number}"
            raise LayerCorrupt(where, "key", head.id.key(number), place.key)
        while (payload := next(found)) is None:
            yield None
        chunk = Chunk.from_bytes(payload, head, number)
        checksum.update(payload[:CHECKSUM_BYTES])
        count += chunk.count
        yield chunk
    if count != layer.count:
        raise LayerCorrupt(str(head), "count of keys", layer.count, count)
    if checksum.intdigest() != layer.checksum:
        raise LayerCorrupt(str(head), "checksum", f"{layer.checksum:016x}", checksum.hexdigest())


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
        self._layers = manifest.layers[self._staged :]
        sizes = [place.size for layer in self._layers for place in layer.chunks]
        self._most = max([min(sum(sizes), AHEAD_BYTES), *sizes])
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

    @property
    def held(self) -> int:
        """The most bytes that this may have in memory."""
        return self._most

    def cancel(self) -> None:
        """Give up; what has been installed stays."""
        self._slices.close()
        self._most = 0

    def _run(self) -> Generator[None, None, None]:
        if not self._staged:
            self._store.drop(self._manifest.bin)
        places = [place for layer in self._layers for place in layer.chunks]
        try:
            with closing(payloads(self._topic, places, AHEAD_BYTES)) as found:
                for layer in self._layers:
                    yield from self._install(layer, found)
            self._done = True
        finally:
            self._most = 0

    def _install(self, layer: LayerPointer, found: Payloads) -> Iterator[None]:
        head = Head.of(self._manifest.operator, self._manifest.bin, layer)
        self.timers = []  # a layer has all timers of its bin
        for chunk in chunks_of(head, layer, found):
            if chunk is None:
                yield
            else:
                self.timers += chunk.timers
                yield from self._put(chunk)
        self.count += layer.count
        self.bytes += layer.bytes

    def _put(self, chunk: Chunk) -> Iterator[None]:
        keys, states = chunk.keys, chunk.states
        if chunk.table:
            self._store.ingest(self._manifest.bin, chunk.table)
            yield
        while keys:
            n = self._budget
            self._store.install(self._manifest.bin, keys[:n], states[:n])
            keys, states = keys[n:], states[n:]
            yield


def _lengths(items: Sequence[bytes]) -> Lengths:
    return np.fromiter(map(len, items), np.int64, len(items))
