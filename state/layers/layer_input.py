"""Layer inputs: a whole bin, the changes of a bin, or other layers merged.

Each input yields entries in key order, a slice at a time. No step sorts, reads, merges or holds
more than a few chunks of entries (I6). A slice from a store has the states of the moment when it is
read; its keys no longer count as changed. Cost: that of the store, and 0.5 to 1 us per entry to
merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from meander.state.encoding.cells import EncodedState
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin
from meander.state.layers.chunk import Head
from meander.state.layers.layer import CHUNK_ENTRIES, Entries, read_chunks, read_payloads
from meander.state.layers.manifest import LayerPointer
from meander.state.layers.topic import StateTopic
from meander.state.store.store import Store

AHEAD_BYTES: Final = 128 << 10
"""The most bytes that are read ahead of each layer, unless one chunk exceeds them."""


class KeySorter:
    """A sorter that sorts keys in runs and merges the runs as callers read keys.

    >>> keys = KeySorter([b"%04d" % (n * 7 % 5000) for n in range(5000)])
    >>> taken = [key for _ in range(5003) for key in keys.read(1) or ()]
    >>> taken == [b"%04d" % n for n in range(5000)]
    True
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._unsorted, self._sorted = list(keys), list[bytes]()
        self._runs: list[list[bytes]] = []
        self._starts: list[int] = []

    def read(self, most: int) -> list[bytes] | None:
        """Return at most `most` of the next keys, none at the end. Return None while they are
        unsorted."""
        if 0 < len(self._unsorted) <= CHUNK_ENTRIES and not self._runs:
            self._sorted, self._unsorted = sorted(self._unsorted), []
        if self._unsorted:
            self._runs.append(sorted(self._unsorted[-CHUNK_ENTRIES:]))
            self._starts.append(0)
            del self._unsorted[-CHUNK_ENTRIES:]
            return None
        if not self._sorted:
            self._merge()
        keys, self._sorted = self._sorted[:most], self._sorted[most:]
        return keys

    def _merge(self) -> None:
        """Merge about one chunk of keys: from all runs the keys up to a bound."""
        share = max(1, CHUNK_ENTRIES // max(1, len(self._runs)))
        runs = zip(self._runs, self._starts, strict=True)
        left = [(run, start) for run, start in runs if start < len(run)]
        last = min((run[min(start + share, len(run)) - 1] for run, start in left), default=b"")
        self._runs, self._starts = [run for run, _ in left], []
        for run, start in left:
            end = bisect_right(run, last, start)
            self._sorted += run[start:end]
            self._starts.append(end)
        self._sorted.sort()


class ChangedInput:
    """A layer input that yields the changed keys of a bin from the store."""

    def __init__(self, store: Store, bin: Bin, keys: Sequence[bytes], timers: Timers) -> None:
        self.timers = timers
        self._store, self._bin, self._keys = store, bin, KeySorter(keys)

    def read(self, most: int) -> Entries | None:
        """Return entries as `LayerInput` does."""
        keys = self._keys.read(most)
        if keys is None:
            return None
        return Entries(keys, self._store.collect_states(self._bin, keys))

    def close(self) -> None:
        """Do nothing, as no fetch is open."""


class EntryStream:
    """A stream that buffers the entries of `read` as they arrive, for an input that merges."""

    def __init__(self, read: Callable[[], Entries | None]) -> None:
        self.keys: list[bytes] = []
        self._states: list[EncodedState] = []
        self._read, self._ended = read, False

    @property
    def is_starved(self) -> bool:
        """Return whether the stream awaits entries: it has not ended and holds none."""
        return not (self.keys or self._ended)

    @property
    def has_more(self) -> bool:
        """Return whether the stream holds or awaits entries."""
        return bool(self.keys) or not self._ended

    def receive(self) -> None:
        """Receive the next entries where they have arrived."""
        entries = self._read()
        if entries is not None:
            self.keys, self._states = entries
            self._ended = not self.keys

    def read_until(self, last: bytes) -> Sequence[tuple[bytes, EncodedState]]:
        """Remove and return the entries up to a key."""
        end = bisect_right(self.keys, last)
        entries = list(zip(self.keys[:end], self._states[:end], strict=True))
        self.keys, self._states = self.keys[end:], self._states[end:]
        return entries


class MergingInput:
    """A layer input that merges streams, oldest first, and yields the newest entry of each key.

    It also yields forgotten keys, which an earlier layer may hold.
    """

    yields_forgotten = True
    """Whether it also yields forgotten keys."""

    def __init__(self, streams: Sequence[EntryStream]) -> None:
        self._streams = streams
        self._merged = Entries([], [])

    def read(self, most: int) -> Entries | None:
        """Return entries as `LayerInput` does; read from one stream at most."""
        if not self._merged.keys:
            for stream in self._streams:
                if stream.is_starved:
                    stream.receive()
                    return None
            self._merge()
            if not self._merged.keys and any(stream.has_more for stream in self._streams):
                return None
        keys, states = self._merged
        self._merged = Entries(keys[most:], states[most:])
        return Entries(keys[:most], states[:most])

    def _merge(self) -> None:
        """Merge the entries that no later entry of a stream can override."""
        filled = [stream for stream in self._streams if stream.keys]
        last = min((stream.keys[-1] for stream in filled), default=b"")
        newest: dict[bytes, EncodedState] = {}
        for stream in filled:
            newest.update(stream.read_until(last))
        keys = sorted(newest)
        if not self.yields_forgotten:
            keys = [key for key in keys if newest[key] is not None]
        self._merged = Entries(keys, list(map(newest.__getitem__, keys)))


class WholeBinInput(MergingInput):
    """A layer input that yields a whole bin: its entries on disk at construction, and its entries
    in memory. No layer precedes it, so it yields no forgotten key."""

    yields_forgotten = False

    def __init__(self, store: Store, bin: Bin, timers: Timers) -> None:
        self.timers = timers
        disk = partial(_next_entries, store.entries_on_disk(bin))
        fresh = ChangedInput(store, bin, store.keys_in_memory(bin), ())
        super().__init__([EntryStream(disk), EntryStream(partial(fresh.read, CHUNK_ENTRIES))])

    def close(self) -> None:
        """Do nothing, as no fetch is open."""


def _next_entries(disk: Iterator[tuple[bytes, bytes]]) -> Entries:
    # A method of the input would be a cycle, and keep the entries until a collection of garbage.
    some = list(islice(disk, CHUNK_ENTRIES))
    return Entries([key for key, _ in some], [state for _, state in some])


class MergedLayersInput(MergingInput):
    """A layer input that merges layers of one bin, oldest first, and keeps the newest layer's
    timers."""

    def __init__(
        self, topic: StateTopic, operator: str, bin: Bin, layers: Sequence[LayerPointer]
    ) -> None:
        self._layers = [LayerStream(topic, Head.of(operator, bin, one), one) for one in layers]
        super().__init__([EntryStream(layer.next) for layer in self._layers])

    @property
    def timers(self) -> Timers:
        """Return the timers as `LayerInput` does."""
        return self._layers[-1].timers

    def close(self) -> None:
        """Cancel all open fetches."""
        for layer in self._layers:
            layer.close()


class LayerStream:
    """A layer that an input reads chunk by chunk."""

    def __init__(self, topic: StateTopic, head: Head, layer: LayerPointer) -> None:
        self.timers: list[tuple[int, bytes]] = []
        self._payloads = read_payloads(topic, layer.chunks, AHEAD_BYTES)
        self._chunks = read_chunks(head, layer, self._payloads)

    def next(self) -> Entries | None:
        """Return the entries of the next chunk, none at the end. Return None while they have not
        arrived."""
        for chunk in self._chunks:
            if chunk is None:
                return None
            assert not chunk.table, "a base is never merged"
            self.timers += chunk.timers
            if chunk.keys:
                return Entries(chunk.keys, chunk.states)
        return Entries([], [])

    def close(self) -> None:
        """Cancel the open fetch."""
        self._payloads.close()
