"""Values as bytes, in pieces, so that at most the values of one message are encoded at once.

Guarantees that pieces follow the order of the values and omit only refused ones. Invariant: a piece
of several values has at most `PIECE` bytes. Cost: one call of the codec per piece. Values of a
piece that exceeds the bound are encoded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getsizeof
from typing import Final, NamedTuple

import msgpack

from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError

PIECE: Final = 256 << 10
"""The most bytes of a piece of several values."""
MANY: Final = 1024
"""The most values of a piece."""
SAMPLE: Final = 16
"""The number of values in a sample that estimates the size of all."""
Refuse = Callable[[int, Exception], None]
"""Takes the number of a value that cannot be encoded, and the error."""


class PackedValues(NamedTuple):
    """A piece that holds consecutive values in encoded form."""

    rows: range
    """The numbers of the values."""
    data: bytes
    """The bytes of the list of the values."""
    size: int
    """The bytes of the values and of their keys."""


def pieces(
    values: Sequence[object],
    refuse: Refuse,
    first: int = 0,
    keys: Sequence[bytes] | None = None,
) -> Iterator[PackedValues]:
    """Encode values from the number `first` on, and yield their pieces. `keys` count in the sizes
    of pieces.

    >>> [(rows, codec.decode(data)) for rows, data, _ in pieces(["a", "b", "c"], print, first=1)]
    [(range(1, 3), ['b', 'c'])]
    """
    left = len(values) - first
    most = max(1, min(MANY, PIECE * left // max(1, guessed_size_of(values, first))))
    while first < len(values):
        rows = range(first, min(first + most, len(values)))
        try:
            data = codec.encode(values[rows.start : rows.stop])
        except (UnencodableError, ValueError) as error:  # msgpack has further bounds
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
    """Return the bytes of the list of all values of some pieces.

    >>> codec.decode(joined([*pieces(["a", "b", "c"], print)]))
    ['a', 'b', 'c']
    """
    if len(parts) == 1:
        return parts[0].data
    bodies = (memoryview(part.data)[len(_head(len(part.rows))) :] for part in parts)
    return b"".join((_head(sum(len(part.rows) for part in parts)), *bodies))


def size_of(values: Sequence[object]) -> int:
    """Return about the bytes of encoded values. A value that cannot be encoded counts its bytes in
    memory.

    >>> size_of(["a", "bc"])
    6
    """
    odd: list[int] = []
    size = sum(piece.size for piece in pieces(values, lambda row, _: odd.append(row)))
    return size + sum(getsizeof(values[row]) for row in odd)


def guessed_size_of(values: Sequence[object], first: int = 0) -> int:
    """Return the same for the values from `first` on, estimated from a sample. The sample ends
    where it is large."""
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
    """Return the first bytes of an encoded list of a length."""
    return bytes(msgpack.Packer().pack_array_header(length))
