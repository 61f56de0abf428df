"""Arrangements: a trace that the operators of a worker share, each at a position of its own
(differential dataflow, "Sharing arrangements").

Guarantees that a reader gets exactly the updates before the frontier that it asks for, and of an
installed bin all rows that the operator has read where the bin was before. In a loop such rows may
lie beyond its frontier. Invariant: the trace holds what all readers have passed. Later layers and
installed rows wait as they came. Times of a reader in a loop have the iterations of its scope, and
rows enter with zero iterations. Cost: a comparison per row that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from meander.state.collections.columns import Bools, Int64s, UInt64s
from meander.state.collections.cursor import Cursor, CursorRows, Run
from meander.state.collections.description import LayerDescription
from meander.state.collections.frontiers import columns_of, not_before
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.collections.merge import layer_of
from meander.state.collections.trace import FACTOR, Trace
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time


class ArrangementReader:
    """A reader of an arrangement, whose times have `depth` coordinates."""

    def __init__(self, arrangement: Arrangement, depth: int) -> None:
        self._arrangement, self._depth = arrangement, depth
        self._reader = arrangement.trace.reader()
        self.position = arrangement.lowest
        """The frontier up to which it has read, in the scope of the arrangement."""
        self.restored = dict[Bin, Antichain]()
        """By bin the least times of the rows that it had not read at the checkpoint."""
        self._awaited = set[Bin]()
        """The bins of `restored` whose rows are not installed."""

    def restore(self, bin: Bin, unread: Antichain) -> None:
        """Take the least times of a bin's rows that it had not read at the checkpoint."""
        self.restored[bin] = unread.meet(self.restored.get(bin, unread))
        self._awaited.add(bin)

    def note_installed(self, bin: Bin) -> None:
        """Note that the rows of a bin are in the arrangement."""
        self._awaited.discard(bin)

    def forget(self, bin: Bin) -> None:
        """Forget a bin that the operator has left to another worker."""
        self.restored.pop(bin, None)
        self._awaited.discard(bin)

    @property
    def awaited(self) -> dict[Bin, Antichain]:
        """Return what `restore` has got of bins whose rows are not installed."""
        return {bin: self.restored[bin] for bin in self._awaited}

    def unread(self) -> Iterator[Updates]:
        """Yield the rows in the arrangement that it has not read."""
        return self._arrangement.unread(self)

    def gather(self, hashes: UInt64s, before: Antichain) -> CursorRows:
        """Return the rows of sorted distinct hashes with times before a frontier."""
        return self._entered(self._cursor(before).gather(hashes))

    def pieces(self, hashes: UInt64s, before: Antichain) -> Iterator[CursorRows]:
        """Yield the same rows in pieces."""
        return map(self._entered, self._cursor(before).pieces(hashes))

    def advance(self, position: Antichain) -> None:
        """Give up all that comes before a position."""
        outer = columns_of(position, self._depth)[:, : self._arrangement.depth]
        self._reader.advance(Antichain.of(*map(_time, outer.tolist())))
        self.position = self._outside(position)
        self._arrangement.absorb()

    def _cursor(self, before: Antichain) -> Cursor:
        return self._arrangement.cursor(self, self._outside(before))

    def _outside(self, frontier: Antichain) -> Antichain:
        """Return the frontier that bounds the same rows outside of the loops between."""
        depth = self._arrangement.depth
        if depth == self._depth:
            return frontier
        times = columns_of(frontier, self._depth)
        entering = (times[:, depth:] == 0).all(axis=1)
        return Antichain.of(*map(_time, times[entering, :depth].tolist()))

    def _entered(self, rows: CursorRows) -> CursorRows:
        depth = self._arrangement.depth
        if depth == self._depth:
            return rows
        times = np.zeros((len(rows), self._depth), np.int64)
        times[:, :depth] = rows.times
        return replace(rows, times=times)


