"""The memtable: recently written states in memory, one table per operator.

Invariant: the `size` of a table sums the weights of its states and slots, and estimates its memory
(I6). One memtable serves all operators of a process, so they share one bound. A spill takes the
oldest keys of the oldest bin of the largest table. A key keeps its slot while the table holds it,
so a batch looks it up once; the bin follows from the key. Cost: one look-up per record. The first
write of a key and its spill take about a microsecond. A table returns excess slots at 0.2 us for
each remaining key.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import INITIAL_SLOTS, Cells, Slots
from meander.state.encoding.codec import encode_sealed

ENTRY_BYTES: Final = 144
"""The bytes of a key besides its own: its slot's number and its place among its bin's keys."""
SLOT_BYTES: Final = 57
"""The bytes of a slot besides its cell, used or free. The first slots of a table do not count."""
SPARSE: Final = 4
"""The number of slots per key from which on a table is too sparse."""
BIN_BYTES: Final = 2
NO_SLOT: Final = -1


class StateTable:
    """A table that holds the slot of each key of one operator and the keys of each bin. The cells
    hold the states."""

    def __init__(self, prefix: bytes, cells: Cells) -> None:
        self.prefix, self.cells = prefix, cells
        """The prefix of the table's keys in the database; two bytes of the bin follow."""
        self.size = 0
        """Bytes, estimated."""
        self.slots: dict[bytes, int] = {}
        self.bins: dict[int, dict[bytes, None]] = {}
        self.dirty = np.zeros(len(cells), np.bool_)
        """Whether the key of each slot is known to have changed; false for a free slot."""
        self.live: Counter[int] = Counter()
        """About the number of keys and rows of each bin, in memory or on disk."""
        self.rows: Counter[int] = Counter()
        """The number of rows of each bin (`Store.write_rows`)."""
        self.uncounted: set[int] = set()
        """The bins in whose number a key may count more than once."""
        self.forgotten = 0
        """The number of forgotten keys."""
        self.on_disk = np.zeros(len(cells), np.bool_)
        """Whether an older state of each slot's key lies on disk; false for a free slot."""
        self._free = array("q", range(len(cells)))

    def find(self, keys: Sequence[bytes]) -> Slots:
        """Return the slot of each key, `NO_SLOT` for an absent key; shape (n,)."""
        return np.fromiter(map(self.slots.get, keys, repeat(NO_SLOT)), np.int64, len(keys))

    def insert(self, bins: Mapping[bytes, int]) -> Slots:
        """Add absent keys, each with its bin; return their slots, which hold no states."""
        while len(self._free) < len(bins):
            before = len(self.cells)
            self.cells.grow()
            self._free.extend(range(before, len(self.cells)))
            self.dirty = _resized(self.dirty, len(self.cells))
            self.on_disk = _resized(self.on_disk, len(self.cells))
            self.size += (len(self.cells) - before) * self._slot_bytes
        first = len(self._free) - len(bins)
        new = self._free[first:]
        del self._free[first:]
        self.slots.update(zip(bins, new, strict=True))
        for key, bin in bins.items():
            self.bins.setdefault(bin, {})[key] = None
        slots = np.array(new, np.int64)
        self.size += self._weigh(bins, slots)
        return slots

    def load(self, slots: Slots, states: Sequence[bytes]) -> None:
        """Set states from disk in different slots."""
        before = self.cells.weigh(slots)
        self.cells.load(slots, states)
        self.on_disk[slots] = True
        self.size += self.cells.weigh(slots) - before

    def remove(self, keys: Sequence[bytes], bins: Sequence[int]) -> None:
        """Remove keys; `bins[i]` is the bin of `keys[i]`. The table must hold all of them."""
        for key, bin in zip(keys, bins, strict=True):
            keys_of_bin = self.bins[bin]
            del keys_of_bin[key]
            if not keys_of_bin:
                del self.bins[bin]
        slots = np.array(list(map(self.slots.pop, keys)), np.int64)
        self.size -= self._weigh(keys, slots)
        self.cells.clear(slots)
        self.dirty[slots] = self.on_disk[slots] = False
        self._free.extend(slots.tolist())
        if INITIAL_SLOTS < len(self.cells) >= SPARSE * len(self.slots):
            self._compact()

    def _compact(self) -> None:
        """Return excess slots; the remaining keys get new ones."""
        before, keys = len(self.cells), list(self.slots)
        count = max(INITIAL_SLOTS, 2 * len(keys))
        slots = self.find(keys)
        self.cells.resize(slots, count)
        self.dirty = _resized(self.dirty[slots], count)
        self.on_disk = _resized(self.on_disk[slots], count)
        self.slots = dict(zip(keys, range(len(keys)), strict=True))
        self._free = array("q", range(len(keys), count))
        self.size -= (before - count) * self._slot_bytes

    def _weigh(self, keys: Iterable[bytes], slots: Slots) -> int:
        return ENTRY_BYTES * len(slots) + sum(map(len, keys)) + self.cells.weigh(slots)

    @property
    def _slot_bytes(self) -> int:
        return SLOT_BYTES + self.cells.cell_bytes


