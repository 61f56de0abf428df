"""Layers: immutable sorted updates, key -> values -> history of (time, diff), in chunks of columns.

Guarantees that a chunk never changes, so traces, cursors and channels share it by reference. Rows
are sorted by (hash, value, time). The hash is a bijection of the key, and its top bits are the bin,
so a bin is one row range. The static part holds rows of one time with diff 1, without time and diff
(differential dataflow, "Specialization"). The history of a value lies beside the value instead of
behind an offset: 4 bytes less per single update. Cost: 12 bytes per key; per static row 4 bytes,
or 8 where a value exceeds 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from meander.state.collections import kernels
from meander.state.collections.columns import Int32s, Int64s, UInt64s, Values
from meander.state.collections.description import LayerDescription

CHUNK_ROWS = 1 << 17
"""The most rows of each part of a chunk, unless one (key, value) has more."""


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates in any order; `keys`, `values`, `diffs` have the shape (n,), `times` (n, depth).

    >>> some = Updates.of([(7, 1, (0,), 1), (7, 1, (3,), -1)])
    >>> len(some), some.depth
    (2, 1)
    """

    keys: Int64s
    values: Int64s
    times: Int64s
    diffs: Int64s

    @staticmethod
    def of(rows: Sequence[tuple[int, int, tuple[int, ...], int]], depth: int = 1) -> Updates:
        """Return updates of rows (key, value, time, diff)."""
        return Updates(
            np.array([key for key, *_ in rows], np.int64),
            np.array([value for _, value, _, _ in rows], np.int64),
            np.array([time for *_, time, _ in rows], np.int64).reshape(len(rows), depth),
            np.array([diff for *_, diff in rows], np.int64),
        )

    @property
    def depth(self) -> int:
        """Return the number of coordinates of a time."""
        return int(self.times.shape[1])

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Int64s | slice) -> Updates:
        """Return some rows."""
        return Updates(self.keys[rows], self.values[rows], self.times[rows], self.diffs[rows])

    @staticmethod
    def concat(many: Sequence[Updates]) -> Updates:
        """Return all rows of at least one piece."""
        return Updates(
            np.concatenate([one.keys for one in many]),
            np.concatenate([one.values for one in many]),
            np.concatenate([one.times for one in many]),
            np.concatenate([one.diffs for one in many]),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The keys of one part of a chunk, and their values.

    Shapes: `hashes` (k,) ascending, `offsets` (k + 1,), `values` (n,).
    """

    hashes: UInt64s
    offsets: Int32s
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the columns."""
        return self.hashes.nbytes + self.offsets.nbytes + self.values.nbytes

    def since(self, key: int, row: int) -> Part:
        """Return the rows from one on; `key` is the place of its key."""
        offsets = self.offsets[key:] - self.offsets.dtype.type(row)
        offsets[0] = 0
        return Part(self.hashes[key:], offsets, self.values[row:])

    def between(self, first: int, last: int) -> tuple[Part, slice]:
        """Return the rows of the hashes from `first` to `last`, and their place."""
        low = int(np.searchsorted(self.hashes, np.uint64(first)))
        high = int(np.searchsorted(self.hashes, np.uint64(last), side="right"))
        rows = slice(int(self.offsets[low]), int(self.offsets[high]))
        offsets = self.offsets[low : high + 1] - self.offsets[low]
        return Part(self.hashes[low:high], offsets, self.values[rows]), rows

    @staticmethod
    def empty(dtype: npt.DTypeLike = np.int32) -> Part:
        """Return a part without rows."""
        return Part(np.empty(0, np.uint64), np.zeros(1, np.int32), np.empty(0, dtype))


@dataclass(frozen=True, slots=True)
class UpdateChunk:
    """A chunk of a layer: its static rows at the time `floor`, and its dynamic rows.

    Shapes: `floor` (depth,), `times` (n, depth), `diffs` (n,) for the n dynamic rows.
    """

    static: Part
    floor: Int64s
    dynamic: Part
    times: Int64s
    diffs: Int64s

    def __len__(self) -> int:
        return len(self.static) + len(self.dynamic)

    @property
    def first(self) -> int:
        """Return the least hash."""
        return min(int(part.hashes[0]) for part in (self.static, self.dynamic) if len(part))

    @property
    def last(self) -> int:
        """Return the greatest hash."""
        return max(int(part.hashes[-1]) for part in (self.static, self.dynamic) if len(part))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return self.static.nbytes + self.dynamic.nbytes + self.times.nbytes + self.diffs.nbytes

    def since(self, key: int, row: int, dynamic_key: int, dynamic_row: int) -> UpdateChunk:
        """Return the rows from a place in each part on."""
        return UpdateChunk(
            self.static.since(key, row),
            self.floor,
            self.dynamic.since(dynamic_key, dynamic_row),
            self.times[dynamic_row:],
            self.diffs[dynamic_row:],
        )

    def between(self, first: int, last: int) -> UpdateChunk:
        """Return the rows of the hashes from `first` to `last`."""
        static, _ = self.static.between(first, last)
        dynamic, rows = self.dynamic.between(first, last)
        return UpdateChunk(static, self.floor, dynamic, self.times[rows], self.diffs[rows])

    def updates(self) -> Updates:
        """Return all rows as updates."""
        if not len(self.static):
            counts = np.diff(self.dynamic.offsets)
            keys = kernels.keys_of(np.repeat(self.dynamic.hashes, counts))
            values = self.dynamic.values.astype(np.int64)
            return Updates(keys, values, self.times, self.diffs)
        hashes = [np.repeat(p.hashes, np.diff(p.offsets)) for p in (self.static, self.dynamic)]
        ones = np.ones(len(self.static), np.int64)
        return Updates(
            kernels.keys_of(np.concatenate(hashes)),
            np.concatenate([self.static.values, self.dynamic.values]).astype(np.int64),
            np.concatenate([np.tile(self.floor, (len(self.static), 1)), self.times]),
            np.concatenate([ones, self.diffs]),
        )

    @staticmethod
    @cache
    def empty(depth: int) -> UpdateChunk:
        """Return a chunk without rows."""
        times, diffs = np.empty((0, depth), np.int64), np.empty(0, np.int64)
        return UpdateChunk(Part.empty(), np.zeros(depth, np.int64), Part.empty(), times, diffs)

    @staticmethod
    def sorted(updates: Updates) -> UpdateChunk:
        """Return updates as one chunk, sorted by hash and value, neither merged nor static."""
        hashes = kernels.hashes_of(updates.keys)
        order = kernels.sorted_rows(hashes, updates.values)
        keys, offsets = kernels.grouped(hashes, order)
        values = narrow(updates.values[order])
        rows = Part(keys, offsets, values)
        floor = least(updates.times)
        times, diffs = updates.times[order], updates.diffs[order]
        return UpdateChunk(Part.empty(values.dtype), floor, rows, times, diffs)

    @staticmethod
    def joined(chunks: Sequence[UpdateChunk]) -> Iterator[UpdateChunk]:
        """Yield chunks without static rows, in the order of their hashes, as few large ones."""
        run, rows = list[UpdateChunk](), 0
        for chunk in chunks:
            if run and rows + len(chunk) > CHUNK_ROWS:
                yield _as_one(run)
                run, rows = [], 0
            run.append(chunk)
            rows += len(chunk)
        if run:
            yield _as_one(run)


def _as_one(chunks: Sequence[UpdateChunk]) -> UpdateChunk:
    """Return chunks without static rows, in the order of their hashes, as one."""
    if len(chunks) == 1:
        return chunks[0]
    counts = np.concatenate([np.diff(one.dynamic.offsets) for one in chunks])
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    values = np.concatenate([one.dynamic.values for one in chunks])
    times = np.concatenate([one.times for one in chunks])
    part = Part(np.concatenate([one.dynamic.hashes for one in chunks]), offsets, values)
    diffs = np.concatenate([one.diffs for one in chunks])
    return UpdateChunk(Part.empty(values.dtype), least(times), part, times, diffs)


def narrow(values: Int64s) -> Values:
    """Return values in 32 bits where all fit."""
    limits = np.iinfo(np.int32)
    if len(values) and (values.min() < limits.min or values.max() > limits.max):
        return values
    return values.astype(np.int32)


def least(times: Int64s) -> Int64s:
    """Return the least coordinates of some times; shape (depth,)."""
    return times.min(axis=0) if len(times) else np.zeros(times.shape[1], np.int64)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: chunks in the order of their hashes, and the description of their updates."""

    chunks: tuple[UpdateChunk, ...]
    description: LayerDescription

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def updates(self) -> Iterator[Updates]:
        """Yield the rows chunk by chunk."""
        return (chunk.updates() for chunk in self.chunks)
