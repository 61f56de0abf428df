"""The store: keyed state on one worker, a memtable before RocksDB, one of each per process.

All operators share one RocksDB and one key space: operator, NUL, bin (2 bytes), key. Column
families would need a write buffer, files and a budget per operator. A prefix costs a few bytes,
which block encoding removes again; a bin is one range in either case. Invariants: `scan` yields a
bin as it was when the scan began. Held bytes exceed the budget for one write at most (I6). The
store knows each key that changed since the last delta. A database starts empty: local state is a
cache, and the state topic has authority. Cost: 1000 hot keys take about 1 ms to fetch and write; a
miss takes about 3 us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import ABSENT, SealedCells, pick
from meander.state.encoding.codec import PLAIN, StateCodec, encoded
from meander.state.encoding.columns import ColumnLayout, NumberCells
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId
from meander.state.store.dirty_keys import Changes
from meander.state.store.frozen import FrozenStates
from meander.state.store.memtable import BIN_BYTES, NO_SLOT, Memtable, Table
from meander.state.store.rocksdb import Rocks
from meander.state.store.sst_writer import TableWriter
from meander.state.store.undo_log import Undo

Bins = npt.NDArray[np.int64]
SPILL_KEYS: Final = 256
"""Keys that leave the memtable at once: well under a millisecond of small ones."""


class Database:
    """The keyed state of all operators of one process, within one budget of bytes.

    Half of the budget is the memtable's, but for a sixteenth of that, in which the keys are noted
    that have changed, and an eighth, for what they were at the last checkpoint; three eighths are
    RocksDB's block cache, which holds indexes, filters and write buffers (up to a third of it) too;
    an eighth is left for what RocksDB goes over for a moment, as its cache gives way only once a
    flush has ended. What an earlier process left at `path` is destroyed. Raises SetupError when
    another process has it open.

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
        self.rocks = Rocks(path, budget_bytes * 3 // 8, budget_bytes // 8)
        self._changes: list[Changes] = []
        self._undone: list[Undo] = []
        self._stores: dict[str, Store] = {}
        self._left: set[str] = set()
        """The operators whose states a life of the flow has left that is over."""
        self._changes_bytes, self._undo_bytes = budget_bytes // 32, budget_bytes // 16
        self._memtable_bytes = budget_bytes // 2 - self._changes_bytes - self._undo_bytes

    def store(
        self, operator: str, codec: StateCodec = PLAIN, layout: ColumnLayout | None = None
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
        if operator in self._left:
            self._left.remove(operator)
            return self._stores[operator]
        self._stores[operator] = Store(self, operator, codec, layout)
        return self._stores[operator]

    def outlive(self) -> None:
        """A life of the flow is over, and stores are opened anew as they are, by the same flow;
        nothing else of it is left on disk."""
        self._left = {*self._stores}
        for changes in self._changes:
            for bin in changes.bins():
                changes.drop(bin)
        self.rocks.delete(b"\0")

    def used(self) -> int:
        """Bytes held in memory; the budget bounds it."""
        return self.memtable.size + self._noted() + self._kept() + self.rocks.used()

    def close(self) -> None:
        """Release the files; nothing is written, as what lies here is a cache."""
        self.rocks.close()

    def note(self, operator: str) -> Changes:
        """A note of what changes of one more operator, within the budget."""
        self._changes.append(Changes(self.rocks, operator))
        return self._changes[-1]

    def undo(self) -> Undo:
        """A note of what one more operator's bins were, within the budget."""
        self._undone.append(Undo())
        return self._undone[-1]

    def find(self, groups: _Groups, bins: Mapping[bytes, int]) -> dict[bytes, bytes]:
        """The encoded states of those of one operator's keys, each of a bin, that lie on disk."""
        if not self.groups:
            return {}
        placed = ((key, groups[bin]) for key, bin in bins.items())
        asked = {key: group + key for key, group in placed if group in self.groups}
        values = self.rocks.read(asked.values()) if asked else []
        return {k: data for k, data in zip(asked, values, strict=True) if data is not None}

    def spill(self) -> None:
        """Make what is in memory fit its bounds again."""
        while self.memtable.size > self._memtable_bytes:
            group, entries = self.memtable.spill(SPILL_KEYS)
            self.groups.add(group)
            self.rocks.put(entries)
        while self._noted() > self._changes_bytes:
            max(self._changes, key=lambda changes: changes.size).spill(SPILL_KEYS)
        while self._kept() > self._undo_bytes:
            max(self._undone, key=lambda undo: undo.size).shed()

    def _kept(self) -> int:
        return sum(undo.size for undo in self._undone)

    def _noted(self) -> int:
        return sum(changes.size for changes in self._changes)


class Databases:
    """Those of some workers in one process, each with a budget of its own, opened when it is first
    asked for."""

    def __init__(self, path: str | Path, budget_bytes: int) -> None:
        self._path, self._budget = Path(path), budget_bytes
        self._opened: dict[int, Database] = {}

    def of(self, worker: int) -> Database:
        """A worker's."""
        if worker not in self._opened:
            self._opened[worker] = Database(self._path / f"{worker}", self._budget)
        return self._opened[worker]

    def close(self) -> None:
        """Release all files."""
        for database in self._opened.values():
            database.close()


class Store:
    """The sealed states of one operator's keys on this worker; see `Database` for an example."""

    def __init__(
        self, database: Database, operator: str, codec: StateCodec, layout: ColumnLayout | None
    ) -> None:
        self.operator, self.codec, self.layout = operator, codec, layout
        self._database = database
        self._groups = _Groups(operator)
        cells = SealedCells() if layout is None else NumberCells(layout)
        self._table = database.memtable.add(Table(self._groups.stem, cells))
        self._changes = database.note(operator)
        self._frozen, self._undo = FrozenStates(), database.undo()

    def lend(self, keys: Sequence[bytes], bins: Bins) -> StateBatch:
        """The states of these keys, to be read and set; `bins[i]` is that of `keys[i]`."""
        groups, changes, undo = self._groups, self._changes, self._undo
        return StateBatch(
            self._database, self._table, changes, self._frozen, undo, groups, keys, bins
        )

    def freeze(self, bins: Sequence[Bin]) -> dict[Bin, list[bytes]]:
        """Until each is thawed, `in_memory`, `on_disk` and `take_states` tell of these bins what
        they are at the call; by bin, the keys that have changed since they were last taken or put
        aside. They count as changed no longer: whoever gets them takes their states, and puts them
        aside where these go into a bundle, or gives them back."""
        changed = {bin: self._changes.take_new(bin) for bin in self._changes.bins()}
        self._table.dirty[:] = False
        self._frozen.begin(bins)
        return changed

    def thaw(self, bin: int) -> None:
        """Of a bin that was frozen nobody asks any more what it was."""
        self._frozen.thaw(bin)

    def remember(self, at: CheckpointId, bins: Mapping[Bin, Timers]) -> None:
        """A checkpoint has these bins as they are at the call, with their timers."""
        self._table.dirty[:] = False
        self._undo.begin(at, bins)
        self._database.spill()

    def settle(self, at: CheckpointId) -> None:
        """A checkpoint exists: nobody goes back any further."""
        self._undo.settle(at)

    def cancel(self, at: CheckpointId) -> None:
        """A checkpoint has been given up."""
        self._undo.cancel(at)

    def known(self, at: CheckpointId) -> set[Bin]:
        """The bins that can be again what they were at a checkpoint."""
        return self._undo.known(at)

    def go_back(self, at: CheckpointId, bins: Collection[Bin]) -> dict[Bin, Timers]:
        """Have some of these bins be what they were at a checkpoint, and forget all others and how
        to go back any more; nothing counts as changed. With the timers that each had."""
        for bin in [bin for bin in self.bins() if bin not in bins]:
            self.drop(bin)
        self._frozen.begin(())
        timers = {bin: self._undo.timers(at, bin) for bin in bins}
        before = {bin: self._undo.before(at, bin) for bin in bins}
        self._undo.clear()
        for bin, states in before.items():
            gone = [key for key, state in states.items() if state is ABSENT]
            had = {key: encoded(state) for key, state in states.items() if state is not ABSENT}
            self.install(bin, [*had], [*had.values()])
            self._remove(bin, gone)
        self._table.dirty[:] = False
        return timers

    def _remove(self, bin: int, keys: Sequence[bytes]) -> None:
        group = self._groups[bin]
        self._database.memtable.forget(self._table, bin, keys)
        if group in self._database.groups:
            self._database.rocks.remove(group + key for key in keys)

    def in_memory(self, bin: int) -> list[bytes]:
        """The keys of a bin whose states are in memory; of one that is frozen also those that have
        changed since."""
        held, before = self._table.bins.get(bin, {}), self._frozen.of(bin)
        if not before:
            return list(held)
        return [key for key in {**held, **before} if before.get(key) is not ABSENT]

    def on_disk(self, bin: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and encoded states of a bin in key order as they lie on disk at the call, where some
        are older than those in memory, or in a frozen bin younger."""
        entries, before = self._database.rocks.entries(self._groups[bin]), self._frozen.of(bin)
        new = {key for key, state in before.items() if state is ABSENT}
        return (entry for entry in entries if entry[0] not in new) if new else entries

    def take_states(self, bin: int, keys: Sequence[bytes]) -> list[bytes]:
        """The encoded states of some keys of a bin, all of which have one, and have not changed
        until they do from now on; in a frozen bin those that they had."""
        before = self._frozen.of(bin)
        if not before:
            return self._take_states(bin, keys)
        same = [key for key in keys if key not in before]
        states = dict(zip(same, self._take_states(bin, same), strict=True))
        return [encoded(before[key]) if key in before else states[key] for key in keys]

    def _take_states(self, bin: int, keys: Sequence[bytes]) -> list[bytes]:
        slots, group = self._table.find(keys), self._groups[bin]
        held = slots != NO_SLOT
        self._table.dirty[slots[held]] = False
        states = map(encoded, self._table.cells.take(slots[held]))
        if held.all():
            return list(states)
        asked = [group + keys[place] for place in np.flatnonzero(~held).tolist()]
        found = iter(self._database.rocks.read(asked) if asked else ())
        read = [next(states) if here else next(found) for here in held.tolist()]
        assert None not in read, "a key has no state"
        return cast(list[bytes], read)

    def scan(self, bin: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and encoded states of a bin in key order, as it is now, encoded as they are taken.

        Sorts the part in the memtable at the call; the rest costs by the entry.
        """
        fresh = self._database.memtable.entries(self._table, bin)
        older = self._database.rocks.entries(self._groups[bin])
        return _overlay(((key, encoded(state)) for key, state in fresh), older)

    def install(self, bin: int, keys: list[bytes], states: list[bytes]) -> None:
        """Put encoded states of a bin in bulk, past the memtable; they do not count as changed, as
        they lie on the topic."""
        group = self._groups[bin]
        self._database.memtable.forget(self._table, bin, keys)
        self._changes.forget(bin, keys)
        self._undo.forget(bin)
        if keys:
            self._database.groups.add(group)
        entries = zip(keys, states, strict=True)
        self._database.rocks.put((group + key, data) for key, data in entries)

    def install_changed(self, bin: int, keys: list[bytes], states: list[bytes]) -> None:
        """As `install`, but they count as changed."""
        self.install(bin, keys, states)
        self.give_back(bin, keys)

    def table(self, bin: int) -> TableWriter:
        """An empty table for entries of a bin."""
        return TableWriter(self._database.rocks.folder, self._groups[bin])

    def drop(self, bin: int) -> None:
        """Forget all keys of a bin, by the key in memory and at once on disk; scans under way keep
        theirs."""
        self._database.memtable.drop(self._table, bin)
        self._changes.drop(bin)
        self._frozen.thaw(bin)
        self._undo.forget(bin)
        self._database.groups.discard(self._groups[bin])
        self._database.rocks.delete(self._groups[bin])

    def changed(self) -> list[Bin]:
        """The bins that have changed, in order."""
        return self._changes.bins()

    def has_changed(self, bin: int) -> bool:
        """Whether a bin has."""
        return bin in self._changes

    def count_changed(self, bin: int) -> int | None:
        """How many keys of a bin have changed; None where they are many."""
        return self._changes.count(bin)

    def take_changes(self, bin: int) -> list[bytes]:
        """The keys of a bin that have changed, in no order; whoever takes them takes their states,
        or gives them back."""
        return self._changes.take(bin)

    def forget_changes(self, bin: int) -> None:
        """As `take_changes`, where the states of all keys are to be taken."""
        self._changes.drop(bin)

    def mark(self, bin: int) -> None:
        """A bin counts as changed until its changes are taken or forgotten, whatever its keys."""
        self._changes.mark(bin)

    def give_back(self, bin: int, keys: Sequence[bytes]) -> None:
        """Some keys of a bin that were taken have changed still: they were written nowhere."""
        self._changes.put(bin, keys)
        self._database.spill()

    def put_aside(self, bin: int, keys: Sequence[bytes]) -> None:
        """A bundle tells of some changed keys of a bin: until they change again, or are renewed,
        the next one need not."""
        self._changes.put_aside(bin, keys)
        self._database.spill()

    def take_aside(self, bin: int) -> set[bytes]:
        """As `take_changes`, for what has been put aside."""
        return self._changes.take_aside(bin)

    def renew_changes(self, bin: int) -> None:
        """No bundle tells of a bin's changed keys any more."""
        self._changes.renew(bin)

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


class IncomingTable(NamedTuple):
    """A table on its way into a store."""

    store: Store
    bin: int
    table: bytes


def ingest(tables: Sequence[IncomingTable]) -> None:
    """As `Store.install`, and at once, for tables of bins of which nothing has been installed, all
    of one database; together, as each call synchronizes files."""
    if not tables:
        return
    for store, bin, _ in tables:
        assert bin not in store._table.bins, "a bin is served once it has been installed"
        store._undo.forget(bin)
    database = tables[0].store._database
    groups = [store._groups[bin] for store, bin, _ in tables]
    database.groups.update(groups)
    database.rocks.ingest([table for _, _, table in tables])
    for group in groups:
        assert next(database.rocks.entries(group), None), "it is a table of another bin"


class StateBatch:
    """The states of a batch's keys, to be read and set in place while it is entered.

    A key that has no state yet has a slot for the while, and is nowhere again unless one is set.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        changes: Changes,
        frozen: FrozenStates,
        undo: Undo,
        groups: _Groups,
        keys: Sequence[bytes],
        bins: Bins,
    ) -> None:
        self._database, self._table, self._changes = database, table, changes
        self._keys, self._bins = keys, bins
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
        if frozen or undo:
            self._preserve(frozen, undo)

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
        self._note_changes()
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

    def _preserve(self, frozen: FrozenStates, undo: Undo) -> None:
        """What has not changed since bins were frozen, or the last checkpoint, may do so now."""
        clean = np.flatnonzero(~self._table.dirty[self.slots])
        if not len(clean):
            return
        keys, bins = pick(self._keys, clean.tolist()), self._bins[clean]
        before = self._table.cells.before(self.slots[clean])
        frozen.keep(keys, bins, before)
        if undo:
            undo.keep(keys, bins, before, self._weight // len(self._keys))

    def _note_changes(self) -> None:
        """What was lent and has a state may have another one now."""
        clean = np.flatnonzero(~self._table.dirty[self.slots])
        if self._new:
            clean = clean[self._table.cells.has(self.slots[clean])]
        if len(clean):
            self._table.dirty[self.slots[clean]] = True
            self._changes.add(pick(self._keys, clean.tolist()), self._bins[clean])

    def _forget_unset(self) -> None:
        unset = self._table.cells.has(self._table.find([*self._new]))
        for (key, bin), has in zip(self._new.items(), unset, strict=True):
            if not has:
                self._database.memtable.forget(self._table, bin, [key])


class _Groups(dict[int, bytes]):
    """The database prefix of each bin of one operator, made when it is first asked for."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.stem = operator.encode() + b"\0"

    def __missing__(self, bin: int) -> bytes:
        group = self[bin] = self.stem + int(bin).to_bytes(BIN_BYTES, "big")
        return group


def group_of(operator: str, bin: int) -> bytes:
    r"""What stands before the keys of an operator's bin in any worker's database.

    >>> group_of("per_plane", 3)
    b'per_plane\x00\x00\x03'
    """
    return _Groups(operator)[bin]


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