class Memtable:
    r"""A memtable that keeps tables within one bound.

    >>> from meander.state.encoding.cells import SealedCells
    >>> memtable, cells = Memtable(), SealedCells()
    >>> table = memtable.add(StateTable(b"a/", cells))
    >>> for slot, state in zip(table.insert({b"2": 7, b"1": 7, b"3": 8}), [20, 10, 30]):
    ...     cells.states[slot] = state
    >>> memtable.entries(table, 7)
    [(b'1', 10), (b'2', 20)]
    >>> group, spilled = memtable.spill(2)
    >>> group, [key for key, _ in spilled], memtable.entries(table, 7)
    (b'a/\x00\x07', [b'a/\x00\x072', b'a/\x00\x071'], [])
    """

    def __init__(self) -> None:
        self.tables: dict[bytes, StateTable] = {}

    @property
    def size(self) -> int:
        """Bytes, estimated."""
        return sum(table.size for table in self.tables.values())

    def add(self, table: StateTable) -> StateTable:
        """Add a table. Raise MeanderError where another has its prefix."""
        if self.tables.setdefault(table.prefix, table) is not table:
            raise MeanderError(f"table {table.prefix!r}", "it is open already", "open it once")
        return table

    def entries(self, table: StateTable, bin: int) -> list[tuple[bytes, object]]:
        """Return the keys and sealed states of a bin in key order, as of the call."""
        keys = sorted(table.bins.get(bin, ()))
        return list(zip(keys, table.cells.get(table.find(keys)), strict=True))

    def remove(self, table: StateTable, bin: int, keys: Iterable[bytes]) -> None:
        """Remove keys of a bin, present or not."""
        present = table.bins.get(bin, {})
        removed = [key for key in keys if key in present]
        if removed:
            table.remove(removed, [bin] * len(removed))

    def drop(self, table: StateTable, bin: int) -> None:
        """Remove all keys of a bin."""
        self.remove(table, bin, list(table.bins.get(bin, ())))

    def spill(self, count: int) -> tuple[bytes, Iterator[tuple[bytes, bytes]]]:
        """Remove at most `count` keys of one bin. Return the prefix of their database keys, and
        these keys with the encoded states."""
        table = max(self.tables.values(), key=lambda table: table.size)
        bin, present = next(iter(table.bins.items()))
        keys = list(islice(present, count))
        states = table.cells.get(table.find(keys))
        self.remove(table, bin, keys)
        prefix = table.prefix + bin.to_bytes(BIN_BYTES, "big")
        oldest = zip(keys, states, strict=True)
        return prefix, ((prefix + key, encode_sealed(state)) for key, state in oldest)


def _resized(flags: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.bool_]:
    return np.concatenate([flags, np.zeros(size - len(flags), np.bool_)])
