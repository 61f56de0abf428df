"""Stored updates: the updates of an operator's arrangements as entries of its store, by bin.

Guarantees that after `write` the entries of a bin are all that a new owner, or a restart, needs. So
checkpoints, deltas and migrations take collections as they take any state. Invariant: the
arrangements hold what the entries and the buffer hold. A bin with twice the rows of its last
rewrite is due: `compact` writes it again as its arrangement has it, where updates have cancelled
each other. A store deletes no key, so a rewrite empties entries, and later ones fill them again.
Its rows tell only times after the `since` of the place apart, which has an entry of its own. Cost:
each update is written about three times, in entries of at most `PIECE_ROWS` rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.operators.collection.buffered_updates import BufferedUpdates
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Updates
from meander.state.collections.merge import layer_of
from meander.state.encoding.codec import decode
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME

BUFFER_ROWS = 1 << 16
"""The rows that wait at most; they are written in some milliseconds."""
PIECE_ROWS = 2048
"""The most rows of an entry."""
SPARE_PIECES = 32
"""The entries that a bin may have beyond twice those of its last rewrite."""
_EMPTY = b""
_ANY_TIMES = LayerDescription(Antichain(), Antichain(), Antichain())
"""Its `since` leaves times as they are."""
_PIECE_KEY = Struct(">HBI")
"""A bin, an arrangement and a piece. A key belongs to one bin, as all keys of a store do."""
_SINCE_KEY = Struct(">HB")
"""A bin and an arrangement."""
_SINCE = Struct(">q")

Place = tuple[int, Bin]
"""An arrangement by its number, and a bin."""
Between = Callable[[int, int, int], tuple[int, Iterator[Updates]]]
"""From an arrangement and two hashes to its rows from the first to the last hash, behind the outer
time up to which they tell no times apart."""


@dataclass(slots=True)
class StoredRows:
    """The entries of a bin for one arrangement."""

    since: int = MIN_TIME
    """The outer time up to which the rows tell no times apart."""
    pieces: dict[int, Updates | None] = field(default_factory=dict)
    """The rows by piece; None where a rewrite has emptied the piece."""
    coded: tuple[bool, bool] = False, False
    """Whether keys, and values, are codes of Python values."""

    @property
    def updates(self) -> list[Updates]:
        """Return the rows of all pieces."""
        return [some for some in self.pieces.values() if some is not None]

    @staticmethod
    def of(entries: Iterable[tuple[bytes, bytes]], dictionary: Dictionary) -> dict[int, StoredRows]:
        """Decode the keys and encoded states of a bin; return its rows by the arrangement's
        number. The dictionary gets the values of their codes."""
        found = defaultdict[int, StoredRows](StoredRows)
        for key, state in entries:
            data = decode(state)
            assert isinstance(data, bytes), "an entry holds bytes"
            if len(key) == _SINCE_KEY.size:
                _, number = _SINCE_KEY.unpack(key)
                (found[number].since,) = _SINCE.unpack(data)
            else:
                _, number, piece = _PIECE_KEY.unpack(key)
                found[number].add(piece, data, dictionary)
        return found

    def add(self, piece: int, data: bytes, dictionary: Dictionary) -> None:
        """Decode a piece."""
        if not data:
            self.pieces[piece] = None
            return
        columns = ValueColumns.decode(data).columns
        keys, values, diffs, *times = map(dictionary.codes, columns)
        self.pieces[piece] = Updates(keys, values, np.stack(times, axis=1), diffs)
        self.coded = isinstance(columns[0], ObjectColumn), isinstance(columns[1], ObjectColumn)


@dataclass(slots=True)
class _Pieces:
    """The entries of a bin: filled and existing ones, the rows now and at the last rewrite, and the
    outer time up to which they tell no times apart."""

    filled: int = 0
    existing: int = 0
    rows: int = 0
    rewritten: int = 0
    since: int = MIN_TIME

    @property
    def is_due(self) -> bool:
        return (
            self.rows > 2 * self.rewritten + PIECE_ROWS
            or self.filled > 2 * _pieces(self.rewritten) + SPARE_PIECES
        )


class StoredUpdates:
    """The stored updates of one operator on one worker."""

    def __init__(
        self, store: Store, space: BinSpace, between: Between, dictionary: Dictionary,
        codings: Sequence[UpdateCoding],
    ) -> None:  # fmt: skip
        """`between` reads the arrangements of the operator, and `codings` are theirs."""
        self._dictionary = dictionary
        self._store, self._space, self._between = store, space, between
        self._codings = codings
        self._buffer = [BufferedUpdates(space) for _ in codings]
        self._pieces: defaultdict[Place, _Pieces] = defaultdict(_Pieces)
        self._due = dict[Place, None]()
        """The bins to rewrite, the first due first."""

    def add(self, number: int, updates: Updates) -> None:
        """Add updates that an arrangement has got."""
        self._buffer[number].add(updates)
        if sum(map(len, self._buffer)) >= BUFFER_ROWS:
            self.write()

    def write(self, bin: Bin | None = None) -> None:
        """Write the buffered updates of a bin, or of all bins, to the store."""
        entries = dict[bytes, tuple[Bin, bytes]]()
        for number, buffered in enumerate(self._buffer):
            if not len(buffered):
                continue
            some = buffered.take_all() if bin is None else [(bin, buffered.take(bin))]
            for own, updates in some:
                self._append(entries, (number, own), updates)
        self._put(entries)

    def compact(self, rows: int) -> bool:
        """Rewrite due bins until they have had so many rows; return whether there were any."""
        some = bool(self._due)
        while self._due and rows > 0:
            place = next(iter(self._due))
            rows -= self._pieces[place].rows
            self._rewrite(place)
        return some

    def load(self, bin: Bin) -> dict[int, Updates]:
        """Return the updates of a bin by the arrangement's number, as the store has them."""
        self.forget(bin)
        found = StoredRows.of(self._store.scan(bin), self._dictionary)
        for number, stored in found.items():
            rows, filled = sum(map(len, stored.updates)), len(stored.updates)
            self._pieces[number, bin] = _Pieces(
                filled, len(stored.pieces), rows, rows, stored.since
            )
        return {
            number: Updates.concat(stored.updates)
            for number, stored in found.items()
            if stored.updates
        }

    def forget(self, bin: Bin) -> None:
        """Forget the entries of a bin, as the bin is another worker's."""
        for place in [place for place in self._pieces if place[1] == bin]:
            del self._pieces[place]
            self._due.pop(place, None)

    def _append(
        self, entries: dict[bytes, tuple[Bin, bytes]], place: Place, updates: Updates
    ) -> None:
        pieces, (number, bin) = self._pieces[place], place
        for start in range(0, len(updates), PIECE_ROWS):
            some = updates.take(slice(start, start + PIECE_ROWS))
            entries[_PIECE_KEY.pack(bin, number, pieces.filled)] = bin, self._encoded(number, some)
            pieces.filled += 1
        pieces.existing = max(pieces.existing, pieces.filled)
        pieces.rows += len(updates)
        if pieces.is_due:
            self._due[place] = None

    def _rewrite(self, place: Place) -> None:
        """Write a bin as its arrangement has it, which has the rows of the buffer, too."""
        (number, bin), width = place, 64 - self._space.bits
        if len(self._buffer[number]):
            self._buffer[number].take(bin)
        since, some = self._between(number, bin << width, ((bin + 1) << width) - 1)
        parts, pieces, entries = [*some], self._pieces[place], dict[bytes, tuple[Bin, bytes]]()
        pieces.filled = pieces.rows = 0
        # An earlier owner of the bin may have been ahead.
        pieces.since = max(since, pieces.since)
        entries[_SINCE_KEY.pack(bin, number)] = bin, _SINCE.pack(pieces.since)
        if parts:
            left = layer_of(Updates.concat(parts), _ANY_TIMES)
            for updates in left.updates():
                self._append(entries, place, updates)
        pieces.rewritten = pieces.rows
        for piece in range(pieces.filled, pieces.existing):
            entries[_PIECE_KEY.pack(bin, number, piece)] = bin, _EMPTY
        self._put(entries)
        self._due.pop(place, None)

    def _encoded(self, number: int, updates: Updates) -> bytes:
        columns = self._codings[number].columns(updates.keys, updates.values)
        times = (np.ascontiguousarray(column) for column in updates.times.T)
        return ValueColumns((*columns, updates.diffs, *times)).encode()

    def _put(self, entries: dict[bytes, tuple[Bin, bytes]]) -> None:
        if not entries:
            return
        bins = np.array([bin for bin, _ in entries.values()], np.int64)
        with self._store.open_batch([*entries], bins) as batch:
            slots = zip(batch.slots.tolist(), entries.values(), strict=True)
            for slot, (_, data) in slots:
                batch.sealed[slot] = data


def _pieces(rows: int) -> int:
    return -(-rows // PIECE_ROWS)
