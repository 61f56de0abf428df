"""Stored updates: the updates of an operator's traces as entries of its store, by bin.

Guarantees that the entries of a bin are all that a new owner, or a restart, needs to fill its
traces. So checkpoints, deltas and migrations take collections as they take any state. Each bin has
levels of doubling size, and new updates merge into the first level with room, with times advanced
to `since`. Invariant: the keys of the entries are few and fixed, as a store deletes no key. Cost:
each update is written log n times, in entries of at most `PIECE_ROWS` rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from struct import Struct

import numpy as np

from meander.state.collections.columns import Int64s
from meander.state.collections.description import Description
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
from meander.state.encoding.codec import decode, unseal
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain

FIRST_ROWS = 64
"""The most rows of the first level; each further one has twice as many."""
PIECE_ROWS = 2048
"""The most rows of an entry."""
_EMPTY = b""
_KEY = Struct(">HBBI")
"""A bin, a trace, a level and a piece. A key belongs to one bin, as all keys of a store do."""

Place = tuple[int, Bin]
"""A trace by its number, and a bin."""


class StoredUpdates:
    """The stored updates of one operator on one worker."""

    def __init__(self, store: Store, space: BinSpace, depth: int) -> None:
        self._store, self._space, self._depth = store, space, depth
        self._rows: defaultdict[Place, dict[int, int]] = defaultdict(dict)
        """The rows of each level that has some."""
        self._pieces: defaultdict[Place, dict[int, int]] = defaultdict(dict)
        """The entries of each level that exist, empty ones included."""

    def add(self, trace: int, updates: Updates, since: Antichain) -> None:
        """Add updates of a trace; `since` is a frontier that no later update precedes."""
        if not len(updates):
            return
        bins = self._space.bins_of(hashes_of(updates.keys))
        order = np.argsort(bins, kind="stable")
        starts = np.flatnonzero(np.diff(bins[order], prepend=-1))
        new = {
            (trace, Bin(int(bins[rows[0]]))): updates.take(rows)
            for rows in np.split(order, starts[1:])
        }
        merged = {place: self._levels_to_merge(place, len(some)) for place, some in new.items()}
        old = self._read(
            (place, level) for place, (_, levels) in merged.items() for level in levels
        )
        written = dict[tuple[Place, int], Updates]()
        for place, some in new.items():
            target, levels = merged[place]
            parts = [some, *(old[place, level] for level in levels)]
            for level in levels:
                written[place, level] = Updates.of([], self._depth)
            written[place, target] = self._consolidated(parts, since) if levels else some
        self._write(written)

    def load(self, bin: Bin) -> dict[int, Updates]:
        """Return the updates of a bin by the number of the trace, as the store has them."""
        self.forget(bin)
        found = defaultdict[int, list[Updates]](list)
        for key, data in self._store.scan(bin):
            _, trace, level, piece = _KEY.unpack(key)
            some = _decoded(decode(data), self._depth)
            place = trace, bin
            pieces = self._pieces[place]
            pieces[level] = max(pieces.get(level, 0), piece + 1)
            if len(some):
                self._rows[place][level] = self._rows[place].get(level, 0) + len(some)
                found[trace].append(some)
        return {trace: Updates.concat(some) for trace, some in found.items()}

    def forget(self, bin: Bin) -> None:
        """Forget what the levels of a bin hold, as the bin is another worker's."""
        for known in (self._rows, self._pieces):
            for place in [place for place in known if place[1] == bin]:
                del known[place]

    def _levels_to_merge(self, place: Place, rows: int) -> tuple[int, list[int]]:
        """Return the level for new rows of a bin, and the levels that merge into it."""
        held, levels = self._rows[place], list[int]()
        target = _level(rows)
        while fit := [level for level in held if level <= target and level not in levels]:
            levels += fit
            target = _level(rows + sum(held[level] for level in levels))
        return target, levels

    def _consolidated(self, parts: list[Updates], since: Antichain) -> Updates:
        layer = layer_of(Updates.concat(parts), Description(since, since, since))
        return Updates.concat([Updates.of([], self._depth), *layer.updates()])

    def _read(self, levels: Iterable[tuple[Place, int]]) -> dict[tuple[Place, int], Updates]:
        entries = [
            (place, level, piece)
            for place, level in levels
            for piece in range(self._pieces[place][level])
        ]
        found = defaultdict[tuple[Place, int], list[Updates]](list)
        if not entries:
            return {}
        keys, bins = _keys(entries)
        with self._store.open_batch(keys, bins) as batch:
            for (place, level, _), slot in zip(entries, batch.slots.tolist(), strict=True):
                found[place, level].append(_decoded(unseal(batch.sealed[slot]), self._depth))
        return {at: Updates.concat(some) for at, some in found.items()}

    def _write(self, levels: dict[tuple[Place, int], Updates]) -> None:
        entries, values = list[tuple[Place, int, int]](), list[bytes]()
        for (place, level), updates in levels.items():
            needed = -(-len(updates) // PIECE_ROWS)
            held = self._pieces[place].get(level, 0)
            for piece in range(max(needed, held)):
                some = updates.take(slice(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS))
                entries.append((place, level, piece))
                values.append(_encoded(some) if len(some) else _EMPTY)
            self._pieces[place][level] = max(needed, held)
            self._rows[place].pop(level, None)
            if len(updates):
                self._rows[place][level] = len(updates)
        keys, bins = _keys(entries)
        with self._store.open_batch(keys, bins) as batch:
            for slot, value in zip(batch.slots.tolist(), values, strict=True):
                batch.sealed[slot] = value


def _level(rows: int) -> int:
    """Return the first level that has room for some rows.

    >>> _level(64), _level(65), _level(129)
    (0, 1, 2)
    """
    return ((rows - 1) // FIRST_ROWS).bit_length()


def _keys(entries: list[tuple[Place, int, int]]) -> tuple[list[bytes], Int64s]:
    keys = [_KEY.pack(bin, trace, level, piece) for (trace, bin), level, piece in entries]
    return keys, np.array([bin for (_, bin), _, _ in entries], np.int64)


def _encoded(updates: Updates) -> bytes:
    times = (np.ascontiguousarray(column) for column in updates.times.T)
    return ValueColumns((updates.keys, updates.values, updates.diffs, *times)).encode()


def _decoded(data: object, depth: int) -> Updates:
    assert isinstance(data, bytes), "an entry holds bytes"
    if not data:
        return Updates.of([], depth)
    keys, values, diffs, *times = ValueColumns.decode(data).columns
    return Updates(keys, values, np.stack(times, axis=1), diffs)
