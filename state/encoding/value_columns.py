"""Value columns: the values of records as columns, without a Python object per value.

A value is a tuple with one number, or one coded Python value, of each column. Guarantees that
`decode(encode())` holds equal columns of equal types, and that `decode` refuses any other bytes.
Invariant: the columns never change in place, so batches share them. Cost: a few numpy calls for any
number of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast, overload

import numpy as np
import numpy.typing as npt

from meander.state.encoding.object_column import ObjectColumn

Int64s = npt.NDArray[np.int64]
Column = npt.NDArray[Any] | ObjectColumn
Row = tuple[object, ...]

_MARK: Final = b"\xc1"
"""The first byte of encoded columns; msgpack never uses it."""
_WORD: Final = 8
_DTYPES: Final = {"i": np.dtype("<i8"), "f": np.dtype("<f8")}
_KINDS: Final = {dtype: kind for kind, dtype in _DTYPES.items()}
_OBJECTS: Final = "o"
_MAX_COLUMNS: Final = 255


@dataclass(frozen=True, slots=True, eq=False)
class ValueColumns(Sequence[object]):
    """A sequence of values that holds them as columns of int64, float64 or Python values, each of
    shape (n,).

    >>> values = ValueColumns((np.array([7, 8, 9]), np.array([0.5, 1.5, 2.5])))
    >>> values[-1], [*values[:2]]
    ((9, 2.5), [(7, 0.5), (8, 1.5)])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= _MAX_COLUMNS:
            raise ValueError(f"values have 1 to {_MAX_COLUMNS} columns, not {len(self.columns)}")
        shape = (len(self.columns[0]),)
        for column in self.columns:
            if column.shape != shape or _kind(column) is None:
                name = "objects" if isinstance(column, ObjectColumn) else column.dtype
                raise ValueError(f"a column of {name} and shape {column.shape} beside {shape}")

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> ValueColumns: ...
    def __getitem__(self, row: int | slice) -> Row | ValueColumns:
        if isinstance(row, slice):
            return ValueColumns(tuple(column[row] for column in self.columns))
        return tuple(
            column[row] if isinstance(column, ObjectColumn) else column[row].item()
            for column in self.columns
        )

    def __iter__(self) -> Iterator[Row]:
        return zip(*(column.tolist() for column in self.columns), strict=True)

    @property
    def kinds(self) -> str:
        """Return the kind of each column: `i` for int64, `f` for float64, `o` for objects."""
        return "".join(kind for column in self.columns if (kind := _kind(column)))

    @property
    def row_bytes(self) -> int | None:
        """Return the bytes of each value, or None where objects make these differ."""
        return None if _OBJECTS in self.kinds else _WORD * len(self.columns)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the columns."""
        return sum(column.nbytes for column in self.columns)

    def take(self, rows: npt.NDArray[np.int64]) -> ValueColumns:
        """Return values by number, in the given order."""
        return ValueColumns(tuple(column[rows] for column in self.columns))

    @staticmethod
    def concat(parts: Sequence[ValueColumns]) -> ValueColumns:
        """Return all values in order. All parts have equal kinds."""
        return ValueColumns(
            tuple(map(_concatenated, zip(*(part.columns for part in parts), strict=True)))
        )

    def encode(self) -> bytes:
        """Return the values as bytes.

        >>> ValueColumns((np.array([7]),)).encode().hex(" ", 8)
        'c101690000000000 0100000000000000 0700000000000000'
        """
        head = _head(self.kinds, len(self))
        return b"".join((head, *map(_data, self.columns)))

    @staticmethod
    def decode(data: bytes) -> ValueColumns:
        """Return values as read-only columns. Raise ValueError for bytes that `encode` has not
        written."""
        count = int.from_bytes(data[1:2], "little")
        kinds, start = data[2 : 2 + count].decode("latin-1"), _head_size(count)
        rows = int.from_bytes(data[start - _WORD : start], "little")
        known = {*_DTYPES, _OBJECTS} >= set(kinds)
        if not known or not data.startswith(_head(kinds, rows)):
            raise ValueError("its value columns have an unknown head")
        columns, at = list[Column](), start
        for kind in kinds:
            if kind == _OBJECTS:
                column, at = ObjectColumn.decode(data, rows, at)
                columns.append(column)
            elif at + _WORD * rows <= len(data):
                columns.append(np.frombuffer(data, _DTYPES[kind], rows, at))
                at += _WORD * rows
        if len(columns) != count or at != len(data):
            raise ValueError(f"{len(data)} bytes hold {count} value columns of {rows} rows")
        return ValueColumns(tuple(columns))

    def to_rows(self) -> list[bytes]:
        """Return the bytes of each value.

        >>> rows = ValueColumns((np.array([7, 8]), np.array([0.5, 1.5]))).to_rows()
        >>> [*ValueColumns.from_rows("if", rows)]
        [(7, 0.5), (8, 1.5)]
        """
        if _OBJECTS in self.kinds:
            return [self[row : row + 1].encode() for row in range(len(self))]
        words = np.stack([cast(Int64s, one).view(np.int64) for one in self.columns], axis=1)
        data, width = words.tobytes(), _WORD * len(self.columns)
        return [data[at : at + width] for at in range(0, len(data), width)]

    @staticmethod
    def from_rows(kinds: str, rows: Sequence[bytes]) -> ValueColumns:
        """Return values from the bytes of each, in columns of some kinds."""
        if _OBJECTS in kinds and rows:
            return ValueColumns.concat([ValueColumns.decode(row) for row in rows])
        words = np.frombuffer(b"".join(rows), np.int64).reshape(len(rows), len(kinds))
        columns = np.ascontiguousarray(words.T)
        pairs = zip(columns, kinds, strict=True)
        return ValueColumns(
            tuple(
                ObjectColumn.of([]) if kind == _OBJECTS else column.view(_DTYPES[kind])
                for column, kind in pairs
            )
        )


Values = list[object] | ValueColumns
"""The values of some records: any objects, or tuples as columns."""


def concat_values(parts: Sequence[Values]) -> Values:
    """Return all values in order: as columns where all parts are columns of equal kinds.

    >>> pair = ValueColumns((np.array([7, 8]),))
    >>> concat_values([pair, []]) is pair, concat_values([pair, ["a"]])
    (True, [(7,), (8,), 'a'])
    """
    full = [part for part in parts if len(part)]
    if len(full) == 1:
        return full[0]
    typed = [part for part in full if isinstance(part, ValueColumns)]
    if typed and len(typed) == len(full) and len({part.kinds for part in typed}) == 1:
        return ValueColumns.concat(typed)
    return list(chain.from_iterable(full))


def _kind(column: Column) -> str | None:
    # Each batch asks for it, and a check of an abstract class takes ten times as long.
    if type(column) is np.ndarray:
        return _KINDS.get(column.dtype)
    return _OBJECTS if isinstance(column, ObjectColumn) else None


def _concatenated(columns: Sequence[Column]) -> Column:
    objects = [column for column in columns if isinstance(column, ObjectColumn)]
    return ObjectColumn.concat(objects) if objects else np.concatenate(cast(Any, columns))


def _data(column: Column) -> bytes | memoryview:
    if isinstance(column, ObjectColumn):
        return column.encode()
    return np.ascontiguousarray(column).data


def is_encoded_columns(data: bytes) -> bool:
    """Return whether bytes begin as encoded columns do, and as no other encoded value."""
    return data.startswith(_MARK)


def _head(kinds: str, rows: int) -> bytes:
    # Columns behind a head of whole words are aligned, as compiled loops need them.
    named = _MARK + bytes([len(kinds)]) + kinds.encode("latin-1")
    return named.ljust(_head_size(len(kinds)) - _WORD, b"\0") + rows.to_bytes(_WORD, "little")


def _head_size(count: int) -> int:
    """Return the bytes before the first of some columns."""
    return 2 * _WORD + (count + 1) // _WORD * _WORD
