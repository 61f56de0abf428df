"""The states written since they were last spilled, in memory: a table per operator.

Invariant: `size` is the sum of the weights of what is held, and at least what it takes in memory as
far as Python tells. One memtable serves all operators of a process, so that they share one bound;
what is spilled first is the oldest bin's oldest keys. A key has a slot of its own for as long as it
is held, so it is looked up once a batch; its bin follows from it, and each bin knows its keys.
Cost: a look-up per record; a key's first write and its spill cost about a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Final

import numpy as np

from schemas.errors import MeanderError
from state.cells import Cells, Slots
from state.codec import encoded

ENTRY_BYTES: Final = 192
"""What a key, its slots in two dictionaries and the number of its slot take besides the key's
bytes."""
BIN_BYTES: Final = 2
NO_SLOT: Final = -1


class Table:
    """One operator's keys: the slot of each, whose state the cells hold, and those of each bin."""

    def __init__(self, prefix: bytes, cells: Cells) -> None:
        self.prefix, self.cells = prefix, cells
        """The prefix is that of its keys in the database; a bin's two bytes follow."""
        self.slots: dict[bytes, int] = {}
        self.bins: dict[int, dict[bytes, None]] = {}
        self._free = list(range(len(cells)))

    def find(self, keys: Sequence[bytes]) -> Slots:
        """The slot of each key, `NO_SLOT` for those that are not held; shape (n,)."""
        return np.fromiter(map(self.slots.get, keys, repeat(NO_SLOT)), np.int64, len(keys))

    def admit(self, bins: Mapping[bytes, int]) -> Slots:
        """Hold some keys that are not held, each of a bin: their slots, which have no states."""
        while len(self._free) < len(bins):
            before = len(self.cells)
            self.cells.grow()
            self._free += range(before, len(self.cells))
        first = len(self._free) - len(bins)
        taken, self._free[first:] = self._free[first:], []
        self.slots.update(zip(bins, taken, strict=True))
        for key, bin in bins.items():
            self.bins.setdefault(bin, {})[key] = None
        return np.array(taken, np.int64)

    def release(self, bin: int, keys: Sequence[bytes]) -> None:
        """Hold some keys of a bin no longer, all of which are held."""
        held = self.bins[bin]
        for key in keys:
            del held[key]
        if not held:
            del self.bins[bin]
        slots = list(map(self.slots.pop, keys))
        self.cells.vacate(np.array(slots, np.int64))
        self._free += slots


class Memtable:
    r"""Tables within one bound.

    >>> from state.cells import SealedCells
    >>> memtable, cells = Memtable(), SealedCells()
    >>> table = memtable.add(Table(b"a/", cells))
    >>> for slot, state in zip(table.admit({b"2": 7, b"1": 7, b"3": 8}), [20, 10, 30]):
    ...     cells.states[slot] = state
    >>> memtable.noted(table, [b"2", b"1", b"3"])
    >>> memtable.entries(table, 7)
    [(b'1', 10), (b'2', 20)]
    >>> group, spilled = memtable.spill(2)
    >>> group, [key for key, _ in spilled], memtable.entries(table, 7)
    (b'a/\x00\x07', [b'a/\x00\x072', b'a/\x00\x071'], [])
    """

    def __init__(self) -> None:
        self.tables: dict[bytes, Table] = {}
        self.size = 0
        """Bytes, estimated."""

    def add(self, table: Table) -> Table:
        """One more table. Raises MeanderError where another has its prefix."""
        if self.tables.setdefault(table.prefix, table) is not table:
            raise MeanderError(f"table {table.prefix!r}", "it is open already", "open it once")
        return table

    def noted(self, table: Table, keys: Sequence[bytes]) -> None:
        """Some keys have come into a table."""
        self.size += self._weigh(table, keys)

    def entries(self, table: Table, bin: int) -> list[tuple[bytes, object]]:
        """The keys and sealed states of a bin, in key order, as they are now."""
        keys = sorted(table.bins.get(bin, ()))
        return list(zip(keys, table.cells.take(table.find(keys)), strict=True))

    def forget(self, table: Table, bin: int, keys: Iterable[bytes]) -> None:
        """Drop some keys of a bin, held or not."""
        held = table.bins.get(bin, {})
        gone = [key for key in keys if key in held]
        if gone:
            self.size -= self._weigh(table, gone)
            table.release(bin, gone)

    def drop(self, table: Table, bin: int) -> None:
        """Drop all keys of a bin."""
        self.forget(table, bin, list(table.bins.get(bin, ())))

    def spill(self, count: int) -> tuple[bytes, Iterator[tuple[bytes, bytes]]]:
        """Take out up to `count` keys of one bin: the prefix of their database keys, and these with
        the encoded states."""
        table = next(table for table in self.tables.values() if table.bins)
        bin, held = next(iter(table.bins.items()))
        keys = list(islice(held, count))
        states = table.cells.take(table.find(keys))
        self.forget(table, bin, keys)
        group = table.prefix + bin.to_bytes(BIN_BYTES, "big")
        oldest = zip(keys, states, strict=True)
        return group, ((group + key, encoded(state)) for key, state in oldest)

    def _weigh(self, table: Table, keys: Sequence[bytes]) -> int:
        """Bytes that some keys of a table take with their states."""
        each = ENTRY_BYTES + table.cells.slot_bytes
        return each * len(keys) + sum(map(len, keys)) + table.cells.weigh(table.find(keys))
