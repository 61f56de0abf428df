"""The copies of a table: each bin gets each change of the table once.

Guarantees that a copy of a change reaches its bin wherever the bin is at that time: it is a record
whose key lies in the bin. Cost: as many records per change as the flow has bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, cast

from meander.state.encoding import codec
from meander.state.encoding.codec import PlainCodec
from meander.state.keys.bins import BinSpace

COPIES: Final = PlainCodec.of("copies of a table")
"""The codec of copies of rows. It has a name of its own, as rows and their copies are different
states."""


@cache
def keys_of_bins(space: BinSpace) -> Sequence[int]:
    """Return one key of each bin, in order of the bins.

    >>> space = BinSpace(2)
    >>> [space.bin_of(codec.encode_key(key)) for key in keys_of_bins(space)]
    [0, 1, 2, 3]
    """
    found = dict[int, int]()
    start = 0
    while len(found) < space.count:
        keys = range(start, start + 4 * space.count)
        bins = space.bins_of(space.hash_keys(codec.encode_keys(keys))).tolist()
        for bin, key in zip(bins, keys, strict=True):
            found.setdefault(bin, key)
        start = keys.stop
    return [found[bin] for bin in range(space.count)]


def to_each(keys: Sequence[int]) -> Callable[[tuple[object, object]], Iterator[object]]:
    """Return a function that gives a change of a table once for each of some keys."""

    def copies(change: tuple[object, object]) -> Iterator[object]:
        return ((key, *change) for key in keys)

    return copies


def first_of(copy: Any) -> int:  # noqa: ANN401 (a value of `to_each`)
    """Return the key of a copy."""
    key: int = copy[0]
    return key


def entry_key(bin: int, key: object) -> bytes:
    """Return the encoded key of a row in the copy of a bin.

    >>> codec.decode(entry_key(7, "DE"))
    (7, 'DE')
    """
    return codec.encode_key((bin, key))


def key_of_entry(entry: bytes) -> object:
    """Return the key of a row, given that of its entry.

    >>> key_of_entry(entry_key(7, "DE"))
    'DE'
    """
    _, key = cast(tuple[int, object], codec.decode(entry))
    return key
