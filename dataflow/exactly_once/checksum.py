"""Checksums: the number of results and a digest of them in any order.

Guarantees that two checksums of the same results are equal, and of different results only with a
chance of 2**-64. The digest sums up a hash of each result: its time, key and value as the sink
writes them, and its topic where a function chooses it. So checksums of parts, on any workers, add
up to that of the whole. The place of a result in the total order does not count: it changes with
the operators of the flow. Cost: 0.1 to 0.2 us per result, in native code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from meander.dataflow.records.batch import Int64s

_WRAP = (1 << 64) - 1
_NULL = b"\xff null"
"""Replaces a missing key or value; it is neither JSON nor UTF-8."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """A count and a digest of some results.

    >>> whole = Checksum.of(np.array([7, 8]), [b"a", None], [b"1", b"2"])
    >>> first = Checksum.of(np.array([7]), [b"a"], [b"1"])
    >>> last = Checksum.of(np.array([8]), [None], [b"2"])
    >>> last + first == whole, whole - first == last
    (True, True)
    """

    count: int = 0
    digest: int = 0
    """The sum of their hashes, modulo 2**64."""

    @staticmethod
    def of(
        times: Int64s,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        topics: Sequence[str] | None = None,
    ) -> Checksum:
        """Return the checksum of results as they are written, shapes (n,). `topics` are those that
        a function has chosen."""
        seeds: Iterable[int] = times.astype(np.uint64).tolist()
        if topics is not None:
            seeds = map(xxh3_64_intdigest, map(str.encode, topics), seeds)
        seeds = map(xxh3_64_intdigest, _there(keys), seeds)
        hashes = map(xxh3_64_intdigest, _there(values), seeds)
        return Checksum(len(values), int(np.fromiter(hashes, np.uint64, len(values)).sum()))

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.count + other.count, self.digest + other.digest & _WRAP)

    def __sub__(self, other: Checksum) -> Checksum:
        return Checksum(self.count - other.count, self.digest - other.digest & _WRAP)


class CommittedChecksum(NamedTuple):
    """A checksum of committed results, all of some from a time on."""

    since: int
    """No result has an earlier time."""
    checksum: Checksum


def _there(column: Sequence[bytes | None]) -> Iterable[bytes]:
    return [_NULL if one is None else one for one in column]