class Arrangement:
    """The updates of a collection by key, for all operators of a worker that read them.

    >>> from meander.state.collections.kernels import hashes_of
    >>> arrangement = Arrangement(depth=1)
    >>> reader = arrangement.reader(1)
    >>> zero, five, nine = Antichain.of(0), Antichain.of(5), Antichain.of(9)
    >>> some = Updates.of([(7, 1, (4,), 1), (7, 2, (6,), 1)])
    >>> arrangement.insert(layer_of(some, LayerDescription(zero, nine, zero)))
    >>> reader.gather(hashes_of(np.array([7])), before=five).values.tolist()
    [1]
    """

    def __init__(self, depth: int, factor: int = FACTOR) -> None:
        """Take the coordinates of a time, and the factor of merging."""
        self.depth, self.trace = depth, Trace(depth, factor)
        self.lowest = self.upper = self.trace.upper
        """The frontier before which all updates are in the arrangement."""
        self._recent = deque[Layer]()
        self._installed = list[InstalledRows]()
        """The arrangement keeps the rows of an installed bin here until all readers have passed
        them."""
        self._removed = list[UpdateChunk]()
        """The arrangement keeps the rows that cancel a bin here until all readers have passed
        them."""
        self._readers: list[ArrangementReader] = []

    def reader(self, depth: int) -> ArrangementReader:
        """Return a reader in the scope of the arrangement, or in a loop that it enters."""
        reader = ArrangementReader(self, depth)
        self._readers.append(reader)
        return reader

    def insert(self, layer: Layer) -> None:
        """Add the layer of the next updates."""
        assert self.upper == layer.description.lower, "layers follow each other without a gap"
        self.upper = layer.description.upper
        self._recent.append(layer)
        self.absorb()

    def install(self, bin: Bin, updates: Updates, at: Antichain) -> None:
        """Add updates of any times, of a bin that is here from a frontier on."""
        for reader in self._readers:
            reader.note_installed(bin)
        if len(updates) and not self._absorb(chunk := UpdateChunk.sorted(updates)):
            self._installed.append(InstalledRows(bin, chunk, at))

    def remove(self, first: int, last: int, at: int) -> None:
        """Cancel from the outer time `at` on the updates of the hashes from `first` to `last`.

        Merges drop them. A reader before that time still gets them.
        """
        for updates in [some for some in self.between(first, last) if len(some)]:
            times = updates.times.copy()
            times[:, 0] = np.maximum(times[:, 0], at)
            chunk = UpdateChunk.sorted(replace(updates, times=times, diffs=-updates.diffs))
            if not self._absorb(chunk):
                self._removed.append(chunk)

    def absorb(self) -> None:
        """Let the trace take the layers and the rows of moves that all readers have passed."""
        while self._recent and self._is_passed(self._recent[0]):
            self.trace.insert(self._recent.popleft())
        self._installed = [one for one in self._installed if not self._absorb(one.chunk)]
        self._removed = [one for one in self._removed if not self._absorb(one)]

    def _absorb(self, chunk: UpdateChunk) -> bool:
        """Let the trace take a chunk that all readers have passed; return whether they have."""
        updates = chunk.updates()
        if any(not_before(updates.times, reader.position).any() for reader in self._readers):
            return False
        upper, since = self.trace.upper, self.trace.since
        self.trace.insert(layer_of(updates, LayerDescription(upper, upper, since)))
        return True

    def _is_passed(self, layer: Layer) -> bool:
        upper = layer.description.upper
        return all(upper.dominates(reader.position) for reader in self._readers)

    def cursor(self, reader: ArrangementReader, before: Antichain) -> Cursor:
        """Return a cursor over the updates before a frontier that the reader has not passed."""
        recent = [_before(layer, before) for layer in self._recent]
        installed = [one.read_by(reader, before) for one in self._installed]
        removed = [_rows_before([chunk.updates()], before) for chunk in self._removed]
        return self.trace.cursor([Run(some) for some in (*recent, *installed, *removed) if some])

    def whole_cursor(self) -> Cursor:
        """Return a cursor over all updates, of whatever times."""
        more = [Run(layer.chunks) for layer in self._recent if len(layer)]
        return self.trace.cursor([*more, *(Run([chunk]) for chunk in self._waiting)])

    def unread(self, reader: ArrangementReader) -> Iterator[Updates]:
        """Yield the updates that a reader has not read."""
        waiting = [(some, [reader.position]) for layer in self._recent for some in layer.updates()]
        waiting += [
            (one.chunk.updates(), [reader.position, unread])
            for one in self._installed
            if (unread := reader.restored.get(one.bin)) is not None
        ]
        for updates, read in waiting:
            rows = np.flatnonzero(_before_none(updates, read))
            if len(rows):
                yield updates.take(rows)

    def between(self, first: int, last: int) -> Iterator[Updates]:
        """Yield the updates with hashes from `first` to `last`."""
        yield from self.trace.between(first, last)
        recent = (chunk for layer in self._recent for chunk in layer.chunks)
        for chunk in (*recent, *self._waiting):
            if chunk.first <= last and chunk.last >= first:
                yield chunk.between(first, last).updates()

    @property
    def chunks(self) -> list[UpdateChunk]:
        """Return the chunks that hold all updates."""
        layers = chain(self.trace.layers, self._recent)
        return [*chain.from_iterable(layer.chunks for layer in layers), *self._waiting]

    def compact(self, fuel: int) -> int:
        """Merge up to `fuel` rows; return how many."""
        return self.trace.compact(fuel)

    def __len__(self) -> int:
        return len(self.trace) + sum(map(len, self._recent)) + sum(map(len, self._waiting))

    @property
    def _waiting(self) -> list[UpdateChunk]:
        return [*(one.chunk for one in self._installed), *self._removed]


