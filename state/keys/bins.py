"""Bins: groups of keys that move together.

The bin of a key is the top bits of a stable 64-bit hash (xxh3) of its bytes. Every process and
every execution of a flow computes the same bin. Cost: the hash takes about 0.1 us per key; numpy
computes the bins of many keys at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, WorkerId

HASH_BITS = 64
MAX_BITS = 16


@dataclass(frozen=True, slots=True)
class BinSpace:
    """A space that contains the 2**bits bins of a flow. Their number never changes.

    >>> space = BinSpace(bits=2)
    >>> hashes = space.hash_keys([b"cat", b"dog"])
    >>> space.bins_of(hashes).tolist() == [space.bin_of(b"cat"), space.bin_of(b"dog")]
    True
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.bits <= MAX_BITS:
            raise MeanderError(
                f"a flow with 2**{self.bits} bins", "this number of bins is out of range",
                f"choose from 0 to {MAX_BITS} bits",
            )  # fmt: skip

    @property
    def count(self) -> int:
        """Return the number of bins.

        >>> BinSpace().count
        256
        """
        return 1 << self.bits

    def hash_keys(self, keys: Sequence[bytes]) -> npt.NDArray[np.uint64]:
        """Return the xxh3 hash of each key; shape (n,)."""
        return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))

    def bins_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the bin of each hash; shape (n,)."""
        if self.bits == 0:
            return np.zeros(hashes.shape, np.int64)
        return (hashes >> np.uint64(HASH_BITS - self.bits)).astype(np.int64)

    def bin_of(self, key: bytes) -> Bin:
        """Return the bin of one key."""
        return Bin(xxhash.xxh3_64_intdigest(key) >> (HASH_BITS - self.bits))

    def first_owner(self, bin: Bin, workers: int) -> WorkerId:
        """Return the first owner of a bin. Each worker gets a contiguous range; ranges differ by
        one bin at most.

        >>> [BinSpace(bits=2).first_owner(Bin(b), workers=3) for b in range(4)]
        [0, 0, 1, 2]
        """
        return WorkerId(bin * workers >> self.bits)
