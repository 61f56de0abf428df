"""The store: keyed state on one worker, a memtable before RocksDB, one of each per process.

All operators share one RocksDB and one key space: operator, NUL, bin (2 bytes), key. Column
families would need a write buffer, files and a budget per operator. A prefix costs a few bytes,
which block encoding removes again; a bin is one range in either case. Invariants: `scan` yields a
bin as it was when the scan started. The memory exceeds the budget for one write at most (I6). The
store records each key that changed since the last delta. A database starts empty: local state is a
cache, and the state topic has authority. Cost: 1000 hot keys take about 1 ms to fetch and write; a
miss takes about 3 us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import ABSENT, Cells, EncodedState, SealedCells, Slots, pick
from meander.state.encoding.codec import (
    PLAIN,
    Sealed,
    StateCodec,
    decode,
    encode_sealed,
    unseal,
)
from meander.state.encoding.columns import ColumnLayout, NumberCells
from meander.state.encoding.expiring import ExpiringCells, codec_name, split_due
from meander.state.encoding.timers import ROW, Timers
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.store.before_images import BeforeImages
from meander.state.store.dirty_keys import DirtyKeys
from meander.state.store.memtable import BIN_BYTES, NO_SLOT, Memtable, StateTable
from meander.state.store.rocksdb import RocksDB
from meander.state.store.sst_writer import TableWriter
from meander.state.store.undo_log import UndoLog

Bins = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ROW_BYTES: Final = 64
"""The bytes of a row's value in memory."""
SPILL_KEYS: Final = 256
"""The keys that leave the memtable at once; small ones take well under a millisecond."""


