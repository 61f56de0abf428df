"""Formats of typed values: JSON as objects of a class, and rows of CSV.

Guarantees that a record which does not fit the type raises ValueError, so it becomes a dead letter.
No class is built but those of the type. Cost: that of `conversion`; a row of CSV takes 2 us more.
"""

from __future__ import annotations

import csv as library
import io
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast, get_type_hints, overload

from meander.connectors.kafka.conversion import Conversion
from meander.connectors.kafka.formats import ValueFormat
from meander.schemas.errors import SetupError

T = TypeVar("T")


def typed(kind: type[T]) -> ValueFormat[T]:
    """Return the format of JSON whose values are objects of a type.

    The type is a dataclass, NamedTuple, TypedDict, pydantic model, msgspec.Struct, or such as
    `list[Order]`. The flow names these classes, so their objects may be values, states and keys.

    >>> from dataclasses import dataclass
    >>> from meander import KafkaSource
    >>> @dataclass
    ... class Order:
    ...     id: int
    ...     country: str = "CH"
    >>> typed(Order).decode(b'{"id": 7}'), typed(Order).encode(Order(8))
    (Order(id=7, country='CH'), b'{"id":8,"country":"CH"}')
    >>> KafkaSource("orders", value=typed(Order)).types
    [<class '...Order'>]
    """
    return _Typed(kind)


@overload
def csv(columns: type[T], *, delimiter: str = ",") -> ValueFormat[T]: ...
@overload
def csv(columns: Sequence[str], *, delimiter: str = ",") -> ValueFormat[dict[str, str]]: ...
def csv(columns: type[T] | Sequence[str], *, delimiter: str = ",") -> ValueFormat[Any]:
    """Return the format of records that are one row of CSV each, without a header.

    Given names of columns, a value is a dict of texts. Given a class, its fields are the columns,
    and a value is an object of it.

    >>> rows = csv(["id", "city"], delimiter=";")
    >>> rows.decode(b'7;"Wil; SG"'), rows.encode({"id": 8, "city": "Ulm"})
    ({'id': '7', 'city': 'Wil; SG'}, b'8;Ulm')
    """
    if isinstance(columns, type):
        return _Csv([*get_type_hints(columns)], delimiter, Conversion[Any](columns))
    return _Csv(columns, delimiter, None)


def checked_columns(subject: str, columns: object) -> tuple[str, ...]:
    """Return the names of columns. Raise SetupError where they are none, or not each once."""
    named = isinstance(columns, Sequence) and not isinstance(columns, str | bytes)
    names = (*cast(Sequence[object], columns),) if named else ()
    if not names or not all(isinstance(one, str) for one in names) or len({*names}) < len(names):
        raise SetupError(subject, f"its columns are {columns!r}",
                         "name each column once, in order")  # fmt: skip
    return cast(tuple[str, ...], names)


def check_delimiter(subject: str, delimiter: object) -> None:
    """Raise SetupError for a value that is not one character."""
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise SetupError(subject, f"its delimiter is {delimiter!r}", "give one character")


class _Typed(ValueFormat[T]):
    def __init__(self, kind: type[T]) -> None:
        self._conversion = Conversion(kind)

    @property
    def types(self) -> Sequence[object]:
        return (self._conversion.kind,)

    def decode(self, data: bytes) -> T:
        return self._conversion.from_json(data)

    def encode(self, value: T) -> bytes:
        return self._conversion.to_json(value)

    def __repr__(self) -> str:
        return f"typed({getattr(self._conversion.kind, '__name__', self._conversion.kind)})"


class _Csv(ValueFormat[Any]):
    def __init__(
        self, columns: Sequence[str], delimiter: str, conversion: Conversion[Any] | None
    ) -> None:
        names = checked_columns("format csv", columns)
        check_delimiter("format csv", delimiter)
        self._columns, self._delimiter, self._conversion = names, delimiter, conversion

    @property
    def types(self) -> Sequence[object]:
        return () if self._conversion is None else (self._conversion.kind,)

    def decode(self, data: bytes) -> object:
        rows = [*library.reader(io.StringIO(data.decode()), delimiter=self._delimiter, strict=True)]
        if len(rows) != 1 or len(rows[0]) != len(self._columns):
            sizes = [len(row) for row in rows]
            raise ValueError(f"it has rows of {sizes} columns, not one of {len(self._columns)}")
        row = dict(zip(self._columns, rows[0], strict=True))
        return row if self._conversion is None else self._conversion.from_plain(row, strict=False)

    def encode(self, value: object) -> bytes:
        if self._conversion is not None:
            value = self._conversion.to_plain(value)
        out = io.StringIO()
        library.writer(out, delimiter=self._delimiter, lineterminator="").writerow(self._row(value))
        return out.getvalue().encode()

    def _row(self, value: object) -> Iterable[object]:
        if not isinstance(value, dict) or value.keys() != {*self._columns}:
            raise TypeError(f"it takes a dict of {', '.join(self._columns)}, not {value!r}")
        return [cast(dict[str, object], value)[name] for name in self._columns]