@dataclass(frozen=True, slots=True)
class InstalledRows:
    """The rows of an installed bin."""

    bin: Bin
    chunk: UpdateChunk
    at: Antichain
    """The frontier from which on the bin is here."""

    def read_by(self, reader: ArrangementReader, before: Antichain) -> list[UpdateChunk]:
        """Return the rows that a reader gets before a frontier: all that it has read where the bin
        was, once it comes to the bin."""
        unread = reader.restored.get(self.bin)
        if unread is not None:
            return _rows_before([self.chunk.updates()], before, unread)
        if self.at.dominates(reader.position):
            return [self.chunk]
        return _rows_before([self.chunk.updates()], before)


def settled(updates: Updates, since: int) -> Updates:
    """Return updates with the outer time `MIN_TIME` in place of all outer times up to `since`,
    which no reader on any worker tells apart.

    >>> settled(Updates.of([(7, 1, (4, 2), 1), (7, 2, (6, 0), 1)], depth=2), 5).times.tolist()
    [[0, 2], [6, 0]]
    """
    times = updates.times.copy()
    times[times[:, 0] <= since, 0] = MIN_TIME
    return replace(updates, times=times)


def _before(layer: Layer, frontier: Antichain) -> list[UpdateChunk]:
    """Return the rows of a layer with times before a frontier."""
    if layer.description.upper.dominates(frontier):
        return [*layer.chunks]
    return _rows_before(layer.updates(), frontier)


def _rows_before(some: Iterable[Updates], *frontiers: Antichain) -> list[UpdateChunk]:
    """Return the rows with times before one of some frontiers."""
    found = list[UpdateChunk]()
    for updates in some:
        rows: Int64s = np.flatnonzero(~_before_none(updates, frontiers))
        if len(rows):
            found.append(UpdateChunk.sorted(updates.take(rows)))
    return found


def _before_none(updates: Updates, frontiers: Sequence[Antichain]) -> Bools:
    """Return which rows are before none of some frontiers."""
    rows: Bools = np.logical_and.reduce([not_before(updates.times, one) for one in frontiers])
    return rows


def _time(coordinates: list[int]) -> Time:
    return coordinates[0] if len(coordinates) == 1 else tuple(coordinates)