class Database:
    """A database that holds the keyed state of all operators of one process within one budget of
    bytes.

    Half of the budget serves the memtable. A sixteenth of this half records changed keys, an eighth
    before images of the last checkpoint. Three eighths of the budget serve RocksDB's block cache:
    indexes, filters and, up to a third, write buffers. An eighth remains for peaks of RocksDB, as
    its cache shrinks only after a flush. The database destroys the data of an earlier process at
    `path`. Raise SetupError when another process has it open.

    >>> from tempfile import mkdtemp
    >>> database = Database(mkdtemp(), budget_bytes=8 << 20)
    >>> store = database.store("per_plane")
    >>> with store.open_batch([b"N14228", b"N24211"], np.array([3, 3])) as batch:
    ...     batch.sealed[batch.slots[0]] = (1, 2.5)
    >>> list(store.scan(3)) == [(b"N14228", encode_sealed((1, 2.5)))]
    True
    >>> database.close()
    """

    def __init__(self, path: str | Path, budget_bytes: int, cores: int = 1) -> None:
        """RocksDB flushes and compacts on as many threads as there are `cores`, two at least."""
        self.budget_bytes = budget_bytes
        self.memtable = Memtable()
        self.prefixes: set[bytes] = set()
        """The prefixes of the bins that have entries in RocksDB."""
        self.rocks = RocksDB(path, budget_bytes * 3 // 8, budget_bytes // 8, max(2, cores))
        self._changes: list[DirtyKeys] = []
        self._undo_logs: list[UndoLog] = []
        self._stores: dict[str, Store] = {}
        self._retained: set[str] = set()
        """The operators with states of an ended execution."""
        self._changes_bytes, self._undo_bytes = budget_bytes // 32, budget_bytes // 16
        self._memtable_bytes = budget_bytes // 2 - self._changes_bytes - self._undo_bytes

    def store(
        self,
        operator: str,
        codec: StateCodec = PLAIN,
        layout: ColumnLayout | None = None,
        expires: bool = False,
    ) -> Store:
        """Return the store of one operator, with columns where there is a layout, and with due
        times where its states expire. Raise MeanderError for a name that collides with another."""
        if "\0" in operator:
            raise MeanderError(f"operator {operator!r}", "its name holds a NUL", "rename it")
        if codec.name == PLAIN.name and codec is not PLAIN:
            raise MeanderError(
                f"the codec of operator '{operator}'",
                f"it has the default's name, '{PLAIN.name}', but may write other bytes",
                "rename it",
            )
        if operator in self._retained:
            self._retained.remove(operator)
            return self._stores[operator]
        self._stores[operator] = Store(self, operator, codec, layout, expires)
        return self._stores[operator]

    def end_execution(self) -> None:
        """Retain the stores for the next execution of the same flow, and delete all other data on
        disk."""
        self._retained = {*self._stores}
        for changes in self._changes:
            for bin in changes.bins():
                changes.drop(bin)
        self.rocks.delete(b"\0")

    def memory_bytes(self) -> int:
        """Return the bytes in memory; the budget bounds them."""
        logs = self._changes_size() + self._undo_size()
        return self.memtable.size + logs + self.rocks.memory_bytes()

    def close(self) -> None:
        """Release the files without a write, as local state is a cache."""
        self.rocks.close()

    def track_changes(self, operator: str) -> DirtyKeys:
        """Return a set that records changed keys of a further operator, within the budget."""
        self._changes.append(DirtyKeys(self.rocks, operator))
        return self._changes[-1]

    def undo_log(self) -> UndoLog:
        """Return the undo log of a further operator, within the budget."""
        self._undo_logs.append(UndoLog())
        return self._undo_logs[-1]

    def read(self, prefixes: _BinPrefixes, bins: Mapping[bytes, int]) -> dict[bytes, bytes]:
        """Return the encoded states of one operator's keys on disk, for keys of some bins."""
        if not self.prefixes:
            return {}
        prefixed = ((key, prefixes[bin]) for key, bin in bins.items())
        wanted = {key: prefix + key for key, prefix in prefixed if prefix in self.prefixes}
        values = self.rocks.read(wanted.values()) if wanted else []
        return {k: data for k, data in zip(wanted, values, strict=True) if data is not None}

    def spill(self) -> None:
        """Spill until the memory is within its bounds."""
        while self.memtable.size > self._memtable_bytes:
            prefix, entries = self.memtable.spill(SPILL_KEYS)
            self.prefixes.add(prefix)
            self.rocks.put(entries)
        while self._changes_size() > self._changes_bytes:
            max(self._changes, key=lambda changes: changes.size).spill(SPILL_KEYS)
        while self._undo_size() > self._undo_bytes:
            max(self._undo_logs, key=lambda undo: undo.size).drop_largest()

    def _undo_size(self) -> int:
        return sum(undo.size for undo in self._undo_logs)

    def _changes_size(self) -> int:
        return sum(changes.size for changes in self._changes)


class Databases:
    """Databases that belong to workers of one process. Each has its own budget and opens at first
    use."""

    def __init__(self, path: str | Path, budget_bytes: int) -> None:
        self._path, self._budget = Path(path), budget_bytes
        self._opened: dict[int, Database] = {}

    def of(self, worker: int) -> Database:
        """Return the database of a worker."""
        if worker not in self._opened:
            self._opened[worker] = Database(self._path / f"{worker}", self._budget)
        return self._opened[worker]

    def close(self) -> None:
        """Release all files."""
        for database in self._opened.values():
            database.close()


class Store:
    """A store that holds the sealed states of one operator's keys on this worker; `Database` has an
    example."""

    def __init__(
        self,
        database: Database,
        operator: str,
        codec: StateCodec,
        layout: ColumnLayout | None,
        expires: bool,
    ) -> None:
        self.operator, self.layout, self.expires = operator, layout, expires
        self.codec_name = codec_name(codec.name) if expires else codec.name
        """The name of the codec in layers."""
        self.readable_codecs = (
            {self.codec_name, PLAIN.name} if codec is PLAIN else {self.codec_name}
        )
        """The names of codecs whose states the store can hold."""
        self._database = database
        self._prefixes = _BinPrefixes(operator)
        plain = SealedCells() if layout is None else NumberCells(layout)
        cells = ExpiringCells(plain) if expires else plain
        self._table = database.memtable.add(StateTable(self._prefixes.stem, cells))
        self._changes = database.track_changes(operator)
        self._undo = database.undo_log()
        self._frozen = BeforeImages(())
        """The before images of the frozen bins. A key without one still has its frozen state."""

    def open_batch(
        self, keys: Sequence[bytes], bins: Bins, writes: Mask | None = None
    ) -> StateBatch:
        """Return the states of keys to read and set; `bins[i]` is the bin of `keys[i]`. Where
        `writes` is given, the operator sets states of these keys alone, so others do not count as
        changed."""
        prefixes, changes, undo = self._prefixes, self._changes, self._undo
        return StateBatch(
            self._database, self._table, changes, self._frozen, undo, prefixes, keys, bins, writes
        )

    def freeze(self, bins: Sequence[Bin]) -> dict[Bin, list[bytes]]:
        """Freeze bins: until `thaw`, `keys_in_memory`, `entries_on_disk` and `collect_states`
        describe them as of this call.

        Remove and return the new changed keys by bin. The caller collects their states. It marks
        the keys as bundled if a bundle holds them, or restores them.
        """
        changed = {bin: self._changes.pop_new(bin) for bin in self._changes.bins()}
        self._table.dirty[:] = False
        self._frozen = BeforeImages(bins)
        return changed

    def thaw(self, bin: int) -> None:
        """Release a frozen bin."""
        self._frozen.drop(bin)

    def record_checkpoint(self, at: CheckpointId, bins: Mapping[Bin, Timers]) -> None:
        """Record these bins with their timers for a checkpoint, as they are at the call."""
        self._table.dirty[:] = False
        self._undo.record_checkpoint(at, bins)
        self._database.spill()

    def complete_checkpoint(self, at: CheckpointId) -> None:
        """Complete a checkpoint: no rollback goes further back."""
        self._undo.complete(at)

    def cancel_checkpoint(self, at: CheckpointId) -> None:
        """Cancel a checkpoint."""
        self._undo.cancel(at)

    def rollback_bins(self, at: CheckpointId) -> set[Bin]:
        """Return the bins that can roll back to a checkpoint."""
        return self._undo.rollback_bins(at)

    def rollback(self, at: CheckpointId, bins: Collection[Bin]) -> dict[Bin, Timers]:
        """Roll some of these bins back to a checkpoint, and drop all other bins and the undo log.
        No key counts as changed then. Return the timers of each bin."""
        for bin in [bin for bin in self.bins() if bin not in bins]:
            self.drop(bin)
        self._frozen = BeforeImages(())
        timers = {bin: self._undo.timers(at, bin) for bin in bins}
        before = {bin: self._undo.images(at, bin) for bin in bins}
        self._undo.clear()
        for bin, states in before.items():
            removed = [key for key, state in states.items() if state is ABSENT]
            had = {key: encode_sealed(one) for key, one in states.items() if one is not ABSENT}
            self.install(bin, [*had], [*had.values()])
            self._remove(bin, removed)
        self._table.dirty[:] = False
        return timers

    def _remove(self, bin: int, keys: Sequence[bytes]) -> None:
        prefix = self._prefixes[bin]
        self._database.memtable.remove(self._table, bin, keys)
        if prefix in self._database.prefixes:
            self._database.rocks.remove(prefix + key for key in keys)

    def keys_in_memory(self, bin: int) -> list[bytes]:
        """Return the keys of a bin with states in memory. For a frozen bin, include keys that have
        changed since."""
        present, before = self._table.bins.get(bin, {}), self._frozen.of(bin)
        if not before:
            return list(present)
        return [key for key in {**present, **before} if before.get(key) is not ABSENT]

    def entries_on_disk(self, bin: int) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries of a bin on disk in key order, as of the call. Memory may hold newer
        states; in a frozen bin, disk may."""
        entries, before = self._database.rocks.entries(self._prefixes[bin]), self._frozen.of(bin)
        new = {key for key, state in before.items() if state is ABSENT}
        return (entry for entry in entries if entry[0] not in new) if new else entries

    def collect_states(self, bin: int, keys: Sequence[bytes]) -> list[EncodedState]:
        """Return the encoded states of keys of a bin, None for a forgotten key. Each key counts as
        unchanged until its next change. In a frozen bin, return the frozen states."""
        before = self._frozen.of(bin)
        if not before:
            return self._collect_states(bin, keys)
        same = [key for key in keys if key not in before]
        states = dict(zip(same, self._collect_states(bin, same), strict=True))
        return [_encode_image(before[key]) if key in before else states[key] for key in keys]

    def _collect_states(self, bin: int, keys: Sequence[bytes]) -> list[EncodedState]:
        slots, prefix = self._table.find(keys), self._prefixes[bin]
        in_memory = slots != NO_SLOT
        self._table.dirty[slots[in_memory]] = False
        states = map(encode_sealed, self._table.cells.get(slots[in_memory]))
        if in_memory.all():
            return list(states)
        missing = [prefix + keys[row] for row in np.flatnonzero(~in_memory).tolist()]
        found = iter(self._database.rocks.read(missing))
        return [next(states) if hit else next(found) for hit in in_memory.tolist()]

    def scan(self, bin: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a bin in key order, as of the call; encode each when it is read.

        Sort the part in the memtable at the call; the rest costs per entry.
        """
        fresh = self._database.memtable.entries(self._table, bin)
        older = self._database.rocks.entries(self._prefixes[bin])
        return _overlay(((key, encode_sealed(state)) for key, state in fresh), older)

    def install(self, bin: int, keys: list[bytes], states: Sequence[EncodedState]) -> None:
        """Install encoded states of a bin in bulk, past the memtable; None removes a key. They lie
        on the topic, so they do not count as changed."""
        prefix = self._prefixes[bin]
        self._database.memtable.remove(self._table, bin, keys)
        self._changes.remove(bin, keys)
        self._undo.drop(bin)
        if keys:
            self._database.prefixes.add(prefix)
        entries = zip(keys, states, strict=True)
        self._database.rocks.put((prefix + key, data) for key, data in entries)
        self._table.live[bin] += len(keys) - 2 * states.count(None)
        self._table.uncounted.add(bin)

    def install_changed(self, bin: int, keys: list[bytes], states: Sequence[EncodedState]) -> None:
        """Install encoded states as `install` does, and count them as changed."""
        self.install(bin, keys, states)
        self.restore_changes(bin, keys)

    def read_rows(self, rows: Sequence[tuple[int, bytes]]) -> list[bytes | None]:
        """Return the values of rows, each given by its bin and key; None for an absent one."""
        return self._database.rocks.read(self._prefixes[bin] + key for bin, key in rows)

    def rows(self, bin: int, prefix: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a bin under a prefix and from a key on, in key order, as of the
        call."""
        found = self._database.rocks.entries(self._prefixes[bin] + prefix, first[len(prefix) :])
        return ((prefix + key, value) for key, value in found)

    def write_rows(self, rows: Sequence[RowChange]) -> None:
        """Change different rows, past the memtable. Before images and changes record them as they
        record states. Callers may hold an open batch."""
        if not rows:
            return
        keys, bins = [row.key for row in rows], np.array([row.bin for row in rows], np.int64)
        if self._frozen or self._undo:
            before = [ABSENT if row.before is None else Sealed(row.before) for row in rows]
            self._frozen.record(keys, bins, before)
            if self._undo:
                self._undo.record(keys, bins, before, ROW_BYTES)
        self._changes.add(keys, bins)
        prefixes = self._prefixes
        self._database.prefixes.update({prefixes[row.bin] for row in rows})
        self._database.rocks.put((prefixes[row.bin] + row.key, row.after) for row in rows)
        for row in rows:
            more = (row.after is not None) - (row.before is not None)
            self._table.live[row.bin] += more
            self._table.rows[row.bin] += more

    def keys_under(self, bin: int, prefix: bytes) -> list[bytes]:
        """Return the keys of a bin with states that begin with a prefix, in no order. Those in
        memory cost a comparison for each key of the bin there."""
        found = [key for key in self._table.bins.get(bin, ()) if key.startswith(prefix)]
        if self._prefixes[bin] in self._database.prefixes:
            slots = self._table.slots
            found += [key for key, _ in self.rows(bin, prefix, prefix) if key not in slots]
        return found

    def int_column(self, bin: int, number: int) -> tuple[list[bytes], npt.NDArray[np.int64]]:
        """Return the keys of a bin with one column of their states, which holds whole numbers, in
        no order. A state has several columns. Rows are no states."""
        table, older = self._table, list[tuple[bytes, bytes]]()
        keys = [*table.bins.get(bin, ())]
        slots = table.find(keys)
        if isinstance(table.cells, NumberCells):
            column = table.cells.read(slots)[number].astype(np.int64)
        else:
            states = map(unseal, table.cells.get(slots))
            column = np.array([state[number] for state in states], np.int64)  # type: ignore[index]
        if self._prefixes[bin] in self._database.prefixes:
            entries = self._database.rocks.entries(self._prefixes[bin])
            older = [e for e in entries if e[0] not in table.slots and not e[0].startswith(ROW)]
        if older:
            keys += [key for key, _ in older]
            decoded = (decode(data) for _, data in older)
            more = np.array([state[number] for state in decoded], np.int64)  # type: ignore[index]
            column = np.concatenate([column, more])
        return keys, column

    def note_rows(self, bin: int, count: int) -> None:
        """Note the number of rows of an installed bin."""
        self._table.rows[bin] = count

    def due_keys(self, bin: int, until: int, count: int) -> Iterator[list[bytes]]:
        """Yield the keys of a bin whose due times are at most `until`, for each slice of `count`
        entries as of its turn. `forget_due` checks them again, as entries change meanwhile."""
        table, cells = self._table, self._table.cells
        assert isinstance(cells, ExpiringCells), "its states do not expire"
        present = iter([*table.bins.get(bin, ())])
        while some := [*islice(present, count)]:
            keys = [key for key in some if key in table.slots]
            yield pick(keys, np.flatnonzero(cells.due[table.find(keys)] <= until).tolist())
        older = self._database.rocks.entries(self._prefixes[bin])
        while entries := [*islice(older, count)]:
            yield [
                key
                for key, data in entries
                if key not in table.slots and split_due(data)[0] <= until
            ]

    def forget_due(self, keys: Sequence[bytes], bins: Bins, until: int) -> None:
        """Forget keys whose due times are at most `until`; `bins[i]` is the bin of `keys[i]`."""
        with self.open_batch(keys, bins) as batch:
            batch.forget(batch.slots[batch.due[batch.slots] <= until])

    def table_writer(self, bin: int) -> TableWriter:
        """Return an empty table for entries of a bin."""
        return TableWriter(self._database.rocks.folder, self._prefixes[bin])

    def drop(self, bin: int) -> None:
        """Drop all keys of a bin: key by key in memory, at once on disk. Running scans still yield
        them."""
        self._database.memtable.drop(self._table, bin)
        self._table.live.pop(bin, None)
        self._table.rows.pop(bin, None)
        self._table.uncounted.discard(bin)
        self._changes.drop(bin)
        self._frozen.drop(bin)
        self._undo.drop(bin)
        self._database.prefixes.discard(self._prefixes[bin])
        self._database.rocks.delete(self._prefixes[bin])

    def note_empty(self, bin: int) -> None:
        """Omit a bin from `bins` where all its keys have been forgotten."""
        prefix = self._prefixes[bin]
        if bin not in self._table.bins and next(self._database.rocks.entries(prefix), None) is None:
            self._database.prefixes.discard(prefix)

    def changed_bins(self) -> list[Bin]:
        """Return the changed bins, in order."""
        return self._changes.bins()

    def has_changed(self, bin: int) -> bool:
        """Return whether a bin has changed."""
        return bin in self._changes

    def count_changed(self, bin: int) -> int | None:
        """Return the number of changed keys of a bin; None where they are many."""
        return self._changes.count(bin)

    def pop_changes(self, bin: int) -> list[bytes]:
        """Remove and return the changed keys of a bin, in no order. The caller collects their
        states, or restores the keys."""
        return self._changes.pop(bin)

    def drop_changes(self, bin: int) -> None:
        """Drop the changed keys of a bin, as the caller collects the states of all keys."""
        self._changes.drop(bin)

    def mark_changed(self, bin: int) -> None:
        """Count a bin as changed until its changes are removed, with or without changed keys."""
        self._changes.mark(bin)

    def restore_changes(self, bin: int, keys: Sequence[bytes]) -> None:
        """Add removed keys of a bin to its changed keys again, as no layer holds their changes."""
        self._changes.put(bin, keys)
        self._database.spill()

    def mark_bundled(self, bin: int, keys: Sequence[bytes]) -> None:
        """Mark changed keys as bundled. The next bundle omits them until they change again or count
        as new."""
        self._changes.put_bundled(bin, keys)
        self._database.spill()

    def pop_bundled(self, bin: int) -> set[bytes]:
        """Remove and return the bundled keys of a bin."""
        return self._changes.pop_bundled(bin)

    def unbundle(self, bin: int) -> None:
        """Count the bundled keys of a bin as new, as no bundle holds them any more."""
        self._changes.unbundle(bin)

    def note_count(self, bin: int, count: int) -> None:
        """Note the number of keys of a bin that a base of the bin has counted, where installed
        layers may have held a key twice."""
        if bin in self._table.uncounted:
            self._table.uncounted.remove(bin)
            self._table.live[bin] = count

    def count_known(self, bin: int) -> int:
        """Return about the number of keys of a bin, as `keys` does."""
        return self._table.live[bin]

    @property
    def keys(self) -> int:
        """Return about the number of keys. A key that several installed layers hold counts in each,
        until a base of its bin is written. Rows are no keys."""
        return max(0, self._table.live.total() - self._table.rows.total())

    @property
    def forgotten(self) -> int:
        """Return the number of keys that have been forgotten."""
        return self._table.forgotten

    def count(self, bin: int) -> int:
        """Return the number of keys in a bin; read all of it."""
        return sum(1 for _ in self.scan(bin))

    def bins(self) -> list[Bin]:
        """Return the bins that hold keys, or whose keys have all been forgotten, in order."""
        stem = self._prefixes.stem
        on_disk = (prefix for prefix in self._database.prefixes if prefix.startswith(stem))
        return sorted(
            {*map(Bin, self._table.bins), *(_bin(prefix[len(stem) :]) for prefix in on_disk)}
        )


class RowChange(NamedTuple):
    """A change of a row: an entry of a bin that is no state of a key, such as a far timer."""

    bin: int
    key: bytes
    """No key of a state equals it."""
    before: bytes | None
    """The value before the change, None for an absent row."""
    after: bytes | None
    """The value after it, None for a removed row."""


class IncomingTable(NamedTuple):
    """A table that waits for its ingest into a store."""

    store: Store
    bin: int
    table: bytes
    keys: int
    """The number of its keys."""


def ingest(tables: Sequence[IncomingTable]) -> None:
    """Ingest tables at once, as `Store.install` does. Their bins hold no installed entries, and all
    belong to one database. One call for all is faster, as each call synchronizes files."""
    if not tables:
        return
    for store, bin, _, count in tables:
        assert bin not in store._table.bins, "a bin is served once it has been installed"
        store._undo.drop(bin)
        store._table.live[bin] += count
    database = tables[0].store._database
    prefixes = [store._prefixes[bin] for store, bin, *_ in tables]
    database.prefixes.update(prefixes)
    database.rocks.ingest([table for _, _, table, _ in tables])
    for prefix in prefixes:
        assert next(database.rocks.entries(prefix), None), "it is a table of another bin"


class StateBatch:
    """A state batch that lets an operator read and set the states of a batch's keys in place while
    it is entered.

    A key without a state has a slot meanwhile, and loses it unless the operator sets a state. A
    forgotten key loses its slot and its entry on disk, and counts as changed.
    """

    def __init__(
        self,
        database: Database,
        table: StateTable,
        changes: DirtyKeys,
        frozen: BeforeImages,
        undo: UndoLog,
        prefixes: _BinPrefixes,
        keys: Sequence[bytes],
        bins: Bins,
        writes: Mask | None = None,
    ) -> None:
        self._database, self._table, self._changes = database, table, changes
        self._prefixes = prefixes
        self._keys, self._bins, self._writes = keys, bins, writes
        self._new: dict[bytes, int] = {}
        """The bins of keys that had no state."""
        self.forgets = False
        """Whether the operator has removed states."""
        self.slots = table.find(keys)
        """The slot of each key, shape (n,)."""
        missing = np.flatnonzero(self.slots == NO_SLOT)
        if len(missing):
            absent = pick(keys, missing.tolist())
            self._load(dict(zip(absent, bins[missing].tolist(), strict=True)))
            self.slots[missing] = table.find(absent)
        self._written = self.slots if writes is None else self.slots[writes]
        self._weight = table.cells.weigh(self._written)
        self._frozen, self._undo = frozen, undo
        if frozen or undo:
            self._record_before_images(0)

    def read(self, keys: Sequence[bytes], bins: Bins) -> list[object]:
        """Return the sealed states of further keys, each of which has one. They count as
        unchanged."""
        slots = self._table.find(keys)
        missing = np.flatnonzero(slots == NO_SLOT)
        if len(missing):
            absent = pick(keys, missing.tolist())
            bin_of = dict(zip(absent, bins[missing].tolist(), strict=True))
            found = self._database.read(self._prefixes, bin_of)
            assert len(found) == len(bin_of), "each of them has a state"
            inserted = self._table.insert({key: bin_of[key] for key in found})
            self._table.load(inserted, [*found.values()])
            slots = self._table.find(keys)
        return self._table.cells.get(slots)

    def add(self, keys: Sequence[bytes], bins: Bins) -> Slots:
        """Add further keys to the batch, none of which is in it. Return their slots."""
        slots = self._table.find(keys)
        missing = np.flatnonzero(slots == NO_SLOT)
        if len(missing):
            absent = pick(keys, missing.tolist())
            self._load(dict(zip(absent, bins[missing].tolist(), strict=True)))
            slots = self._table.find(keys)
        first = len(self._keys)
        self._keys, self._bins = [*self._keys, *keys], np.concatenate([self._bins, bins])
        self._weight += self._table.cells.weigh(slots)
        self.slots = np.concatenate([self.slots, slots])
        self._written = np.concatenate([self._written, slots])
        if self._writes is not None:
            self._writes = np.concatenate([self._writes, np.ones(len(keys), np.bool_)])
        if self._frozen or self._undo:
            self._record_before_images(first)
        return slots

    @property
    def sealed(self) -> list[object]:
        """Return all sealed states by slot. Callers may access only the slots of this batch."""
        cells = self._plain_cells
        assert isinstance(cells, SealedCells), "the states are columns"
        return cells.states

    @property
    def numbers(self) -> NumberCells:
        """Return the columns, where the states are columns."""
        cells = self._plain_cells
        assert isinstance(cells, NumberCells), "the states are no columns"
        return cells

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return for each of some slots of this batch whether it holds a state."""
        return np.array(self._plain_cells.has(slots), np.bool_)

    @property
    def due(self) -> npt.NDArray[np.int64]:
        """Return all due times by slot, where the states expire."""
        assert isinstance(self._table.cells, ExpiringCells), "the states do not expire"
        return self._table.cells.due

    @property
    def _plain_cells(self) -> Cells:
        cells = self._table.cells
        return cells.cells if isinstance(cells, ExpiringCells) else cells

    def forget(self, slots: Slots) -> None:
        """Remove the states in some slots of this batch. The operator may set states there
        again."""
        self._table.cells.clear(slots)
        self.forgets = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._table.size += self._table.cells.weigh(self._written) - self._weight
        self._record_changes()
        if self.forgets:
            self._remove_forgotten()
        elif self._new:
            self._remove_unset(self._new)
        if self._new:
            self._table.live.update(self._new.values())
        self._database.spill()

    def _load(self, bins: Mapping[bytes, int]) -> None:
        """Load states from disk into memory, and add slots for keys without states."""
        found = self._database.read(self._prefixes, bins)
        new = {key: bin for key, bin in bins.items() if key not in found}
        slots = self._table.insert(new | {key: bins[key] for key in found})
        if found:
            self._table.load(slots[len(new) :], [*found.values()])
        self._new |= new

    def _record_before_images(self, first: int) -> None:
        """Record before images of clean keys from a row on, for frozen bins and the undo log, as
        the operator may change them now."""
        clean = self._clean_rows(first)
        if not len(clean):
            return
        keys, bins = pick(self._keys, clean.tolist()), self._bins[clean]
        before = self._table.cells.get_or_absent(self.slots[clean])
        self._frozen.record(keys, bins, before)
        if self._undo:
            self._undo.record(keys, bins, before, self._weight // len(self._keys))

    def _record_changes(self) -> None:
        """Record the keys of this batch that have states as changed."""
        clean = self._clean_rows()
        if self._new or self.forgets:
            clean = clean[self._table.cells.has(self.slots[clean])]
        if len(clean):
            self._table.dirty[self.slots[clean]] = True
            self._changes.add(pick(self._keys, clean.tolist()), self._bins[clean])

    def _clean_rows(self, first: int = 0) -> Bins:
        """Return the rows from one on of keys that do not count as changed yet, and may change."""
        clean = ~self._table.dirty[self.slots[first:]]
        if self._writes is not None:
            clean &= self._writes[first:]
        return first + np.flatnonzero(clean)

    def _remove_unset(self, bins: Mapping[bytes, int]) -> None:
        """Remove those of some keys that have no state, given with their bins."""
        has = self._table.cells.has(self._table.find([*bins]))
        unset = [key for key, has_state in zip(bins, has, strict=True) if not has_state]
        if unset:
            bins_of_unset = list(map(bins.__getitem__, unset))
            self._table.remove(unset, bins_of_unset)
            self._table.live.subtract(bins_of_unset)

    def _remove_forgotten(self) -> None:
        """Remove the keys without states. Those that had one count as changed."""
        unset = np.flatnonzero(~np.array(self._table.cells.has(self.slots), np.bool_))
        keys = pick(self._keys, unset.tolist())
        bins = dict(zip(keys, self._bins[unset].tolist(), strict=True))
        forgotten = [key for key in bins if key not in self._new]
        self._table.forgotten += len(forgotten)
        if forgotten:
            on_disk = self._table.on_disk[self._table.find(forgotten)]
            older = pick(forgotten, np.flatnonzero(on_disk).tolist())
            self._database.rocks.remove(self._prefixes[bins[key]] + key for key in older)
            self._changes.add(forgotten, np.array([bins[key] for key in forgotten], np.int64))
        self._remove_unset(bins)


class _BinPrefixes(dict[int, bytes]):
    """A map that holds the database prefix of each bin of one operator, made at first use."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.stem = operator.encode() + b"\0"

    def __missing__(self, bin: int) -> bytes:
        prefix = self[bin] = self.stem + int(bin).to_bytes(BIN_BYTES, "big")
        return prefix


def bin_prefix(operator: str, bin: int) -> bytes:
    r"""Return the prefix of the keys of an operator's bin in any worker's database.

    >>> bin_prefix("per_plane", 3)
    b'per_plane\x00\x00\x03'
    """
    return _BinPrefixes(operator)[bin]


def _encode_image(state: object) -> EncodedState:
    """Return the bytes of a before image, None for a key that had no state."""
    return None if state is ABSENT else encode_sealed(state)


def _bin(data: bytes) -> Bin:
    return Bin(int.from_bytes(data, "big"))


def _overlay(
    newer: Iterator[tuple[bytes, bytes]], older: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Merge two runs of entries in key order. For equal keys, yield the newer run's entry.

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
