"""Plain Python values from the columns of Arrow.

A struct becomes a tuple of its fields' values, a map a dict, a list a list. A time with a zone is
in UTC. A null becomes None. Cost: 0.05 us per number or text, several times that for nested values.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], object]
"""A function that converts a value other than null."""


def plain(column: pa.Array) -> list[object]:
    """Return the values of a column.

    >>> kind = pa.struct({"n": pa.int64(), "by": pa.map_(pa.string(), pa.int64())})
    >>> plain(pa.array([{"n": 1, "by": [("a", 2)]}, None], kind))
    [(1, {'a': 2}), None]
    """
    if pa.types.is_struct(column.type):
        rows = zip(*map(plain, column.flatten()), strict=True)
        if not column.null_count:
            return list(rows)
        valid = column.is_valid().to_pylist()
        return [row if has else None for row, has in zip(rows, valid, strict=True)]
    values: list[object] = column.to_pylist()
    convert = _convert(column.type)
    return values if convert is None else list(map(_or_null(convert), values))


def _convert(kind: pa.DataType) -> Convert | None:
    """Return the function that makes a value of Arrow plain; None where it is plain."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _any(field.type)) for field in kind]
        return lambda found: tuple(convert(found[name]) for name, convert in fields)
    if pa.types.is_map(kind):
        key, item = _any(kind.key_type), _any(kind.item_type)
        return lambda pairs: {key(k): item(v) for k, v in pairs}
    if pa.types.is_list(kind):
        inner = _convert(kind.value_type)
        return None if inner is None else lambda items: list(map(_or_null(inner), items))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return lambda moment: moment.astimezone(UTC)
    return None


def _any(kind: pa.DataType) -> Convert:
    return _or_null(_convert(kind) or (lambda value: value))


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
