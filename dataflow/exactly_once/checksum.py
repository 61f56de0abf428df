"""Tallies: how many results there are, and a checksum of which, whatever their order.

Guarantees that two tallies of the same results are equal, and that those of other results are not,
but with a chance of 2**-64: the digest is the sum of a hash of each result, its time, its key and
its value as the sink writes them. So tallies of parts, on whichever workers, add up to that of the
whole. A result's place in the flow's order is no part of it: it changes with the flow's operators.
Cost: 0.1 to 0.2 us a result, in native code.
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
"""Stands for a key or a value that is none: neither JSON nor UTF-8."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of some results.

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
    def of(times: Int64s, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Checksum:
        """Of results as they are written, shapes (n,)."""
        seeds = map(xxh3_64_intdigest, _there(keys), times.astype(np.uint64).tolist())
        hashes = map(xxh3_64_intdigest, _there(values), seeds)
        return Checksum(len(values), int(np.fromiter(hashes, np.uint64, len(values)).sum()))

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.count + other.count, self.digest + other.digest & _WRAP)

    def __sub__(self, other: Checksum) -> Checksum:
        return Checksum(self.count - other.count, self.digest - other.digest & _WRAP)


class Out(NamedTuple):
    """Results that are out: all of some, from a time on."""

    since: int
    """None of them is of an earlier time."""
    tally: Checksum


def _there(column: Sequence[bytes | None]) -> Iterable[bytes]:
    return [_NULL if one is None else one for one in column]
