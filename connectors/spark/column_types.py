"""Column types: the types of Spark's columns for plain Python values, found from a sample.

Guarantees that `convert` returns a value that the column holds without loss, or raises ValueError:
a value outside the type never becomes another one. Invariant: the type of a sample holds each value
of it. Cost: `array` takes about 0.2 us per value and field, `convert` some microseconds per value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from types import NoneType
from typing import Protocol

import numpy as np
import pyarrow as pa
from pydantic_core import to_json

from meander.connectors.kafka.conversion import plain

_SEQUENCES = (list, tuple, set, frozenset, deque)
_SHOWN = 60
"""The characters of a value in an error."""
_INT64 = range(-(1 << 63), 1 << 63)


class ColumnType(Protocol):
    """A type of a column."""

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""

    def array(self, values: Sequence[object]) -> pa.Array:
        """Return values as a column. Raise ValueError where one of them does not fit."""


class _Converted:
    """A type whose columns consist of converted values."""

    def array(self: ColumnType, values: Sequence[object]) -> pa.Array:
        """Return values as a column. Raise ValueError where one of them does not fit."""
        return pa.array(list(map(self.convert, values)), self.arrow)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type of one Arrow type, for values of some Python types."""

    name: str
    arrow: pa.DataType
    kinds: tuple[type, ...]

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""
        value = _plain(value)
        if value is None:
            return None
        if type(value) not in self.kinds or (type(value) is int and value not in _INT64):
            raise _unfit(value, self.name)
        if self.name != FLOAT.name or not isinstance(value, int):
            return value
        if int(number := float(value)) != value:
            raise _unfit(value, self.name)
        return number

    def array(self, values: Sequence[object]) -> pa.Array:
        """Return values as a column. Raise ValueError where one of them does not fit."""
        # Most columns hold one type, and no number of another one.
        if {*map(type, values)} <= {self.kinds[0], NoneType}:
            try:
                return pa.array(values, self.arrow)
            except OverflowError as error:
                raise ValueError(str(error)) from error
        return pa.array(list(map(self.convert, values)), self.arrow)


BOOL = Scalar("boolean", pa.bool_(), (bool,))
INT = Scalar("bigint", pa.int64(), (int,))
FLOAT = Scalar("double", pa.float64(), (float, int))
TEXT = Scalar("string", pa.string(), (str,))
BYTES = Scalar("binary", pa.binary(), (bytes,))
DATE = Scalar("date", pa.date32(), (date,))
TIME = Scalar("timestamp", pa.timestamp("us", tz="UTC"), (datetime,))
_SCALARS = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, bytes: BYTES, date: DATE}


@dataclass(frozen=True)
class Json(_Converted):
    """A type of values that have no other type in common: their JSON, as text."""

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""
        return pa.string()

    def convert(self, value: object) -> object:
        """Return the JSON of a value; null for None."""
        return None if value is None else to_json(_named(value), fallback=str).decode()


JSON = Json()


@dataclass(frozen=True, slots=True)
class Struct:
    """A type of dicts with texts as keys, and of objects with fields."""

    fields: Mapping[str, ColumnType]

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""
        return pa.struct([(name, one.arrow) for name, one in self.fields.items()])

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""
        value = _plain(value)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise _unfit(value, "struct")
        if more := value.keys() - self.fields.keys():
            raise ValueError(f"field {min(map(repr, more))} is none of its column's")
        return {name: one.convert(value.get(name)) for name, one in self.fields.items()}

    def array(self, values: Sequence[object]) -> pa.Array:
        """Return values as a column. Raise ValueError where one of them does not fit."""
        plain_values = list(map(_plain, values))
        missing, dicts = [], list[Mapping[str, object]]()
        for value in plain_values:
            if not isinstance(value, dict | None) or (value and value.keys() - self.fields.keys()):
                # It raises the error, or converts another kind of mapping.
                return pa.array(list(map(self.convert, values)), self.arrow)
            missing.append(value is None)
            dicts.append(value or {})
        columns = [one.array([row.get(name) for row in dicts]) for name, one in self.fields.items()]
        return pa.StructArray.from_arrays(
            columns, fields=list(self.arrow), mask=pa.array(missing, pa.bool_())
        )


