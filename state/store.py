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

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from schemas.errors import MeanderError, SetupError
from state.codec import PLAIN, Sealed, StateCodec, encoded
from state.ids import Bin
from state.memtable import ABSENT, BIN_BYTES, Memtable, Table, lacking

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
        options = _options(self._cache, budget_bytes // 8)
        self._unlogged = WriteOptions()
        # The stubs call this property a method.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        try:
            Rdict.destroy(str(path), options)
            self._rocks = Rdict(str(path), options)
        except Exception as error:  # rocksdict raises nothing narrower
            raise SetupError(
                f"the state database at {path}", str(error), "give each worker a folder of its own"
            ) from error

    def store(self, operator: str, codec: StateCodec = PLAIN) -> Store:
        """The states of one operator. Raises MeanderError for a name that cannot be kept apart."""
        if "\0" in operator:
            raise MeanderError(f"operator {operator!r}", "its name holds a NUL", "name it anew")
        if codec.name == PLAIN.name and codec is not PLAIN:
            raise MeanderError(
                f"the codec of operator '{operator}'",
                f"it bears the default's name, '{PLAIN.name}', but may write other bytes",
                "give it a name of its own",
            )
        return Store(self, operator, codec)

    def used(self) -> int:
        """Bytes held in memory; the budget bounds it."""
        return self.memtable.size + self._cache.get_usage()

    def close(self) -> None:
        """Release the files; nothing is written, as what lies here is a cache."""
        self._rocks.close()

    def read(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of some keys, None for what is not there."""
        return cast(list[bytes | None], self._rocks.get([*keys]))

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
        return _below(prefix, cast(Iterator[tuple[bytes, bytes]], found))

    def delete(self, prefix: bytes) -> None:
        """Drop all keys that begin with a prefix. Where there are none, no tombstone is left."""
        if next(self.entries(prefix), None) is not None:
            self._rocks.delete_range(prefix, _successor(prefix), self._unlogged)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Drop some keys as one batch."""
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        self._rocks.write(batch, self._unlogged)


class Store:
    """The sealed states of one operator's keys on this worker; see `Database` for an example."""

    def __init__(self, database: Database, operator: str, codec: StateCodec) -> None:
        self.operator, self.codec = operator, codec
        self._database = database
        self._groups = _Groups(operator.encode() + b"\0")
        self._table = database.memtable.table(self._groups.stem)

    def lend(self, keys: Sequence[bytes], bins: Bins) -> Loan:
        """The sealed states of these keys, to be read and set; `bins[i]` is that of `keys[i]`."""
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
        missing = ((key, groups[self._bins[key]]) for key, state in states if state is ABSENT)
        asked = {key: group + key for key, group in missing if group in self._database.groups}
        values = self._database.read(asked.values()) if asked else []
        found = {k: Sealed(data) for k, data in zip(asked, values, strict=True) if data is not None}
        if found:
            bins = [self._bins[key] for key in found]
            self._database.memtable.write(self._table, bins, [*found], [*found.values()])
            self._before = self._table.get(self._keys)


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


def _successor(prefix: bytes) -> bytes:
    """The least bytes after all that begin with a prefix.

    >>> _successor(b"az")
    b'a{'
    """
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


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


def _below(prefix: bytes, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The entries as far as their keys begin with a prefix, without it.

    The end is looked for here, as rocksdict reads an iterator's upper bound after freeing it.
    """
    for key, data in entries:
        if not key.startswith(prefix):
            return
        yield key[len(prefix) :], data


def _options(cache: Cache, write_buffer_bytes: int) -> Options:
    """Given again at every open: rocksdict keeps none of them for a database that exists."""
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, allow_stall=False, cache=cache
        )
    )
    options.set_write_buffer_size(write_buffer_bytes // 2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(1)
    return options
