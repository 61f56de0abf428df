"""Values as bytes, in pieces, so that at most the values of one message are encoded at once.

Guarantees that pieces follow the order of the values and omit only refused ones. Invariant: a piece
of several values has at most `PIECE_BYTES` bytes. Cost: one call of the codec per piece, and a
second one for a piece that exceeds the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from sys import getsizeof
from typing import Final, NamedTuple, cast

import msgpack

from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.field_columns import from_columns, to_columns
from meander.state.encoding.value_columns import ValueColumns, Values, is_encoded_columns

PIECE_BYTES: Final = 256 << 10
"""The most bytes of a piece of several values."""
PIECE_VALUES: Final = 1024
"""The most values of a piece of a list."""
_OBJECTS: Final = b"\xc1\0"
"""The first bytes of pieces of values of which some are field columns. Value columns are one at
least, so they begin otherwise."""
_ONE: Final = len(_OBJECTS) + 1
"""The bytes before the field columns of a single piece."""
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
    most = PIECE_VALUES if isinstance(values, list) else left
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

    >>> decode_values(join_packed([*pack(["a", "b", "c"], print)]))
    ['a', 'b', 'c']
    """
    if len(parts) == 1:
        return parts[0].data
    if any(part.data.startswith(_OBJECTS) for part in parts):
        bodies = (memoryview(part.data) for part in parts)
        items = (body[_ONE:] if body[:1] == _OBJECTS[:1] else body for body in bodies)
        return b"".join((_OBJECTS, _head(len(parts)), *items))
    if parts and is_encoded_columns(parts[0].data):
        return ValueColumns.concat([ValueColumns.decode(part.data) for part in parts]).encode()
    bodies = (memoryview(part.data)[len(_head(len(part.rows))) :] for part in parts)
    return b"".join((_head(sum(len(part.rows) for part in parts)), *bodies))


def encode_values(values: Values) -> bytes:
    r"""Encode values as a list, as columns, or several objects of one class as field columns. Raise
    UnencodableError or ValueError.

    >>> encode_values([1]), decode_values(encode_values([1]))
    (b'\x91\x01', [1])
    """
    if not isinstance(values, list):
        return values.encode()
    # The error about a single value names its fields.
    if len(values) > 1 and (columns := to_columns(values)) is not None:
        return _OBJECTS + codec.encode([columns])
    return codec.encode(values)


def decode_values(data: bytes) -> Values:
    """Decode values of another process strictly, as `codec.decode_strict` does."""
    if data.startswith(_OBJECTS):
        return _from_items(codec.decode_strict(data[len(_OBJECTS) :]))
    if is_encoded_columns(data):
        return ValueColumns.decode(data)
    values = codec.decode_strict(data)
    if type(values) is not list:
        raise ValueError("its values are not a list")
    return values


def decode_own_values(data: bytes) -> list[object]:
    """Decode values that this process has encoded from a list."""
    if data.startswith(_OBJECTS):
        return _from_items(codec.decode(data[len(_OBJECTS) :]))
    return cast(list[object], codec.decode(data))


def _from_items(items: object) -> list[object]:
    """Return the values of pieces: each a list, or the field columns of objects."""
    if type(items) is not list:
        raise ValueError("its pieces of values are not a list")
    parts = (one if type(one) is list else from_columns(one) for one in items)
    return list(chain.from_iterable(parts))


def encoded_size(values: Values) -> int:
    """Return about the bytes of encoded values. An unencodable value counts its bytes in memory.

    >>> encoded_size(["a", "bc"])
    6
    """
    if not isinstance(values, list):
        return values.nbytes
    refused: list[int] = []
    size = sum(piece.size for piece in pack(values, lambda row, _: refused.append(row)))
    return size + sum(getsizeof(values[row]) for row in refused)


def estimated_size(values: Values, first: int = 0) -> int:
    """Estimate `encoded_size` of the values from `first` on by a sample, which ends where it is
    large."""
    left = len(values) - first
    if not isinstance(values, list):
        return values.nbytes * left // max(1, len(values))
    sample = values[first :: 1 + left // SAMPLE]
    if not sample:
        return 0
    size = _size(sample[0])
    if size <= PIECE_BYTES // SAMPLE:
        # Where one of them is refused, each counts alone.
        with suppress(UnencodableError, ValueError):
            return len(encode_values(sample)) * left // len(sample)
    sampled = 1
    for value in sample[1:]:
        if size > PIECE_BYTES:
            break
        size += _size(value)
        sampled += 1
    return size * left // sampled


def _size(value: object) -> int:
    """Return the bytes of an encoded value, those in memory of an unencodable one."""
    try:
        return len(codec.encode(value))
    except (UnencodableError, ValueError):
        return getsizeof(value)


def _head(length: int) -> bytes:
    """Return the head of an encoded list of a length."""
    return bytes(msgpack.Packer().pack_array_header(length))
