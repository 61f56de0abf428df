"""Lists of numbers in records of JSON: a long list is packed, so that its record stays small.

Guarantees that a list reads back as it was written. 2^19 owners among 64 workers need at most half
a megabyte, in any order. Short lists remain lists, because people read the topic. Cost: about
20 ms for 2^19 numbers.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np

MOST = 4096
"""The length of the longest list that stays a list."""
WIDTH = 4
"""Bytes of a packed number."""


def pack_numbers(numbers: Sequence[int]) -> list[int] | str:
    """Encode numbers from 0 to 2^32 - 1 as a value of JSON.

    >>> pack_numbers((3, 1))
    [3, 1]
    >>> len(pack_numbers([1] * 100_000)) < 1000
    True
    """
    if len(numbers) <= MOST:
        return list(numbers)
    # Grouped by byte position, because the upper bytes of small numbers are zeros.
    planes = np.array(numbers, np.dtype("<u4")).view(np.uint8).reshape(-1, WIDTH).T
    return base64.b64encode(zlib.compress(planes.tobytes())).decode()


def unpack_numbers(value: list[int] | str) -> list[int]:
    """Decode a value of `pack_numbers`. Raises ValueError for other text.

    >>> unpack_numbers(pack_numbers(range(100_000))) == [*range(100_000)]
    True
    """
    if not isinstance(value, str):
        return value
    try:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(value, validate=True)), np.uint8)
    except zlib.error as error:
        raise ValueError(f"no numbers: {error}") from error
    numbers: list[int] = planes.reshape(WIDTH, -1).T.copy().view("<u4").ravel().tolist()
    return numbers
