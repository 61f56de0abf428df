"""Values as bytes, in pieces, so that at most the values of one message are encoded at once.

Guarantees that pieces follow the order of the values and omit only refused ones. Invariant: a piece
of several values has at most `PIECE_BYTES` bytes. Cost: one call of the codec per piece, and a
second one for a piece that exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getsizeof
from typing import Final, NamedTuple

import msgpack

from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.value_columns import ValueColumns, Values, is_encoded_columns

PIECE_BYTES: Final = 256 << 10
"""The most bytes of a piece of several values."""
PIECE_VALUES: Final = 1024
"""The most values of a piece of a list."""
SAMPLE: Final = 16
"""The number of values in a sample that estimates the size of all."""
Refuse = Callable[[int, Exception], None]
"""Handles the number of an unencodable value, and the error."""


class PackedValues(NamedTuple):
    """A piece of consecutive values in encoded form."""

    rows: range
    """The numbers of the values."""
    data: bytes
    """The encoded values."""
    size: int
    """The bytes of the values and of their keys."""


def pack(
    values: Values,
    refuse: Refuse,
    first: int = 0,
    keys: Sequence[bytes] | None = None,
) -> Iterator[PackedValues]:
    """Encode values from the number `first` on, and yield pieces, whose sizes include `keys`.

    >>> [(rows, codec.decode(data)) for rows, data, _ in pack(["a", "b", "c"], print, first=1)]
    [(range(1, 3), ['b', 'c'])]
    """
    left = len(values) - first
    estimate = PIECE_BYTES * left // max(1, estimated_size(values, first))
    most = left if isinstance(values, ValueColumns) else PIECE_VALUES
    max_rows = max(1, min(most, estimate))
    while first < len(values):
        rows = range(first, min(first + max_rows, len(values)))
        try:
            data = encode_values(values[rows.start : rows.stop])
        except (UnencodableError, ValueError) as error:  # msgpack has bounds too
            if len(rows) == 1:
                refuse(first, error)
                first += 1
            max_rows = 1
            continue
        key_bytes = 0 if keys is None else sum(map(len, keys[rows.start : rows.stop]))
        size = len(data) + key_bytes
        if len(rows) > 1 and size > PIECE_BYTES:
            max_rows = max(1, len(rows) * PIECE_BYTES // size // 2)
            continue
        yield PackedValues(rows, data, size)
        first = rows.stop
        max_rows = max(1, min(2 * max_rows, most, len(rows) * PIECE_BYTES // size))


def join_packed(parts: Sequence[PackedValues]) -> bytes:
    """Return the encoded form of all values of some pieces.

    >>> codec.decode(join_packed([*pack(["a", "b", "c"], print)]))
    ['a', 'b', 'c']
    """
    if len(parts) == 1:
        return parts[0].data
    if parts and is_encoded_columns(parts[0].data):
        return ValueColumns.concat([ValueColumns.decode(part.data) for part in parts]).encode()
    bodies = (memoryview(part.data)[len(_head(len(part.rows))) :] for part in parts)
    return b"".join((_head(sum(len(part.rows) for part in parts)), *bodies))


def encode_values(values: Values) -> bytes:
    r"""Encode values as a list, or as columns. Raise UnencodableError or ValueError.

    >>> encode_values([1]), decode_values(encode_values([1]))
    (b'\x91\x01', [1])
    """
    return values.encode() if isinstance(values, ValueColumns) else codec.encode(values)


def decode_values(data: bytes) -> Values:
    """Decode values of another process strictly, as `codec.decode_strict` does."""
    if is_encoded_columns(data):
        return ValueColumns.decode(data)
    values = codec.decode_strict(data)
    if type(values) is not list:
        raise ValueError("its values are not a list")
    return values


def encoded_size(values: Values) -> int:
    """Return about the bytes of encoded values. An unencodable value counts its bytes in memory.

    >>> encoded_size(["a", "bc"])
    6
    """
    if isinstance(values, ValueColumns):
        return values.nbytes
    refused: list[int] = []
    size = sum(piece.size for piece in pack(values, lambda row, _: refused.append(row)))
    return size + sum(getsizeof(values[row]) for row in refused)


def estimated_size(values: Values, first: int = 0) -> int:
    """Estimate `encoded_size` of the values from `first` on by a sample, which ends where it is
    large."""
    left = len(values) - first
    if isinstance(values, ValueColumns):
        return values.nbytes * left // max(1, len(values))
    sampled = size = 0
    for row in range(first, len(values), 1 + left // SAMPLE):
        try:
            size += len(codec.encode(values[row]))
        except (UnencodableError, ValueError):
            size += getsizeof(values[row])
        sampled += 1
        if size > PIECE_BYTES:
            break
    return size * left // max(1, sampled)


def _head(length: int) -> bytes:
    """Return the head of an encoded list of a length."""
    return bytes(msgpack.Packer().pack_array_header(length))
