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
from state.cells import SealedCells, pick
from state.codec import PLAIN, StateCodec, encoded
from state.columns import Layout, NumberCells
from state.ids import Bin
from state.memtable import BIN_BYTES, NO_SLOT, Memtable, Table
from state.rocks import below, options, successor

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
    >>> with store.lend([b"N14228", b"N24211"], np.array([3, 3])) as lent:
    ...     lent.sealed[lent.slots[0]] = (1, 2.5)
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

    def find(self, groups: _Groups, bins: Mapping[bytes, int]) -> dict[bytes, bytes]:
        """The encoded states of those of one operator's keys, each of a bin, that lie on disk."""
        if not self.groups:
            return {}
        placed = ((key, groups[bin]) for key, bin in bins.items())
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
        cells = SealedCells() if layout is None else NumberCells(layout)
        self._table = database.memtable.add(Table(self._groups.stem, cells))

    def lend(self, keys: Sequence[bytes], bins: Bins) -> Loan:
        """The states of these keys, to be read and set; `bins[i]` is that of `keys[i]`."""
        return Loan(self._database, self._table, self._groups, keys, bins)

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
    """The states of a batch's keys, to be read and set in place while it is entered.

    A key that has no state yet has a slot for the while, and is nowhere again unless one is set.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        groups: _Groups,
        keys: Sequence[bytes],
        bins: Bins,
    ) -> None:
        self._database, self._table = database, table
        self._new: dict[bytes, int] = {}
        """The bins of keys that have had no state."""
        self.slots = table.find(keys)
        """Where each key's state is, shape (n,)."""
        missing = np.flatnonzero(self.slots == NO_SLOT)
        if len(missing):
            absent = pick(keys, missing.tolist())
            self._admit(groups, dict(zip(absent, bins[missing].tolist(), strict=True)))
            self.slots[missing] = table.find(absent)
        self._weight = table.cells.weigh(self.slots)

    @property
    def sealed(self) -> list[object]:
        """All sealed states by slot, of which only those lent are to be touched."""
        assert isinstance(self._table.cells, SealedCells), "the states are columns"
        return self._table.cells.states

    @property
    def numbers(self) -> NumberCells:
        """The same where the states are columns."""
        assert isinstance(self._table.cells, NumberCells), "the states are no columns"
        return self._table.cells

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._table.size += self._table.cells.weigh(self.slots) - self._weight
        if self._new:
            self._forget_unset()
        self._database.spill()

    def _admit(self, groups: _Groups, bins: Mapping[bytes, int]) -> None:
        """Bring what lies on disk into memory, and have slots for what does nowhere."""
        found = self._database.find(groups, bins)
        self._new = {key: bin for key, bin in bins.items() if key not in found}
        slots = self._table.admit(self._new | {key: bins[key] for key in found})
        if found:
            self._table.load(slots[len(self._new) :], [*found.values()])

    def _forget_unset(self) -> None:
        unset = self._table.cells.has(self._table.find([*self._new]))
        for (key, bin), has in zip(self._new.items(), unset, strict=True):
            if not has:
                self._database.memtable.forget(self._table, bin, [key])


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
