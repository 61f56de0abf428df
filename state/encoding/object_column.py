"""Object columns: Python values as 64-bit codes, and the bytes for which each code stands.

A code is the hash of a value's canonical bytes (`codec.encode_key`). Guarantees that equal values
have one code on all workers and in all executions. Invariant: `entries` has the bytes of all codes
of the column, and perhaps of others, and loses none. So columns share them. Cost: one encoding per
value where it enters; from then on 8 bytes per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, overload

import numpy as np
import numpy.typing as npt
import xxhash

from meander.state.encoding import codec

Codes = npt.NDArray[np.int64]
Entries = Mapping[int, bytes]
"""The canonical bytes of values, by code."""
_SIGNED: Final = Struct("<q")
_LENGTH: Final = np.dtype("<i8")
_WORD: Final = 8


def code_of(data: bytes) -> int:
    """Return the code of a value's canonical bytes.

    >>> code_of(codec.encode_key("Rome")) == code_of(codec.encode_key("Rome"))
    True
    """
    return int.from_bytes(xxhash.xxh3_64_digest(data), "big", signed=True)


class ObjectColumn(Sequence[object]):
    """A column of plain Python values, shape (n,).

    It compares as a numpy array does, and takes the rows that an index, a slice, a mask or places
    name.

    >>> cities = ObjectColumn.of(["Rome", "Oslo", "Rome"])
    >>> cities[0], cities[np.array([2, 1])].tolist(), (cities == "Rome").tolist()
    ('Rome', ['Rome', 'Oslo'], [True, False, True])
    """

    __slots__ = ("codes", "entries")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: Codes, entries: Entries) -> None:
        self.codes, self.entries = codes, entries

    @staticmethod
    def of(values: Sequence[object]) -> ObjectColumn:
        """Return a column of some values. Raise UnencodableError for a value that is not plain."""
        encoded = codec.encode_keys(values)
        codes = [code_of(data) for data in encoded]
        return ObjectColumn(np.array(codes, np.int64), dict(zip(codes, encoded, strict=True)))

    @property
    def shape(self) -> tuple[int]:
        """Return the number of rows."""
        return (len(self.codes),)

    @property
    def used(self) -> dict[int, bytes]:
        """Return the bytes of the codes of this column alone."""
        if len(self.entries) <= len(self.codes):
            return dict(self.entries)
        return {code: self.entries[code] for code in np.unique(self.codes).tolist()}

    @property
    def nbytes(self) -> int:
        """Return about the bytes of the column with its entries."""
        return _WORD * len(self) + sum(map(len, self.used.values()))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> object: ...
    @overload
    def __getitem__(self, row: slice | npt.NDArray[np.int64 | np.bool_]) -> ObjectColumn: ...
    def __getitem__(self, row: int | slice | npt.NDArray[np.int64 | np.bool_]) -> object:
        if isinstance(row, slice | np.ndarray):
            return ObjectColumn(self.codes[row], self.entries)
        return codec.decode(self.entries[int(self.codes[row])])

    def __iter__(self) -> Iterator[object]:
        known: dict[int, object] = {}
        for code in self.codes.tolist():
            if code not in known:
                known[code] = codec.decode(self.entries[code])
            yield known[code]

    def __eq__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        codes = other.codes if isinstance(other, ObjectColumn) else code_of(codec.encode_key(other))
        return np.asarray(self.codes == codes)

    def __ne__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        return ~(self == other)

    def tolist(self) -> list[object]:
        """Return the values."""
        return list(self)

    def isin(self, values: Sequence[object]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of some values."""
        return np.isin(self.codes, ObjectColumn.of(values).codes)

    @property
    def ranks(self) -> Codes:
        """Return the place of each row's value among the distinct values in ascending order. Raise
        TypeError where Python does not order them."""
        codes, rows = np.unique(self.codes, return_inverse=True)
        values = ObjectColumn(codes, self.entries).tolist()
        ranks = np.empty(len(codes), np.int64)
        ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(codes))  # type: ignore[arg-type]
        return ranks[rows]

    @staticmethod
    def concat(parts: Sequence[ObjectColumn]) -> ObjectColumn:
        """Return all rows in order.

        >>> ObjectColumn.concat([ObjectColumn.of(["a"]), ObjectColumn.of([("b", 1)])]).tolist()
        ['a', ('b', 1)]
        """
        codes, first = np.concatenate([part.codes for part in parts]), parts[0].entries
        if all(part.entries is first for part in parts):
            return ObjectColumn(codes, first)
        merged: dict[int, bytes] = {}
        for part in parts:
            merged |= part.used
        return ObjectColumn(codes, merged)

    def encode(self) -> bytes:
        """Return the codes and their entries as bytes, in whole words."""
        used = self.used
        lengths = np.array([len(data) for data in used.values()], _LENGTH)
        blob = b"".join(used.values())
        return b"".join((
            _SIGNED.pack(len(used)), _SIGNED.pack(len(blob)),
            np.ascontiguousarray(self.codes).tobytes(), np.array([*used], np.int64).tobytes(),
            lengths.tobytes(), blob, bytes(-len(blob) % _WORD),
        ))  # fmt: skip

    @staticmethod
    def decode(data: bytes, rows: int, at: int) -> tuple[ObjectColumn, int]:
        """Return a column of `rows` rows that begins at a place, and the place behind it. Raise
        ValueError for bytes that `encode` has not written.

        >>> column = ObjectColumn.of(["a", 7, "a"])
        >>> ObjectColumn.decode(column.encode(), 3, 0)[0].tolist()
        ['a', 7, 'a']
        """
        count, size = (
            int.from_bytes(data[at + n : at + n + _WORD], "little", signed=True) for n in (0, _WORD)
        )
        blob = at + _WORD * (2 + rows + 2 * count)
        end = blob + size + -size % _WORD
        if count < 0 or size < 0 or end > len(data):
            raise ValueError(f"an object column of {rows} rows, {count} values and {size} bytes")
        if any(data[blob + size : end]):
            raise ValueError("an object column has other bytes than zeros behind its values")
        words = np.frombuffer(data, _LENGTH, rows + 2 * count, at + 2 * _WORD)
        codes, keys, lengths = np.split(words, (rows, rows + count))
        ends = blob + np.cumsum(lengths)
        if (lengths < 0).any() or (count and ends[-1] != blob + size) or (not count and size):
            raise ValueError(f"the values of an object column take other than {size} bytes")
        bounds = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        entries = {
            code: data[first:last]
            for code, (first, last) in zip(keys.tolist(), bounds, strict=True)
        }
        for code, one in entries.items():
            codec.decode_strict(one)
            if code != code_of(one):
                raise ValueError("an object column has a value with another code")
        if not np.isin(codes, keys).all():
            raise ValueError("an object column has a code without a value")
        return ObjectColumn(codes, entries), end
