"""Values as bytes, some at a time, so that no more of them than a message holds is encoded at once.

Guarantees that pieces follow each other in the order of the values and leave none out but those
that are refused. Invariant: a piece of several values has at most `PIECE` bytes. Cost: one call of
the codec per piece; where a piece becomes too large, its values are encoded a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getsizeof
from typing import Final, NamedTuple

import msgpack

from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError

PIECE: Final = 256 << 10
"""Bytes of a piece of several values at most."""
MANY: Final = 1024
"""Values of a piece at most."""
SAMPLE: Final = 16
"""Values of which the size of many is guessed."""
Refuse = Callable[[int, Exception], None]
"""Takes the number of a value that cannot be encoded, and why."""


class PackedValues(NamedTuple):
    """Some values that follow each other, encoded."""

    rows: range
    """Their numbers."""
    data: bytes
    """The bytes of the list of them."""
    size: int
    """Bytes of them and of their keys."""


def pieces(
    values: Sequence[object],
    refuse: Refuse,
    first: int = 0,
    keys: Sequence[bytes] | None = None,
) -> Iterator[PackedValues]:
    """Encode values, which may have keys, from the first on.

    >>> [(rows, codec.decode(data)) for rows, data, _ in pieces(["a", "b", "c"], print, first=1)]
    [(range(1, 3), ['b', 'c'])]
    """
    left = len(values) - first
    most = max(1, min(MANY, PIECE * left // max(1, guessed_size_of(values, first))))
    while first < len(values):
        rows = range(first, min(first + most, len(values)))
        try:
            data = codec.encode(values[rows.start : rows.stop])
        except (UnencodableError, ValueError) as error:  # msgpack has bounds of its own
            if len(rows) == 1:
                refuse(first, error)
                first += 1
            most = 1
            continue
        beside = 0 if keys is None else sum(map(len, keys[rows.start : rows.stop]))
        size = len(data) + beside
        if len(rows) > 1 and size > PIECE:
            most = max(1, len(rows) * PIECE // size // 2)
            continue
        yield PackedValues(rows, data, size)
        first = rows.stop
        most = max(1, min(2 * most, MANY, len(rows) * PIECE // size))


def joined(parts: Sequence[PackedValues]) -> bytes:
    """The bytes of the list of all values of some pieces.

    >>> codec.decode(joined([*pieces(["a", "b", "c"], print)]))
    ['a', 'b', 'c']
    """
    if len(parts) == 1:
        return parts[0].data
    bodies = (memoryview(part.data)[len(_head(len(part.rows))) :] for part in parts)
    return b"".join((_head(sum(len(part.rows) for part in parts)), *bodies))


def size_of(values: Sequence[object]) -> int:
    """About how many bytes values take when encoded; what cannot be encoded counts as it lies in
    memory.

    >>> size_of(["a", "bc"])
    6
    """
    odd: list[int] = []
    size = sum(piece.size for piece in pieces(values, lambda row, _: odd.append(row)))
    return size + sum(getsizeof(values[row]) for row in odd)


def guessed_size_of(values: Sequence[object], first: int = 0) -> int:
    """The same of those from the first on, by a sample of them, which ends where it is large."""
    left = len(values) - first
    some = size = 0
    for row in range(first, len(values), 1 + left // SAMPLE):
        try:
            size += len(codec.encode(values[row]))
        except (UnencodableError, ValueError):
            size += getsizeof(values[row])
        some += 1
        if size > PIECE:
            break
    return size * left // max(1, some)


def _head(length: int) -> bytes:
    """What the bytes of a list of a length begin with."""
    return bytes(msgpack.Packer().pack_array_header(length))
