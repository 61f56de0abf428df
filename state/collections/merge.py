"""Progressive merging of two adjacent layers (differential dataflow, "Progressive merging").

Guarantees that the result holds the updates of both with times advanced to `since`, and that both
stay readable meanwhile. A step charges the rows it takes and stops between two values, also within
a key; only the history of one (key, value) has no bound. Invariant: `chunks` cover each (key,
value) once: finished chunks up to a place, the rest of both inputs from there on. So a chunk of an
input leaves memory once it is merged, and peak memory is that of the live rows. Cost: one pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import cast

import numpy as np

from meander.state.collections import merge_kernel as kernel
from meander.state.collections.columns import Int32s, Int64s, UInt64s, Values
from meander.state.collections.description import LayerDescription
from meander.state.collections.frontiers import columns_of
from meander.state.collections.kernels import hashes_of, sorted_rows
from meander.state.collections.layer import (
    CHUNK_ROWS,
    Layer,
    Part,
    UpdateChunk,
    Updates,
    least,
    narrow,
)
from meander.state.times.antichain import Antichain

Width = np.dtype[np.int32] | np.dtype[np.int64]
Columns = tuple[UInt64s, Int32s, Values, UInt64s, Int32s, Values, Int64s, Int64s, Int64s]
"""The columns of a chunk as the kernel takes them."""
UNBOUNDED = 1 << 62
"""The fuel that ends any merge."""


def layer_of(updates: Updates, description: LayerDescription) -> Layer:
    """Return updates in any order as a layer with consolidated rows.

    >>> from meander.state.times.antichain import Antichain
    >>> zero = Antichain.of(0)
    >>> some = Updates.of([(7, 1, (0,), 1), (7, 2, (0,), 1), (7, 1, (0,), -1)])
    >>> layer = layer_of(some, LayerDescription(zero, Antichain.of(1), zero))
    >>> [one.values.tolist() for one in layer.updates()]
    [[2]]
    """
    if len(updates) <= CHUNK_ROWS:
        return _small_layer(updates, description)
    raw = Layer((UpdateChunk.sorted(updates),), description)
    nothing = Layer((), LayerDescription(description.upper, description.upper, description.since))
    merge = Merge(raw, nothing, description.since, updates.depth)
    merge.step(UNBOUNDED)
    return Layer(merge.chunks, description)


def _small_layer(updates: Updates, description: LayerDescription) -> Layer:
    """Return updates that fit one chunk as a layer, in a tenth of the time of a merge."""
    rows, depth = len(updates), updates.depth
    if not rows:
        return Layer((), description)
    hashes = hashes_of(updates.keys)
    order = sorted_rows(hashes, updates.values)
    keys, offsets = np.empty(rows, np.uint64), np.empty(rows + 1, np.int32)
    values, diffs = np.empty(rows, np.int64), np.empty(rows, np.int64)
    times = np.empty((rows, depth), np.int64)
    count, kept = kernel.consolidate(
        hashes, updates.values, updates.times, updates.diffs, order,
        columns_of(description.since, depth), keys, offsets, values, times, diffs,
    )  # fmt: skip
    if not kept:
        return Layer((), description)
    part = Part(keys[:count], offsets[: count + 1], narrow(values[:kept]))
    none = Part.empty(part.values.dtype)
    return Layer(
        (UpdateChunk(none, least(times[:kept]), part, times[:kept], diffs[:kept]),), description
    )


class Merge:
    """A merge of two layers whose result grows step by step."""

    def __init__(self, earlier: Layer, later: Layer, since: Antichain, depth: int) -> None:
        self.description = earlier.description.then(later.description, since)
        self._depth, self._frontier = depth, columns_of(since, depth)
        self._width = _width_of(chain(earlier.chunks, later.chunks))
        self._a = _Input(earlier, depth, self._width)
        self._b = _Input(later, depth, self._width)
        rows = len(earlier) + len(later)
        self._room = min(CHUNK_ROWS, rows)
        self._floor = self._advanced(self._common_floor(earlier, later))
        self._out: _Output | None = None
        self._done: list[UpdateChunk] = []
        self.chunks = (*earlier.chunks, *later.chunks)
        """Chunks that hold all updates of both layers at present."""
        self._cursors = np.zeros(kernel.CURSORS, np.int64)
        self.finished = not rows

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns, of the unfinished chunk as well."""
        rest = sum(chunk.nbytes for chunk in self.chunks)
        return rest + (0 if self._out is None else self._out.nbytes(self._cursors))

    def step(self, fuel: int) -> int:
        """Merge until the rows taken reach `fuel`; return the rows taken."""
        cursors, spent = self._cursors, 0
        while not self.finished and spent < fuel:
            if self._out is None:
                self._open(self._room)
            assert self._out is not None
            before = int(cursors[kernel.CHARGED])
            why = kernel.merge(
                *self._a.columns, *self._b.columns, *self._out.columns, self._floor,
                self._frontier, cursors, fuel - spent,
            )  # fmt: skip
            spent += int(cursors[kernel.CHARGED]) - before
            self._proceed(why)
        return spent

    def result(self) -> Layer:
        """Return the merged layer."""
        assert self.finished, "a merge has a result once it is finished"
        return Layer(tuple(self._done), self.description)

    def _proceed(self, why: int) -> None:
        cursors = self._cursors
        match why:
            case kernel.NEEDS_A:
                self._a.next(cursors, kernel.A_KEY, kernel.A_ENDED)
            case kernel.NEEDS_B:
                self._b.next(cursors, kernel.B_KEY, kernel.B_ENDED)
            case kernel.FULL:
                assert self._out is not None
                if self._out.used(cursors):
                    self._close()
                else:
                    self._open(2 * self._out.room)
            case kernel.MERGED:
                self._close()
                self.finished = True

    def _open(self, room: int) -> None:
        self._out = _Output(room, self._depth, self._width)
        self._cursors[kernel.O_KEY : kernel.O_DROW + 1] = 0

    def _close(self) -> None:
        """Finish the output chunk; the inputs before its end are no longer needed."""
        assert self._out is not None
        if self._out.used(self._cursors):
            self._done.append(self._out.chunk(self._cursors, self._floor))
        self._out = None
        a, b = self._cursors[kernel.A_KEY :], self._cursors[kernel.B_KEY :]
        self.chunks = (*self._done, *self._a.rest(a), *self._b.rest(b))

    def _common_floor(self, earlier: Layer, later: Layer) -> Int64s:
        larger = max(earlier, later, key=len)
        return larger.chunks[0].floor if larger.chunks else np.zeros(self._depth, np.int64)

    def _advanced(self, time: Int64s) -> Int64s:
        out = np.empty(self._depth, np.int64)
        kernel.advance(time, self._frontier, out)
        return out


