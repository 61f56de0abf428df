"""What layers are made of: a bin as a whole, what has changed in it, or other layers merged.

Each yields entries in key order, and holds no more of them than the memtable has of the bin, or two
chunks for each layer that is merged (I6). Cost: as the store's; merging takes about 1 us an entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Final

from state.chunk import Head
from state.ids import Bin
from state.layer import Entries, Timers, chunks_of
from state.manifest import LayerPointer
from state.store import Store
from state.topic import StateTopic

WINDOW: Final = 2
"""Chunks of each layer that are read ahead."""


class Whole:
    """A bin as it is when this is made."""

    def __init__(self, store: Store, bin: Bin, timers: Timers) -> None:
        self.timers = timers
        self._scan = store.scan(bin)

    def take(self, most: int) -> Entries:
        """As `Contents` says."""
        some = list(islice(self._scan, most))
        return Entries([key for key, _ in some], [state for _, state in some])

    def close(self) -> None:
        """Nothing is under way."""


class Changed:
    """Some keys of a bin, in order, with their states as they are when they are taken."""

    def __init__(self, store: Store, bin: Bin, keys: Sequence[bytes], timers: Timers) -> None:
        self.timers = timers
        self._store, self._bin, self._keys, self._next = store, bin, keys, 0

    def take(self, most: int) -> Entries:
        """As `Contents` says."""
        keys = list(self._keys[self._next : self._next + most])
        self._next += len(keys)
        return Entries(keys, self._store.read(self._bin, keys))

    def close(self) -> None:
        """Nothing is under way."""


class Merged:
    """Layers of one bin, oldest first: of each key the newest state, and the newest timers."""

    def __init__(
        self, topic: StateTopic, operator: str, bin: Bin, layers: Sequence[LayerPointer]
    ) -> None:
        self._streams = [_Stream(topic, Head.of(operator, bin, layer), layer) for layer in layers]
        self._merged = Entries([], [])

    @property
    def timers(self) -> Timers:
        """As `Contents` says."""
        return self._streams[-1].timers

    def take(self, most: int) -> Entries | None:
        """As `Contents` says; reads one chunk at most."""
        if not self._merged.keys:
            for stream in self._streams:
                if stream.lacking:
                    stream.advance()
                    return None
            self._merge()
        keys, states = self._merged
        self._merged = Entries(keys[most:], states[most:])
        return Entries(keys[:most], states[:most])

    def close(self) -> None:
        """Give up what is being read."""
        for stream in self._streams:
            stream.close()

    def _merge(self) -> None:
        """Merge what no later chunk can add to."""
        here = [stream for stream in self._streams if stream.keys]
        until = min((stream.keys[-1] for stream in here), default=b"")
        newest: dict[bytes, bytes] = {}
        for stream in here:
            newest.update(stream.cut(until))
        keys = sorted(newest)
        self._merged = Entries(keys, list(map(newest.__getitem__, keys)))


class _Stream:
    """The entries of one layer that have been read and not merged."""

    def __init__(self, topic: StateTopic, head: Head, layer: LayerPointer) -> None:
        self.timers: list[tuple[int, bytes]] = []
        self.keys: list[bytes] = []
        self._states: list[bytes] = []
        self._chunks = chunks_of(topic, head, layer, WINDOW)
        self._ended = False

    @property
    def lacking(self) -> bool:
        """Whether it may have more, and has nothing here."""
        return not (self.keys or self._ended)

    def advance(self) -> None:
        """Have the next chunk, if it is here."""
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._ended = True
            return
        if chunk is not None:
            self.keys, self._states = chunk.keys, chunk.states
            self.timers += chunk.timers

    def cut(self, until: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Take the entries up to a key."""
        end = bisect_right(self.keys, until)
        cut = list(zip(self.keys[:end], self._states[:end], strict=True))
        self.keys, self._states = self.keys[end:], self._states[end:]
        return cut

    def close(self) -> None:
        """Give up what is being read."""
        self._chunks.close()
