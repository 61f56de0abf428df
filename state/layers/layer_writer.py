"""The layer writer: writes the entries of a layer input to the state topic.

Invariant: the memory of a layer is at most `memory_bound` (I6). A step writes at most its budget of
entries, or sends one chunk, and never waits. Tables hold the many entries of a base, and a loader
ingests a table as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import EncodedState
from meander.state.encoding.timers import Timers
from meander.state.layers.chunk import CHECKSUM_BYTES, Head, LayerChunk
from meander.state.layers.layer import CHUNK_ENTRIES, LayerInput
from meander.state.layers.manifest import LayerPointer, Manifest
from meander.state.layers.topic import MAX_STATE_RECORD, RecordLocation, StateTopic, Ticket
from meander.state.store.sst_writer import EMPTY_TABLE_BYTES, TABLE_BYTES, TableWriter

CHUNK_BYTES: Final = 512 << 10
"""The most bytes of a chunk without a table on the topic, unless one state exceeds them."""
STATE_LIMIT: Final = MAX_STATE_RECORD - (64 << 10)
"""The most bytes of a key and its state. The rest of a record remains for the head of the chunk."""
KEY_LIMIT: Final = STATE_LIMIT // 2
"""The most bytes of a key; the rest of `STATE_LIMIT` remains for a state."""
WINDOW: Final = 2
"""The most chunks of a layer on their way to the topic."""
ENTRY_BYTES: Final = 16
"""The most bytes of an entry in a chunk besides its key and its state."""

Lengths = npt.NDArray[np.int64]


class LayerWriter:
    """A writer that writes one layer to the state topic.

    `on_durable` receives the durable layer and returns all layers of its bin. With `table`, tables
    hold the entries beyond one chunk. `manifest`, which names the bin's layers, and `bytes` (of
    this layer on the topic) are set once `step` has returned True. The manifest's epoch is the
    layer's upper time.
    """

    manifest: Manifest

    def __init__(
        self,
        head: Head,
        input: LayerInput,
        topic: StateTopic,
        on_durable: Callable[[LayerPointer], tuple[LayerPointer, ...]],
        table: Callable[[], TableWriter] | None = None,
    ) -> None:
        self.bytes = self._count = 0
        self._new_table = table
        self._table: TableWriter | None = None
        """The table of the present chunk, where it has one."""
        self._head, self._input, self._topic, self._on_durable = head, input, topic, on_durable
        self._empty = len(LayerChunk().to_bytes(self._head, CHUNK_ENTRIES)) + ENTRY_BYTES
        self._chunk, self._size = LayerChunk(), self._empty
        self._checksum = xxhash.xxh3_64()
        self._tickets: deque[tuple[Ticket, int]] = deque()
        """The tickets of chunks that are not yet durable, with the chunks' bytes."""
        self._all_sent = False
        """Whether the chunks contain all entries."""
        self._locations: list[RecordLocation] = []
        self._done = self.cancelled = False
        self._slices = self._run()

    def step(self, budget_entries: int) -> bool:
        """Do one slice of the work; return whether all chunks are durable.

        Raise MeanderError for a state above `STATE_LIMIT`, or when the topic refuses a chunk.
        """
        while self._tickets and (location := self._topic.appended(self._tickets[0][0])) is not None:
            self._tickets.popleft()
            self._locations.append(location)
        self._fuel = budget_entries
        next(self._slices, None)
        return self._done

    @property
    def awaits_delivery(self) -> bool:
        """Return whether all chunks have been sent and the writer only awaits their
        acknowledgement."""
        return self._all_sent

    @property
    def memory_bound(self) -> int:
        """Return the most bytes that the writer may hold in memory until the next step."""
        if self._all_sent:
            return sum(size for _, size in self._tickets)
        return (WINDOW + 1) * (CHUNK_BYTES if self._new_table is None else TABLE_BYTES)

    def cancel(self) -> None:
        """Cancel the layer before it is durable; tombstones delete its chunks on the topic."""
        self.cancelled = self._all_sent = True
        self._slices.close()
        self._input.close()
        if self._table is not None:
            self._table.discard()
        self._topic.delete(self._locations)
        while self._tickets:
            self._topic.abandon(self._tickets.popleft()[0])

    def _run(self) -> Generator[None, None, None]:
        yield from self._put_entries()
        if self._table is not None:
            yield from self._send()
        self._new_table = None
        yield from self._put_timers()
        if self._chunk:
            yield from self._send()
        self._all_sent = True
        while self._tickets:
            yield
        head, layer = self._head, self._pointer()
        epoch = head.description.upper
        assert isinstance(epoch, int), "a layer ends at a time of the outer scope"
        self.manifest = Manifest(head.operator, head.bin, epoch, self._on_durable(layer))
        self._done = True

    def _put_entries(self) -> Iterator[None]:
        while True:
            entries = self._input.read(min(self._fuel, CHUNK_ENTRIES))
            if entries is None:
                yield
            elif entries.keys:
                yield from self._put(*entries)
            else:
                return

    def _put(self, keys: list[bytes], states: list[EncodedState]) -> Iterator[None]:
        def put(first: int, end: int) -> None:
            if self._table is not None:
                self._put_table(keys[first:end], states[first:end])
                self._chunk.tabled += end - first
            else:
                self._chunk.keys += keys[first:end]
                self._chunk.states += states[first:end]

        yield from self._fill(keys, _lengths(keys) + _lengths([one or b"" for one in states]), put)

    def _put_table(self, keys: list[bytes], states: Sequence[EncodedState]) -> None:
        """Add entries to the table. It belongs to a base, which holds no forgotten key."""
        assert self._table is not None
        self._table.put(keys, [state for state in states if state is not None])

    def _put_timers(self) -> Iterator[None]:
        timers, start = self._input.timers, 0
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
        """Put entries of some sizes into as many chunks as they need."""
        sizes = sizes + ENTRY_BYTES
        self._check(keys, sizes)
        sums, first = np.cumsum(sizes), 0
        while first < len(keys):
            before = int(sums[first] - sizes[first])
            end = self._fit(sums, first, before)
            if end == first:
                yield from self._handle_full()
                continue
            put(first, end)
            self._size += int(sums[end - 1]) - before
            self._fuel -= end - first
            first = end
            if self._fuel <= 0:
                yield

    def _fit(self, sums: Lengths, first: int, before: int) -> int:
        """Return the index behind the entries that fit into the chunk. An empty chunk fits any
        entry."""
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
                "store less per key, or spread the state over several keys",
            )

    def _handle_full(self) -> Iterator[None]:
        """Move the entries of a full chunk into a table, or send the chunk."""
        if self._table is not None or self._new_table is None:
            yield from self._send()
            return
        keys, states = self._chunk.keys, self._chunk.states
        self._table = self._new_table()
        self._put_table(keys, states)
        self._chunk = LayerChunk(tabled=len(keys))
        self._size += EMPTY_TABLE_BYTES
        yield

    def _send(self) -> Iterator[None]:
        if self._table is not None:
            self._chunk.table, self._table = self._table.finish(), None
        number = len(self._locations) + len(self._tickets)
        payload = self._chunk.to_bytes(self._head, number)
        ticket = self._topic.append(self._head.id.key(number), payload)
        self._tickets.append((ticket, len(payload)))
        self._checksum.update(payload[:CHECKSUM_BYTES])
        self._count += self._chunk.count
        self.bytes += len(payload)
        self._chunk, self._size = LayerChunk(), self._empty
        yield
        while len(self._tickets) >= WINDOW:
            yield

    def _pointer(self) -> LayerPointer:
        head = self._head
        return LayerPointer(
            head.id, head.description, head.kind, self._count, self._checksum.intdigest(),
            head.codec, tuple(self._locations),
        )  # fmt: skip


def _lengths(items: Sequence[bytes]) -> Lengths:
    return np.fromiter(map(len, items), np.int64, len(items))
