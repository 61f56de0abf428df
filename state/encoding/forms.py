"""Forms: values of types that msgpack lacks, as arrays of plain parts.

Guarantees that `build(parts(value))` equals the value in value and type. A builder gets parts from
bytes, so it checks them, and it builds its own type alone. Cost: one look-up by type per value.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np

from meander.state.encoding.record import Record

Canonical = Callable[[Any], Any]
"""A function that returns the one form of all values that equal a value."""


_NO_ITEMS: Final[Mapping[object, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the values of one type."""

    mark: msgpack.ExtType
    """The first item of the array."""
    parts: Callable[[Any], Sequence[object]]
    """Returns the other items."""
    canonical: Callable[[Any, Canonical], object] = lambda value, _: value
    """Returns the form of all equal values; the function does so for a part."""
    items: Callable[[Any], Mapping[Any, object]] = lambda _: _NO_ITEMS
    """Returns the values within a value, by name, index or key."""
    immutable: bool = False
    """Whether no value of the type can change in place."""


def uuid_of(parts: list[Any]) -> UUID:
    """Return a UUID of its 16 bytes."""
    (data,) = parts
    return UUID(bytes=data)


def zoned(parts: list[Any]) -> datetime:
    """Return a datetime in a zone of the time zone database."""
    key, fold, year, month, *moment = parts
    return datetime(year, month, *moment[:5], fold=fold, tzinfo=ZoneInfo(key))  # type: ignore[misc]


def moment_parts(value: datetime) -> list[object]:
    """Return the numbers of a datetime without its zone, from the year on."""
    return [value.year, value.month, value.day,
            value.hour, value.minute, value.second, value.microsecond]  # fmt: skip


def is_zoned(value: datetime) -> bool:
    """Return whether a datetime has a zone with a key."""
    return type(value.tzinfo) is ZoneInfo and value.tzinfo.key is not None


def zoned_parts(value: datetime) -> list[object]:
    """Return the key of a datetime's zone and its numbers."""
    assert isinstance(value.tzinfo, ZoneInfo)
    return [value.tzinfo.key, value.fold, *moment_parts(value)]


def _scalar_parts(value: np.generic) -> list[object]:
    # `item` and `tobytes` of a text or of bytes drop zeros at the end.
    match value:
        case np.str_():
            data: object = str.__str__(value)
        case np.bytes_():
            data = bytes(value)
        case _:
            data = value.tobytes()
    return [_SCALAR_NAMES[type(value)], data]


def scalar(parts: list[Any]) -> np.generic:
    """Return a numpy scalar of its name and little-endian bytes, or of its text."""
    name, data = parts
    kind = SCALARS[name]
    if kind is np.str_ or kind is np.bytes_:
        if type(data) is not (str if kind is np.str_ else bytes):
            raise ValueError(f"a numpy.{name} of {type(data).__name__}")
        return kind(data)
    (item,) = np.frombuffer(data, np.dtype(kind).newbyteorder("<"))
    found: np.generic = kind(item)
    return found


def _canonical_scalar(value: np.generic, _: Canonical) -> object:
    if isinstance(value, np.floating):
        return type(value)(value + 0 if value == value else "nan")
    return value


def _deque_of(parts: list[Any]) -> deque[object]:
    length, *items = parts
    return deque(items, length)


def _counter_of(parts: list[Any]) -> Counter[object]:
    (counts,) = parts
    found = Counter[object]()
    found.update(_dict(counts))
    if len(found) != len(counts):
        raise ValueError("a Counter with equal keys")
    dict.update(found, counts)
    return found


def _dict(value: object) -> dict[Any, Any]:
    if type(value) is not dict:
        raise ValueError(f"items of a {type(value).__name__}")
    return value


def in_order(items: Mapping[Any, Any], canonical: Canonical) -> dict[object, object]:
    """Return the canonical form of a dict's items; the codec orders those of a plain dict."""
    ordered: dict[object, object] = canonical(dict(items))
    return ordered


def _canonical_counter(value: Counter[Any], canonical: Canonical) -> object:
    # Equal Counters differ in entries of zero.
    counted = {key: count for key, count in value.items() if count}
    return _counter_of([in_order(counted, canonical)])


SCALARS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
        np.uint64, np.float16, np.float32, np.float64, np.str_, np.bytes_,
    )
}  # fmt: skip
"""The scalars of numpy that values may contain, by name."""
_SCALAR_NAMES: Final = {kind: name for name, kind in SCALARS.items()}

FACTORIES: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        int, float, bool, str, bytes, list, tuple, dict, set, frozenset, Decimal, deque, Counter,
    )
}  # fmt: skip
"""The types besides those of the flow that may make the new items of a defaultdict."""

_UUID, _ZONED, _SCALAR, _DEQUE, _COUNTER = (msgpack.ExtType(code, b"") for code in range(9, 14))
DEFAULTDICT: Final = msgpack.ExtType(14, b"")
NAMED: Final = msgpack.ExtType(15, b"")
_RECORD: Final = msgpack.ExtType(16, b"")

ZONED: Final = Form(_ZONED, zoned_parts, immutable=True)
_SCALAR_FORM: Final = Form(_SCALAR, _scalar_parts, _canonical_scalar, immutable=True)
FORMS: Final[Mapping[type, Form]] = {
    UUID: Form(_UUID, lambda value: [value.bytes], immutable=True),
    deque: Form(
        _DEQUE,
        lambda value: [value.maxlen, *value],
        lambda value, canonical: deque(map(canonical, value)),
        lambda value: dict(enumerate(value)),
    ),
    Counter: Form(_COUNTER, lambda value: [dict(value)], _canonical_counter, lambda value: value),
    Record: Form(
        _RECORD,
        lambda value: value,
        lambda value, canonical: Record._make(map(canonical, value)),
        lambda value: value._asdict(),
    ),
    **dict.fromkeys(SCALARS.values(), _SCALAR_FORM),
}
"""The forms of types of Python's library and of numpy, and of records."""
BUILDERS: Final[Mapping[int, Callable[[list[Any]], object]]] = {
    _UUID.code: uuid_of,
    _ZONED.code: zoned,
    _SCALAR.code: scalar,
    _DEQUE.code: _deque_of,
    _COUNTER.code: _counter_of,
    _RECORD.code: Record._make,
}

IMMUTABLE: Final[frozenset[type]] = frozenset(
    kind for kind, form in FORMS.items() if form.immutable
)
"""The types of this module whose values cannot change in place."""


def default_of(parts: list[Any], types: Mapping[str, type]) -> defaultdict[object, object]:
    """Return a defaultdict of the name of its factory, among some types, and its items."""
    name, items = parts
    factory = None if name is None else {**types, **FACTORIES}[name]
    return defaultdict(factory, _dict(items))
