"""Columns as an Arrow IPC stream of one batch, byte for byte as Arrow's own writer produces it.

Guarantees that the layout of an accepted frame follows from two numbers: its rows, and its bytes of
strings. `read` rejects a frame with another length or position before it follows one. So no buffer
is compressed, null or out of bounds.

Cost: a join of the columns' bytes and some twenty numbers. For a few rows pyarrow takes several
times as long, as it creates objects per column, buffer and message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Column = npt.NDArray[Any]
"""Numbers of 8 bytes, shape (n,)."""

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The bytes that end a stream."""
_WORD = 8
# Positions in a batch's metadata, in words of 8 bytes: the length of the body, the rows, and the
# start of the buffers' places and lengths. Two words per column end it: rows, nulls.
_BODY, _ROWS, _BUFFERS = 5, 9, 11


class StreamLayout:
    """A layout of the streams of one schema: columns of 8-byte numbers, and at most one of strings.

    >>> layout = StreamLayout(pa.schema([("n", pa.int64()), ("key", pa.binary())]))
    >>> data = layout.write([np.array([7, 8])], [b"a", b""])
    >>> pa.ipc.open_stream(data).read_all().to_pylist()
    [{'n': 7, 'key': b'a'}, {'n': 8, 'key': b''}]
    >>> (numbers,), strings = layout.read(data)
    >>> numbers.tolist(), strings
    ([7, 8], [b'a', b''])
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._numeric = [kind != pa.binary() for kind in schema.types]
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, schema).close()
        self._head: bytes = sink.getvalue().to_pybytes().removesuffix(_END)
        # Arrow's bytes for one row are the pattern for any number of rows.
        # (An array of Python values would import pandas, which takes a worker a second.)
        zero, none = pa.py_buffer(bytes(_WORD)), pa.py_buffer(b"")
        row = [
            pa.Array.from_buffers(kind, 1, [None, zero] if numeric else [None, zero, none])
            for kind, numeric in zip(schema.types, self._numeric, strict=True)
        ]
        batch: bytes = pa.RecordBatch.from_arrays(row, schema=schema).serialize().to_pybytes()
        words = 1 + int.from_bytes(batch[4:8], "little") // _WORD
        self._pattern = np.frombuffer(batch, np.int64, words)
        self._data: list[int] = []
        """The index among the words of the place of each column's data; for strings, of their
        ends."""
        word = _BUFFERS
        for numeric in self._numeric:
            self._data.append(word + 2)
            word += 4 if numeric else 6
        if self._words(1, 0).tobytes() != batch[: words * _WORD]:
            raise RuntimeError(f"pyarrow {pa.__version__} has an unknown layout of batches")

    def matches(self, data: bytes) -> bool:
        """Return whether a stream has the head of this schema."""
        return data.startswith(self._head)

    def write(self, numbers: Sequence[Column], strings: Sequence[bytes] = ()) -> bytes:
        """Encode rows as a stream. The columns of numbers are in the order of the schema."""
        joined, left = b"".join(strings), iter(numbers)
        parts = [self._head, self._words(len(numbers[0]), len(joined)).tobytes()]
        for numeric in self._numeric:
            if numeric:
                parts.append(next(left).tobytes())
            else:
                ends = array("i", accumulate(map(len, strings), initial=0))
                parts += [_padded(ends.tobytes()), _padded(joined)]
        return b"".join((*parts, _END))

    def read(self, data: bytes) -> tuple[list[Column], list[bytes]]:
        """Decode the columns of numbers as int64, read-only, and the strings. Raises ValueError for
        bytes that `write` has not written."""
        if not self.matches(data):
            raise ValueError("its columns are not those of a batch")
        start = len(self._head)
        body = start + len(self._pattern) * _WORD
        if len(data) < body:
            raise ValueError("its columns end early")
        words = np.frombuffer(data, np.int64, len(self._pattern), start)
        rows, size = int(words[_ROWS]), self._size(words)
        if not (0 <= rows <= len(data) and 0 <= size <= len(data)):
            raise ValueError(f"it has {rows} rows, and {size} bytes of strings")
        due = self._words(rows, size)
        if data[start:body] != due.tobytes() or data[body + int(due[_BODY]) :] != _END:
            raise ValueError("its columns have an unknown layout")
        numbers: list[Column] = []
        strings: list[bytes] = []
        for numeric, word in zip(self._numeric, self._data, strict=True):
            at = body + int(due[word])
            if numeric:
                numbers.append(np.frombuffer(data, np.int64, rows, at))
            else:
                ends = np.frombuffer(data, np.int32, rows + 1, at).tolist()
                strings = _cut(data, body + int(due[word + 2]), size, ends)
        return numbers, strings

    def _words(self, rows: int, size: int) -> npt.NDArray[np.int64]:
        """Return the metadata of a batch with a number of rows and of bytes of strings."""
        places, at = list[int](), 0
        for numeric in self._numeric:
            places += (at, 0)
            for length in (_WORD * rows,) if numeric else (4 * (rows + 1), size):
                places += (at, length)
                at += length + -length % _WORD
        words = self._pattern.copy()
        words[_BODY], words[_ROWS] = at, rows
        words[_BUFFERS : _BUFFERS + len(places)] = places
        words[-2 * len(self._numeric) :: 2] = rows
        return words

    def _size(self, words: npt.NDArray[np.int64]) -> int:
        """Return the bytes of strings that metadata names."""
        places = zip(self._numeric, self._data, strict=True)
        return next((int(words[word + 3]) for numeric, word in places if not numeric), 0)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _WORD)


def _cut(data: bytes, at: int, size: int, ends: list[int]) -> list[bytes]:
    """Return adjacent strings that start at a position and fill `size` bytes."""
    if ends[0] != 0 or ends[-1] != size or ends != sorted(ends):
        raise ValueError("its strings are not adjacent")
    joined = data[at : at + size]
    return [joined[start:end] for start, end in pairwise(ends)]
