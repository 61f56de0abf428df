"""Cursors: reading a trace by keys while its layers are merged and replaced.

Guarantees that a cursor reads the updates that the trace held when it was opened: it owns
references to immutable chunks, so an operator may keep it between steps and stop within a key.
Cost: per layer one galloping search a key, from an estimated place as hashes lie evenly, and one
copy of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meander.state.collections import kernels
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.layer import Part, UpdateChunk

PIECE_ROWS = 1 << 16
"""The most rows of a piece."""


@dataclass(frozen=True, slots=True)
class CursorRows:
    """Rows of a trace; `query` (n,) is the place of a row's key among the keys asked for.

    Shapes: `values`, `diffs` (n,), `times` (n, depth).
    """

    query: Int64s
    values: Int64s
    times: Int64s
    diffs: Int64s

    def __len__(self) -> int:
        return len(self.query)


class Span(NamedTuple):
    """Row ranges of consecutive queries in one part of a chunk; `starts`, `ends` have the shape
    (queries,), and `first` is the first of these queries."""

    chunk: UpdateChunk
    dynamic: bool
    first: int
    starts: Int64s
    ends: Int64s
    rows: int


class Run:
    """Chunks in the order of their hashes, with the bounds by which a key finds its chunk."""

    def __init__(self, chunks: Sequence[UpdateChunk]) -> None:
        self.chunks = chunks
        self._firsts = np.array([chunk.first for chunk in chunks], np.uint64)
        self._lasts = np.array([chunk.last for chunk in chunks], np.uint64)

    def spans(self, hashes: UInt64s, by_estimate: bool) -> Iterator[Span]:
        """Yield the row ranges of sorted hashes."""
        starts = np.searchsorted(hashes, self._firsts).tolist()
        ends = np.searchsorted(hashes, self._lasts, side="right").tolist()
        for chunk, start, end in zip(self.chunks, starts, ends, strict=True):
            if start == end:
                continue
            queries = hashes[start:end]
            for part, dynamic in ((chunk.static, False), (chunk.dynamic, True)):
                span = _located(chunk, part, dynamic, queries, start, by_estimate)
                if span.rows:
                    yield span


def _located(
    chunk: UpdateChunk, part: Part, dynamic: bool, queries: UInt64s, first: int, by_estimate: bool
) -> Span:
    starts, ends = np.empty(len(queries), np.int64), np.empty(len(queries), np.int64)
    rows = kernels.locate(part.hashes, part.offsets, queries, by_estimate, starts, ends)
    return Span(chunk, dynamic, first, starts, ends, rows)


class Cursor:
    """A cursor over the layers that a trace had when the cursor was opened."""

    def __init__(self, runs: Sequence[Run], depth: int, by_estimate: bool = True) -> None:
        self._runs, self._depth, self._by_estimate = runs, depth, by_estimate

    def gather(self, hashes: UInt64s) -> CursorRows:
        """Return all rows of sorted distinct hashes; rows of one key are in no order."""
        return self._copied([*self.spans(hashes)])

    def spans(self, hashes: UInt64s) -> Iterator[Span]:
        """Yield the places of the rows of sorted hashes, which may repeat."""
        for run in self._runs:
            yield from run.spans(hashes, self._by_estimate)

    def pieces(self, hashes: UInt64s) -> Iterator[CursorRows]:
        """Yield the same rows in pieces of `PIECE_ROWS`, also within a key."""
        for span in self.spans(hashes):
            for piece in _cut(span):
                yield self._copied([piece])

    def _copied(self, spans: Sequence[Span]) -> CursorRows:
        count = sum(span.rows for span in spans)
        rows = CursorRows(
            np.empty(count, np.int64), np.empty(count, np.int64),
            np.empty((count, self._depth), np.int64), np.empty(count, np.int64),
        )  # fmt: skip
        columns, at = (rows.query, rows.values, rows.times, rows.diffs), 0
        for span in spans:
            chunk, ranges = span.chunk, (span.starts, span.ends)
            if span.dynamic:
                at = kernels.gather_dynamic(
                    chunk.dynamic.values, chunk.times, chunk.diffs,
                    *ranges, span.first, *columns, at,
                )  # fmt: skip
            else:
                at = kernels.gather_static(
                    chunk.static.values, *ranges, chunk.floor, span.first, *columns, at
                )
        return rows


def _cut(span: Span) -> Iterator[Span]:
    """Yield a span in pieces of at most `PIECE_ROWS` rows."""
    if span.rows <= PIECE_ROWS:
        yield span
        return
    lengths = span.ends - span.starts
    before = np.cumsum(lengths) - lengths
    for start in range(0, span.rows, PIECE_ROWS):
        end = start + PIECE_ROWS
        some = np.flatnonzero((before < end) & (before + lengths > start) & (lengths > 0))
        low, high = int(some[0]), int(some[-1]) + 1
        begin = span.starts[low:high] + np.maximum(start - before[low:high], 0)
        stop = span.starts[low:high] + np.minimum(end - before[low:high], lengths[low:high])
        stop = np.maximum(stop, begin)
        rows = int((stop - begin).sum())
        yield Span(span.chunk, span.dynamic, span.first + low, begin, stop, rows)
