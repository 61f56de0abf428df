"""Keyed state on one worker: a memtable before RocksDB, one of each per process.

All operators share one RocksDB and one key space: operator, NUL, bin (2 bytes), key. Column
families would give each operator its own write buffers and files, and with them a budget of its
own to be divided; a prefix costs a few bytes that block encoding takes out again, and a bin is one
range in either case. Invariants: what `scan` yields is the bin as it was when the scan began; bytes
held never exceed the budget for longer than one write (I6). There is no write-ahead log, and a
database starts empty: local state is a cache, authority lies in the state topic.
Cost: 1000 hot keys are fetched and written in about 1 ms, a miss costs about 3 us.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import numpy as np
import numpy.typing as npt
from rocksdict import Cache, Rdict, WriteBatch, WriteOptions

from schemas.errors import MeanderError, SetupError
from state.codec import PLAIN, Sealed, StateCodec, decode, encoded
from state.ids import Bin
from state.memtable import ABSENT, BIN_BYTES, Memtable, Table, lacking
from state.rocks import below, options, successor
from state.slots import NO_SLOT, Columns, Layout, SlotTable

Bins = npt.NDArray[np.int64]
SPILL_KEYS: Final = 256
"""Keys that leave the memtable at once: well under a millisecond of small ones."""


class Database:
    """The keyed state of all operators of one process, within one budget of bytes.

    Half of the budget is the memtable's, three eighths are RocksDB's block cache, which holds
    indexes, filters and write buffers (up to a third of it) too; an eighth is left for what RocksDB
    goes over for a moment, as its cache gives way only once a flush has ended. What an earlier
    process left at `path` is destroyed. Raises SetupError when another process has it open.

    >>> from tempfile import mkdtemp
    >>> database = Database(mkdtemp(), budget_bytes=8 << 20)
    >>> store = database.store("per_plane")
    >>> with store.lend([b"N14228", b"N24211"], np.array([3, 3])) as states:
    ...     states[b"N14228"] = (1, 2.5)
    >>> list(store.scan(3)) == [(b"N14228", encoded((1, 2.5)))]
    True
    >>> database.close()
    """

    def __init__(self, path: str | Path, budget_bytes: int) -> None:
        self.memtable = Memtable()
        self.groups: set[bytes] = set()
        """The prefixes of the bins of which something lies in RocksDB."""
        self._memtable_bytes = budget_bytes // 2
        self._cache = Cache(budget_bytes * 3 // 8)
        settings = options(self._cache, budget_bytes // 8)
        self._unlogged = WriteOptions()
        # The stubs call this property a method.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        try:
            Rdict.destroy(str(path), settings)
            self._rocks = Rdict(str(path), settings)
        except Exception as error:  # rocksdict raises nothing narrower
            raise SetupError(
                f"the state database at {path}", str(error), "give each worker a folder of its own"
            ) from error

    def store(
        self, operator: str, codec: StateCodec = PLAIN, layout: Layout | None = None
    ) -> Store:
        """The states of one operator, as columns of a layout where there is one. Raises
        MeanderError for a name that cannot be kept apart."""
        if "\0" in operator:
            raise MeanderError(f"operator {operator!r}", "its name holds a NUL", "name it anew")
        if codec.name == PLAIN.name and codec is not PLAIN:
            raise MeanderError(
                f"the codec of operator '{operator}'",
                f"it bears the default's name, '{PLAIN.name}', but may write other bytes",
                "give it a name of its own",
            )
        return Store(self, operator, codec, layout)

    def used(self) -> int:
        """Bytes held in memory; the budget bounds it."""
        return self.memtable.size + self._cache.get_usage()

    def close(self) -> None:
        """Release the files; nothing is written, as what lies here is a cache."""
        self._rocks.close()

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of some keys, None for what is not there."""
        return cast(list[bytes | None], self._rocks.get([*keys]))

    def find(
        self, groups: _Groups, keys: Sequence[bytes], bins: Mapping[bytes, int]
    ) -> dict[bytes, bytes]:
        """The encoded states of those of one operator's keys that lie on disk."""
        if not self.groups:
            return {}
        placed = ((key, groups[bins[key]]) for key in keys)
        asked = {key: group + key for key, group in placed if group in self.groups}
        values = self.read(asked.values()) if asked else []
        return {k: data for k, data in zip(asked, values, strict=True) if data is not None}

    def put(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Write some keys as one batch."""
        batch = WriteBatch(raw_mode=True)
        for key, data in entries:
            batch.put(key, data)
        self._rocks.write(batch, self._unlogged)

    def spill(self) -> None:
        """Make the memtable fit its bound again."""
        while self.memtable.size > self._memtable_bytes:
            group, entries = self.memtable.spill(SPILL_KEYS)
            self.groups.add(group)
            self.put(entries)

    def entries(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All entries whose key begins with a prefix, in order, as of the call, without it; those
        before `first`, which has no prefix either, are left out."""
        # The iterator is opened here, as a generator's body would first run at the first entry.
        found = self._rocks.items(from_key=prefix + first)
        return below(prefix, cast(Iterator[tuple[bytes, bytes]], found))

    def delete(self, prefix: bytes) -> None:
        """Drop all keys that begin with a prefix. Where there are none, no tombstone is left."""
        if next(self.entries(prefix), None) is not None:
            self._rocks.delete_range(prefix, successor(prefix), self._unlogged)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Drop some keys as one batch."""
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._rocks.write(batch, self._unlogged)


class Store:
    """The sealed states of one operator's keys on this worker; see `Database` for an example."""

    def __init__(
        self, database: Database, operator: str, codec: StateCodec, layout: Layout | None
    ) -> None:
        self.operator, self.codec, self.layout = operator, codec, layout
        self._database = database
        self._groups = _Groups(operator.encode() + b"\0")
        stem = self._groups.stem
        table = Table(stem) if layout is None else SlotTable(stem, layout)
        self._table: Table | SlotTable = database.memtable.add(table)

    def lend(self, keys: Sequence[bytes], bins: Bins) -> Loan:
        """The sealed states of these keys, to be read and set; `bins[i]` is that of `keys[i]`."""
        assert isinstance(self._table, Table), "the states are columns"
        return Loan(self._database, self._table, self._groups, keys, bins)

    def lend_columns(self, keys: Sequence[bytes], bins: Bins) -> ColumnLoan:
        """The same as columns, where the store has a layout."""
        assert isinstance(self._table, SlotTable), "the states are no columns"
        return ColumnLoan(self._database, self._table, self._groups, keys, bins)

    def scan(self, bin: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and encoded states of a bin in key order, as it is now, encoded as they are taken.

        Sorts the part in the memtable at the call; the rest costs by the entry.
        """
        group = self._groups[bin]
        fresh = self._database.memtable.entries(self._table, bin)
        return _overlay(
            ((key, encoded(state)) for key, state in fresh), self._database.entries(group)
        )

    def install(self, bin: int, keys: list[bytes], states: list[bytes]) -> None:
        """Put encoded states of a bin in bulk, past the memtable."""
        group = self._groups[bin]
        self._database.memtable.forget(self._table, bin, keys)
        if keys:
            self._database.groups.add(group)
        self._database.put((group + key, data) for key, data in zip(keys, states, strict=True))

    def drop(self, bin: int) -> None:
        """Forget all keys of a bin, by the key in memory and at once on disk; scans under way keep
        theirs."""
        self._database.memtable.drop(self._table, bin)
        self._database.groups.discard(self._groups[bin])
        self._database.delete(self._groups[bin])

    def count(self, bin: int) -> int:
        """How many keys a bin holds; reads all of it."""
        return sum(1 for _ in self.scan(bin))

    def bins(self) -> list[Bin]:
        """The bins that hold keys, in order."""
        stem = self._groups.stem
        on_disk = (group for group in self._database.groups if group.startswith(stem))
        return sorted(
            {*map(Bin, self._table.bins), *(_bin(group[len(stem) :]) for group in on_disk)}
        )


class Loan:
    """The states of some keys, to be changed in place: as a context, a dictionary of theirs.

    It holds those of other keys too, which are not to be touched, nor is a state to be removed.
    """

    __slots__ = ("_before", "_bins", "_database", "_keys", "_table")

    def __init__(
        self,
        database: Database,
        table: Table,
        groups: _Groups,
        keys: Sequence[bytes],
        bins: Bins,
    ) -> None:
        self._database, self._table = database, table
        self._keys = list(dict.fromkeys(keys))
        self._before = table.get(self._keys)
        self._bins: dict[bytes, int] = {}
        if lacking(self._before):
            self._bins.update(zip(keys, bins.tolist(), strict=True))
            self._load(groups)

    def __enter__(self) -> dict[bytes, object]:
        return self._table.states

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        memtable = self._database.memtable
        memtable.settle(self._table, self._bins.__getitem__, self._keys, self._before)
        self._database.spill()

    def _load(self, groups: _Groups) -> None:
        """Bring what lies on disk into memory."""
        states = zip(self._keys, self._before, strict=True)
        missing = [key for key, state in states if state is ABSENT]
        on_disk = self._database.find(groups, missing, self._bins)
        if on_disk:
            bins = [self._bins[key] for key in on_disk]
            found = [Sealed(data) for data in on_disk.values()]
            self._database.memtable.write(self._table, bins, [*on_disk], found)
            self._before = self._table.get(self._keys)


class ColumnLoan:
    """The states of a batch's records as columns: each record's key has a slot.

    A key that had no state has a new one's, and none again where it is not set.
    """

    __slots__ = ("_bins", "_database", "_new", "_set", "_slots", "_table")

    def __init__(
        self,
        database: Database,
        table: SlotTable,
        groups: _Groups,
        keys: Sequence[bytes],
        bins: Bins,
    ) -> None:
        self._database, self._table = database, table
        self._new: dict[bytes, int] = {}
        """The slots of keys that had no state."""
        self._set: set[int] = set()
        """Those slots among them that have been set, and others."""
        self._slots = table.find(keys)
        missing = np.flatnonzero(self._slots == NO_SLOT).tolist()
        self._bins = {keys[row]: int(bins[row]) for row in missing}
        if missing:
            self._admit(groups, [*self._bins])
            self._slots = table.find(keys)

    def __enter__(self) -> Self:
        return self

    def read(self, rows: Bins) -> Columns:
        """The states of some records' keys, columns of shape (n,)."""
        return self._table.read(self._slots[rows])

    def write(self, rows: Bins, columns: Columns) -> None:
        """Set the states of some records' keys, all different. Raises as `SlotTable.write`."""
        slots = self._slots[rows]
        self._table.write(slots, columns)
        if self._new:
            self._set.update(slots.tolist())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._new:
            self._table.remove([key for key, slot in self._new.items() if slot not in self._set])
            self._hold([key for key, slot in self._new.items() if slot in self._set])
        self._database.spill()

    def _admit(self, groups: _Groups, keys: list[bytes]) -> None:
        """Bring what lies on disk into memory, and make room for what does nowhere."""
        found = self._database.find(groups, keys, self._bins)
        slots = self._table.fresh(keys)
        rows = [row for row, key in enumerate(keys) if key in found]
        if found:
            self._table.put(slots[rows], [decode(found[keys[row]]) for row in rows])
            self._hold([keys[row] for row in rows])
        self._new = {
            key: slot for key, slot in zip(keys, slots.tolist(), strict=True) if key not in found
        }

    def _hold(self, keys: list[bytes]) -> None:
        memtable = self._database.memtable
        memtable.note(self._table, self._bins.__getitem__, keys)
        memtable.size += self._table.weight(len(keys))


class _Groups(dict[int, bytes]):
    """The database prefix of each bin of one operator, made when it is first asked for."""

    def __init__(self, stem: bytes) -> None:
        super().__init__()
        self.stem = stem

    def __missing__(self, bin: int) -> bytes:
        group = self[bin] = self.stem + int(bin).to_bytes(BIN_BYTES, "big")
        return group


def _bin(data: bytes) -> Bin:
    return Bin(int.from_bytes(data, "big"))


def _overlay(
    newer: Iterator[tuple[bytes, bytes]], older: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Two runs of entries in key order as one; of an equal key the newer run's entry.

    >>> list(_overlay(iter([(b"b", b"new")]), iter([(b"a", b"old"), (b"b", b"old")])))
    [(b'a', b'old'), (b'b', b'new')]
    """
    head = next(newer, None)
    for entry in older:
        while head is not None and head[0] < entry[0]:
            yield head
            head = next(newer, None)
        if head is None or head[0] != entry[0]:
            yield entry
    if head is not None:
        yield head
        yield from newer
