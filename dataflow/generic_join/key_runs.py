"""Runs of rows with equal keys, and what an arrangement holds of these keys.

Guarantees results per row, in whatever order rows come. Rows that one prefix proposed follow each
other, so a run is looked up once. Cost: a sort of the runs, one search per run and layer, then the
loops of `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meander.dataflow.generic_join import kernels
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.cursor import Cursor, Span
from meander.state.collections.kernels import hashes_of

COUNTED = 1 << 10
"""The updates of a key and layer of which a count compares the times. It counts all others."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """Values that the keys of some rows propose; `rows`, `values`, `diffs` have the shape (n,)."""

    rows: Int64s
    values: Int64s
    diffs: Int64s

    @staticmethod
    def concat(parts: list[Proposals]) -> Proposals:
        """Return all proposals of at least one part."""
        return Proposals(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.diffs for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class KeyRuns:
    """Runs in the order of the hashes of their keys; `hashes`, `firsts`, `ends` (runs,)."""

    hashes: UInt64s
    firsts: Int64s
    ends: Int64s
    rows: int

    @staticmethod
    def of(keys: Int64s) -> KeyRuns:
        """Return the runs of at least one row.

        >>> runs = KeyRuns.of(np.array([7, 7, 9, 7]))
        >>> sorted(zip(runs.firsts.tolist(), runs.ends.tolist()))
        [(0, 2), (2, 3), (3, 4)]
        """
        begins = np.ones(len(keys), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=begins[1:])
        (firsts,) = begins.nonzero()
        ends = np.full(len(firsts), len(keys))
        ends[:-1] = firsts[1:]
        hashes = hashes_of(keys[firsts])
        order = np.argsort(hashes)
        return KeyRuns(hashes[order], firsts[order], ends[order], len(keys))

    def counts(self, cursor: Cursor, before: Int64s) -> Int64s:
        """Return at least as many updates as each row's key has of times below `before`, and as it
        proposes; all have the shape (rows,)."""
        counts = np.zeros(self.rows, np.int64)
        for span, firsts, ends in self._spans(cursor):
            chunk, places = span.chunk, (firsts, ends, span.starts, span.ends, before)
            if span.dynamic:
                kernels.count_dynamic(*places, chunk.times, COUNTED, counts)
            else:
                kernels.count_static(*places, int(chunk.floor[0]), counts)
        return counts

    def proposals(self, cursor: Cursor, before: Int64s) -> Proposals:
        """Return the values of each row's key, of times below `before` (rows,)."""
        parts = [Proposals(*(np.empty(0, np.int64) for _ in range(3)))]
        for span, firsts, ends in self._spans(cursor):
            count = int(((ends - firsts) * (span.ends - span.starts)).sum())
            rows, values, diffs = (np.empty(count, np.int64) for _ in range(3))
            chunk, places = span.chunk, (firsts, ends, span.starts, span.ends, before)
            if span.dynamic:
                some = kernels.propose_dynamic(
                    *places, chunk.dynamic.values, chunk.times, chunk.diffs, rows, values, diffs
                )
            else:
                some = kernels.propose_static(
                    *places, chunk.static.values, int(chunk.floor[0]), rows, values, diffs
                )
            parts.append(Proposals(rows[:some], values[:some], diffs[:some]))
        return Proposals.concat(parts)

    def support(self, cursor: Cursor, before: Int64s, wanted: Int64s) -> Int64s:
        """Return the sum of the diffs of each row's key with its wanted value, of times below
        `before`; all have the shape (rows,)."""
        support = np.zeros(self.rows, np.int64)
        for span, firsts, ends in self._spans(cursor):
            chunk, places = span.chunk, (firsts, ends, span.starts, span.ends, before, wanted)
            if span.dynamic:
                kernels.support_dynamic(
                    *places, chunk.dynamic.values, chunk.times, chunk.diffs, support
                )
            else:
                kernels.support_static(*places, chunk.static.values, int(chunk.floor[0]), support)
        return support

    def _spans(self, cursor: Cursor) -> Iterator[tuple[Span, Int64s, Int64s]]:
        """Yield the places of the keys in each chunk, and the rows of these keys."""
        for span in cursor.spans(self.hashes):
            some = slice(span.first, span.first + len(span.starts))
            yield span, self.firsts[some], self.ends[some]
