"""Layers: their entries, their inputs, and the order in which their chunks are read.

Invariants: entries are read byte for byte as they were written (I4), or LayerCorrupt is raised. A
byte bound limits the chunks requested at once (I6). No call blocks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash

from meander.state.encoding.cells import EncodedState
from meander.state.encoding.timers import Timers
from meander.state.layers.chunk import CHECKSUM_BYTES, Head, LayerChunk, LayerCorrupt
from meander.state.layers.manifest import LayerPointer
from meander.state.layers.topic import RecordLocation, StateTopic

CHUNK_ENTRIES: Final = 2048
"""The most entries of a chunk without a table; a chunk takes a millisecond to read or write."""


class Entries(NamedTuple):
    """Entries that pair keys with their encoded states, in key order. The entry of a forgotten key
    has None."""

    keys: list[bytes]
    states: list[EncodedState]


class DeltaEntries(NamedTuple):
    """A delta that holds changed keys of a bin with their encoded states, in key order. The entry
    of a forgotten key has None."""

    keys: list[bytes]
    states: list[EncodedState]
    timers: Timers | None
    """All timers of the bin; None where they equal those of its last layer."""


NO_DELTA: Final = DeltaEntries([], [], None)


def merge_deltas(deltas: Sequence[DeltaEntries]) -> DeltaEntries:
    """Merge deltas of one bin into one; later deltas override earlier ones. A forgotten key stays
    forgotten, as a layer may hold it.

    >>> earlier = DeltaEntries([b"a", b"b"], [b"1", b"2"], [(5, b"a")])
    >>> merge_deltas([earlier, DeltaEntries([b"a"], [b"3"], None)])
    DeltaEntries(keys=[b'a', b'b'], states=[b'3', b'2'], timers=[(5, b'a')])
    """
    if len(deltas) <= 1:
        return deltas[0] if deltas else NO_DELTA
    found, timers = dict[bytes, EncodedState](), NO_DELTA.timers
    for keys, states, known in deltas:
        found.update(zip(keys, states, strict=True))
        timers = timers if known is None else known
    keys = sorted(found)
    return DeltaEntries(keys, [found[key] for key in keys], timers)


class LayerInput(Protocol):
    """A layer input that yields the entries of one layer."""

    @property
    def timers(self) -> Timers:
        """Return all timers of the bin. They are complete once all entries have been read."""

    def read(self, most: int) -> Entries | None:
        """Return at most `most` of the next entries, none at the end. Return None while they are
        not available."""

    def close(self) -> None:
        """Cancel open fetches and release resources."""


Payloads = Generator[bytes | None, None, None]


def read_payloads(
    topic: StateTopic, locations: Sequence[RecordLocation], most_bytes: int
) -> Payloads:
    """Yield the payloads at some locations in order, or None while the next has not arrived.
    Request at most `most_bytes` at once, or one record."""
    ends, first = np.cumsum([location.size for location in locations]), 0
    while first < len(locations):
        most = int(ends[first]) - locations[first].size + most_bytes
        end = max(first + 1, int(np.searchsorted(ends, most, side="right")))
        ticket = topic.fetch(locations[first:end])
        try:
            while (found := topic.fetched(ticket)) is None:
                yield None
        except GeneratorExit:
            topic.abandon(ticket)
            raise
        if len(found) != end - first:
            where = f"state record {locations[first].key!r} and the records requested with it"
            raise LayerCorrupt(where, "number of records", end - first, len(found))
        yield from found
        first = end


def read_chunks(
    head: Head, layer: LayerPointer, payloads: Payloads
) -> Generator[LayerChunk | None, None, None]:
    """Yield the chunks of a layer in order from the payloads at their locations, or None while the
    next has not arrived.

    Raise LayerCorrupt where a chunk differs from the layer's pointer.
    """
    checksum, count = xxhash.xxh3_64(), 0
    for number, location in enumerate(layer.chunks):
        if location.key != head.id.key(number):
            where = f"{head}, chunk {number}"
            raise LayerCorrupt(where, "key", head.id.key(number), location.key)
        while (payload := next(payloads)) is None:
            yield None
        chunk = LayerChunk.from_bytes(payload, head, number)
        checksum.update(payload[:CHECKSUM_BYTES])
        count += chunk.count
        yield chunk
    if count != layer.count:
        raise LayerCorrupt(str(head), "count of keys", layer.count, count)
    if checksum.intdigest() != layer.checksum:
        raise LayerCorrupt(str(head), "checksum", f"{layer.checksum:016x}", checksum.hexdigest())
