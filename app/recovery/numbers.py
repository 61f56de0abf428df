"""Lists of numbers as they lie in a record of JSON: long ones packed, so that records stay small.

Guarantees that what is read back is what was written, in its order, and that 2^19 owners among 64
workers take half a megabyte, whichever they are. Short lists stay lists, as people read the topic.
Cost: some 20 ms for those.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np

MOST = 4096
"""Numbers of a list that is written as one."""
WIDTH = 4
"""Bytes of a number."""


def shortened(numbers: Sequence[int]) -> list[int] | str:
    """Numbers from 0 to 2^32 - 1, as a value of JSON.

    >>> shortened((3, 1))
    [3, 1]
    >>> len(shortened([1] * 100_000)) < 1000
    True
    """
    if len(numbers) <= MOST:
        return list(numbers)
    # All first bytes, then all second ones: those of small numbers are zeros, and vanish.
    planes = np.array(numbers, np.dtype("<u4")).view(np.uint8).reshape(-1, WIDTH).T
    return base64.b64encode(zlib.compress(planes.tobytes())).decode()


def lengthened(value: list[int] | str) -> list[int]:
    """The inverse. Raises ValueError for other text.

    >>> lengthened(shortened(range(100_000))) == [*range(100_000)]
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