@dataclass(frozen=True)
class TupleStruct(_Converted):
    """A type of tuples of one length, as a struct with the fields `_1`, `_2` and so on."""

    items: tuple[ColumnType, ...]

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""
        return pa.struct([(f"_{n}", one.arrow) for n, one in enumerate(self.items, 1)])

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""
        if value is None:
            return None
        if not isinstance(value, tuple) or len(value) != len(self.items):
            raise _unfit(value, f"tuple of {len(self.items)}")
        parts = zip(self.items, value, strict=True)
        return {f"_{n}": one.convert(part) for n, (one, part) in enumerate(parts, 1)}


@dataclass(frozen=True)
class Array(_Converted):
    """A type of sequences and sets."""

    item: ColumnType

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""
        return pa.list_(self.item.arrow)

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""
        value = _plain(value)
        if value is None:
            return None
        if not isinstance(value, _SEQUENCES):
            raise _unfit(value, "array")
        return [self.item.convert(one) for one in value]


@dataclass(frozen=True)
class TextMap(_Converted):
    """A type of dicts without a common field, with texts as keys."""

    item: ColumnType

    @property
    def arrow(self) -> pa.DataType:
        """Return the type as Arrow has it."""
        return pa.map_(pa.string(), self.item.arrow)

    def convert(self, value: object) -> object:
        """Return a value for a column of the type. Raise ValueError where it does not fit."""
        value = _plain(value)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _unfit(value, "map")
        return [(key, self.item.convert(one)) for key, one in value.items()]


def type_of(values: Iterable[object]) -> ColumnType:
    """Return the type of a column of some values.

    Dicts become structs where all of them have a field in common, else maps; a field that a dict
    lacks is null. Values without a type in common become JSON.

    >>> type_of([1, 2.5]), type_of([1, "a"])
    (Scalar(name='double', ...), Json(...))
    >>> str(type_of([{"n": 1}, {"n": 2, "seen": [("a", 1)]}]).arrow)
    'struct<n: int64, seen: list<item: struct<_1: string, _2: int64>>>'
    >>> str(type_of([{"Rome": 1}, {"Oslo": 2}]).arrow)
    'map<string, int64>'
    """
    known = [value for value in map(_plain, values) if value is not None]
    kinds = {_kind(value) for value in known}
    if kinds <= {INT, FLOAT} and kinds:
        return FLOAT if FLOAT in kinds else INT
    if len(kinds) != 1:
        return JSON
    match kinds.pop():
        case Scalar() as scalar:
            return scalar
        case "dict":
            return _of_dicts([one for one in known if isinstance(one, Mapping)])
        case "tuple":
            return _of_tuples([one for one in known if isinstance(one, tuple)])
        case "array":
            return Array(
                type_of(item for one in known if isinstance(one, _SEQUENCES) for item in one)
            )
    return JSON


def _of_dicts(values: list[Mapping[object, object]]) -> ColumnType:
    filled = [set(one) for one in values if one]
    names = list(dict.fromkeys(name for one in values for name in one))
    texts = [name for name in names if isinstance(name, str)]
    if not filled or len(texts) < len(names):
        return JSON
    if reduce(set.intersection, filled):
        return Struct({name: type_of(one.get(name) for one in values) for name in texts})
    item = type_of(value for one in values for value in one.values())
    return JSON if item == JSON else TextMap(item)


def _of_tuples(values: list[tuple[object, ...]]) -> ColumnType:
    lengths = {*map(len, values)}
    if len(lengths) > 1 or 0 in lengths:
        return Array(type_of(item for one in values for item in one))
    return TupleStruct(tuple(type_of(column) for column in zip(*values, strict=True)))


def _kind(value: object) -> Scalar | str:
    """Return the scalar type of a plain value, or the name of a kind of containers."""
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, tuple):
        return "tuple"
    if isinstance(value, _SEQUENCES):
        return "array"
    if isinstance(value, datetime):
        return TIME if value.tzinfo is not None else "other"
    if type(value) is int and value not in _INT64:
        return "other"
    return _SCALARS.get(type(value), "other")


def _plain(value: object) -> object:
    """Return the plain form of an object. Containers stay as they are, and so do their items."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if type(value) in _SCALARS or isinstance(value, (Mapping, *_SEQUENCES)):
        return value
    return plain(value)


def _named(value: object) -> object:
    """Return a value whose objects are plain at every depth, for JSON."""
    value = plain(value)
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): _named(one) for key, one in value.items()
        }
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [*map(_named, value)] if isinstance(value, list) else value


def _unfit(value: object, name: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
    return ValueError(f"{shown} is no {name}")
