"""Extra columns: properties of records that a batch holds only where a function asks for them.

Guarantees that an extra column follows its records through steps, exchanges, disks, checkpoints and
loops. A batch without a column stands for the default of each of its records. Cost: nothing for a
flow that does not ask; 8 bytes or the data per record of a batch with other values than defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

import msgpack
import numpy as np
import numpy.typing as npt

from meander.state.encoding.cells import pick
from meander.state.times.time import SEQUENCE_BITS

Int64s = npt.NDArray[np.int64]
ExtraColumn = Int64s | list[bytes]
"""A value of each record, shape (n,)."""
ExtraColumns = Mapping[str, ExtraColumn]
"""The extra columns of a batch, by name."""
Cell = int | bytes
"""The value of one record in an extra column."""

NO_CELLS: Final[Mapping[str, Cell]] = MappingProxyType({})
"""No values of a record."""
EVENT_MS: Final = "event_ms"
"""The column of the records' own times, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A kind of extra column: its type, and the values of records in batches without it."""

    type: type[int | bytes]
    default: Callable[[Int64s], ExtraColumn]
    """From the logical times of records, shape (n,), to their values."""


def _millis(times: Int64s) -> Int64s:
    return times >> SEQUENCE_BITS


KINDS: Final[Mapping[str, ColumnKind]] = {EVENT_MS: ColumnKind(int, _millis)}
"""The known extra columns."""


def column_of(name: str, extra: ExtraColumns | None, times: Int64s) -> ExtraColumn:
    """Return the values of an extra column for records with these logical times, shape (n,).

    >>> column_of("event_ms", None, np.array([7 << 20, (9 << 20) + 1])).tolist()
    [7, 9]
    """
    return extra[name] if extra and name in extra else KINDS[name].default(times)


def take(extra: ExtraColumns, rows: Int64s) -> ExtraColumns:
    """Return the values of rows by number, in the given order."""
    return {name: _taken(column, rows) for name, column in extra.items()}


def between(extra: ExtraColumns, rows: slice) -> ExtraColumns:
    """Return the values of consecutive rows."""
    return {name: column[rows] for name, column in extra.items()}


def concat(parts: Sequence[tuple[ExtraColumns | None, Int64s]]) -> ExtraColumns:
    """Return the extra columns of some batches in order; each part has those of one batch, and its
    logical times.

    >>> own = {"event_ms": np.array([3])}
    >>> concat([(own, np.array([5 << 20])), (None, np.array([6 << 20]))])["event_ms"].tolist()
    [3, 6]
    """
    names = {name for extra, _ in parts for name in extra or ()}
    return {
        name: _joined(name, [column_of(name, extra, times) for extra, times in parts])
        for name in sorted(names)
    }


def encode(extra: ExtraColumns) -> bytes:
    """Encode extra columns as bytes.

    >>> decode(encode({"event_ms": np.array([3, 4])}), 2)["event_ms"].tolist()
    [3, 4]
    """
    return bytes(
        msgpack.packb(
            {
                name: column if isinstance(column, list) else column.astype("<i8").tobytes()
                for name, column in extra.items()
            }
        )
    )


def decode(data: bytes, count: int) -> ExtraColumns:
    """Decode the extra columns of `count` records. Raise ValueError for other bytes."""
    found = msgpack.unpackb(data)
    if isinstance(found, dict):
        return {name: _decoded(name, column, count) for name, column in found.items()}
    raise ValueError("its extra columns are no columns")


def used_cells(
    uses: Sequence[str], extra: ExtraColumns | None, times: Int64s
) -> Sequence[Mapping[str, Cell]]:
    """Return the values that functions use of each record with these logical times, by name.

    >>> used_cells(["event_ms"], {"event_ms": np.array([3, 4])}, np.array([5 << 20, 5 << 20]))
    [{'event_ms': 3}, {'event_ms': 4}]
    """
    if not uses:
        return [NO_CELLS] * len(times)
    return [*cells({name: column_of(name, extra, times) for name in uses})]


def defaults(uses: Sequence[str], time: int) -> Mapping[str, Cell]:
    """Return the values that functions use of a call at a logical time, which has no record."""
    return used_cells(uses, None, np.array([time]))[0] if uses else NO_CELLS


def cells(extra: ExtraColumns) -> Iterable[dict[str, Cell]]:
    """Yield the values of each record, by name of the column."""
    columns = [column if isinstance(column, list) else column.tolist() for column in extra.values()]
    return (dict(zip(extra, row, strict=True)) for row in zip(*columns, strict=True))


def from_cells(rows: Sequence[Mapping[str, Cell]], times: Int64s) -> ExtraColumns:
    """Undo `cells` for records with these logical times, of which some may have no values.

    >>> rows = [*cells({"event_ms": np.array([3])}), {}]
    >>> from_cells(rows, np.array([5 << 20, 6 << 20]))["event_ms"].tolist()
    [3, 6]
    """
    names = sorted({name for row in rows for name in row})
    found = dict[str, ExtraColumn]()
    for name in names:
        default = column_of(name, None, times)
        column = [row.get(name, other) for row, other in zip(rows, default, strict=True)]
        found[name] = _typed(name, column)
    return found


def _typed(name: str, column: list[Cell]) -> ExtraColumn:
    if KINDS[name].type is bytes:
        return cast(list[bytes], column)
    return np.array(column, np.int64)


def _taken(column: ExtraColumn, rows: Int64s) -> ExtraColumn:
    return pick(column, rows.tolist()) if isinstance(column, list) else column[rows]


def _joined(name: str, columns: list[ExtraColumn]) -> ExtraColumn:
    if KINDS[name].type is bytes:
        return [cell for column in columns for cell in cast(list[bytes], column)]
    return np.concatenate([cast(Int64s, column) for column in columns])


def _decoded(name: object, column: object, count: int) -> ExtraColumn:
    kind = KINDS.get(name) if isinstance(name, str) else None
    match column:
        case bytes() if kind is not None and kind.type is int and len(column) == 8 * count:
            return np.frombuffer(column, "<i8").astype(np.int64)
        case list() if kind is not None and kind.type is bytes and len(column) == count:
            if all(isinstance(cell, bytes) for cell in column):
                return column
    raise ValueError(f"its extra column {name!r} is none of {count} records")