class _Input:
    """The chunks of one input that are not merged yet."""

    def __init__(self, layer: Layer, depth: int, width: Width) -> None:
        self._chunks, self._depth, self._width = deque(layer.chunks), depth, width
        self.columns = self._columns()
        """The columns of the first chunk, for the kernel."""

    def next(self, cursors: Int64s, first: int, ended: int) -> None:
        """Turn to the next chunk; `first` and `ended` are the places of the cursors."""
        if self._chunks:
            self._chunks.popleft()
        self.columns = self._columns()
        cursors[first : first + 4] = 0
        cursors[ended] = not self._chunks

    def rest(self, at: Int64s) -> tuple[UpdateChunk, ...]:
        """Return the chunks from the cursors `at` on."""
        if not at[:4].any():
            return tuple(self._chunks)
        key, row, dynamic_key, dynamic_row = at[:4].tolist()
        first, *others = self._chunks
        rest = first.since(key, row, dynamic_key, dynamic_row)
        return (rest, *others) if len(rest) else tuple(others)

    def _columns(self) -> Columns:
        chunk = self._chunks[0] if self._chunks else UpdateChunk.empty(self._depth)
        static, dynamic = chunk.static, chunk.dynamic
        values = [part.values.astype(self._width, copy=False) for part in (static, dynamic)]
        return (
            static.hashes, static.offsets, cast(Values, values[0]),
            dynamic.hashes, dynamic.offsets, cast(Values, values[1]),
            chunk.times, chunk.diffs, chunk.floor,
        )  # fmt: skip


class _Output:
    """The columns that a merge fills. Memory is used where rows are written."""

    def __init__(self, room: int, depth: int, width: Width) -> None:
        self.room = room
        self.columns = (
            np.empty(room, np.uint64), np.empty(room + 1, np.int32), np.empty(room, width),
            np.empty(room, np.uint64), np.empty(room + 1, np.int32), np.empty(room, width),
            np.empty((room, depth), np.int64), np.empty(room, np.int64),
        )  # fmt: skip

    def used(self, cursors: Int64s) -> bool:
        """Return whether there are rows."""
        return bool(cursors[kernel.O_ROW] or cursors[kernel.O_DROW])

    def nbytes(self, cursors: Int64s) -> int:
        """Return the bytes of the rows so far."""
        key, row, dynamic_key, dynamic_row = cursors[kernel.O_KEY : kernel.O_DROW + 1].tolist()
        _, _, values, _, _, _, times, diffs = self.columns
        dynamic = values.itemsize + diffs.itemsize + times.itemsize * times.shape[1]
        return int(12 * (key + dynamic_key) + row * values.itemsize + dynamic_row * dynamic)

    def chunk(self, cursors: Int64s, floor: Int64s) -> UpdateChunk:
        """Return a chunk of the rows so far."""
        hashes, offsets, values, dhashes, doffsets, dvalues, times, diffs = self.columns
        key, row, dkey, drow = cursors[kernel.O_KEY : kernel.O_DROW + 1].tolist()
        offsets[key], doffsets[dkey] = row, drow
        static = Part(hashes[:key].copy(), offsets[: key + 1].copy(), values[:row].copy())
        dynamic = Part(dhashes[:dkey].copy(), doffsets[: dkey + 1].copy(), dvalues[:drow].copy())
        return UpdateChunk(static, floor, dynamic, times[:drow].copy(), diffs[:drow].copy())


def _width_of(chunks: Iterable[UpdateChunk]) -> Width:
    parts = (part for chunk in chunks for part in (chunk.static, chunk.dynamic) if len(part))
    wide = any(part.values.dtype == np.int64 for part in parts)
    return np.dtype(np.int64) if wide else np.dtype(np.int32)
