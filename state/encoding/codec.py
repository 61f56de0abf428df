"""The codec: plain Python values as bytes and back, equal in value and type.

Invariant: `decode(encode(v))` equals `v`, type for type (I4). The codec accepts exact types only,
the plain ones and those that the flow names (`named_types`), and refuses any other by name. A set
is written in the order of its elements' bytes. The codec writes a type that msgpack lacks as an
array. The first item, an empty extension, tells how to build the value from the rest. Memory holds
*sealed* states: values that cannot change in place, copies or bytes. Cost: one or two look-ups seal
a number, a string or a flat tuple; nothing is copied.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import chain
from reprlib import repr as shortened
from typing import Any, Final, Protocol, cast

import msgpack

from meander.schemas.errors import MeanderError
from meander.state.encoding import forms, named_types
from meander.state.encoding.canonical import STABLE, canonical
from meander.state.encoding.named_types import in_use, shape_of_all
from meander.state.encoding.record import Record
from meander.state.encoding.shapes import Shape

MAX_DEPTH: Final = 128
"""The most containers within containers."""

ATOMS: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, str, bytes, date, timedelta, Decimal, *forms.IMMUTABLE}
)
"""The types of values without others within."""
_COLLECTIONS: Final[frozenset[type]] = frozenset({tuple, list, set, frozenset, Record})

_FIXED: Final[frozenset[type]] = frozenset({tuple, frozenset, Record})
"""The collections that cannot change in place, unless an item can."""
SHORT_TEXT: Final = frozenset(range(0xA0, 0xC0))
"""The first bytes of encoded text of at most 31 bytes; the text follows at once."""
SHORT_BYTES: Final = 0xC4
"""The first byte of at most 255 encoded bytes; the bytes follow after the length byte."""


class UnencodableError(MeanderError):
    """An error that reports a value that would not come back equal in value and type."""

    def __init__(
        self,
        path: tuple[object, ...],
        cause: str,
        remedy: str = "keep to plain Python values, or give the operator a codec",
    ) -> None:
        where = "".join(f"[{shortened(step)}]" for step in path[:8]) + "..." * (len(path) > 8)
        super().__init__(f"value{where}", cause, remedy)


class StateCodec(Protocol):
    """A codec that encodes the states of one operator. Each layer carries its name.

    `decode(encode(state))` must equal `state`, and equal states must give equal bytes.
    """

    name: str

    def encode(self, state: object, /) -> bytes:
        """Return the bytes of a state."""

    def decode(self, data: bytes, /) -> object:
        """Return a new object that equals the encoded one."""


class Sealed:
    """A sealed state that holds encoded bytes, so no reference of the user can change it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class SealedCopy:
    """A sealed state that holds a copy to which no user has a reference, as the copy of an object
    with a shape costs a fifth of its bytes; or a value with such objects that cannot change."""

    __slots__ = ("fixed", "value", "weight")

    def __init__(self, value: object, fixed: bool) -> None:
        self.value, self.fixed = value, fixed
        self.weight = 0
        """The bytes in memory, 0 while unknown."""


SEALS: Final[frozenset[type]] = frozenset({Sealed, SealedCopy})
"""The types of sealed states that stand for another value."""
_MUST_WALK: Final = object()
"""Stands for a value of which only a walk can tell."""
_COPY_DEPTH: Final = 4
"""The most tuples and objects within each other that are copied, and not encoded."""


def encode(value: object) -> bytes:
    """Encode a plain value.

    The value is None, bool, int, float, str, bytes, tuple, list, dict, set, frozenset, date,
    datetime (naive, with a `datetime.timezone` or a `ZoneInfo`), timedelta, Decimal, UUID, deque,
    Counter, defaultdict, a scalar of numpy, a `Record`, or an object of a class that the flow
    names. Raise UnencodableError for other values.

    >>> decode(encode({"seen": (1, 2.5), "by": {"N14228"}}))
    {'seen': (1, 2.5), 'by': {'N14228'}}
    >>> encode({1, 2, 3}) == encode({3, 2, 1})
    True
    """
    if not _is_flat(value):
        _inspect(value, ())
    return _local.pack(value)


def encode_key(value: object) -> bytes:
    """Encode a plain value as a key. Values that are equal with equal types at every depth give one
    key. `decode` returns this form.

    The value is one that `encode` accepts. Zero has no sign, and NaN one form. A Decimal has no
    trailing zeros behind its point. A datetime with a zone is in UTC. A dict is in the order of its
    keys' bytes.

    >>> encode_key({"zip": 1, "city": "Rome"}) == encode_key({"city": "Rome", "zip": 1})
    True
    >>> decode(encode_key((-0.0, Decimal("1.50")))), encode_key(1) == encode_key(1.0)
    ((0.0, Decimal('1.5')), False)
    """
    if _is_canonical(value):
        return _local.pack(value)
    _inspect(value, ())
    return _local.pack(canonical(value, _local.pack))


def encode_keys(values: Sequence[object]) -> list[bytes]:
    """Encode many keys; native code encodes them where all are text or whole numbers.

    >>> encode_keys(["a", 7]) == [encode("a"), encode(7)]
    True
    """
    canonical = STABLE.issuperset(map(type, values))
    return list(map(_local.pack if canonical else encode_key, values))


def seal(value: object) -> object:
    """Return the value itself where it has no parts that can change in place, else a copy or its
    present bytes.

    >>> seal((3, 1.5)), type(seal([3])).__name__
    ((3, 1.5), 'Sealed')
    """
    if _is_flat(value):
        return value
    copy = _copy(value, 0)
    if copy is not _MUST_WALK:
        return SealedCopy(copy, copy is value)
    return value if _inspect(value, ()) else Sealed(_local.pack(value))


def is_immutable(value: object) -> bool:
    """Return whether a plain value cannot change in place. Raise UnencodableError.

    >>> is_immutable((3, "a")), is_immutable((3, []))
    (True, False)
    """
    copy = _copy(value, 0)
    return copy is value or (copy is _MUST_WALK and _inspect(value, ()))


def own_copies(values: list[object]) -> list[object] | None:
    """Return values that no other reference can change in place, each itself or a copy of it; None
    where that takes their bytes.

    >>> own_copies(["a", (7, 2.5)]), own_copies([[7]])
    (['a', (7, 2.5)], None)
    """
    if ATOMS.issuperset(map(type, values)):
        return values
    if (shape := _common_shape(values)) is not None:
        return values if shape.fixed else list(map(shape.copy, values))
    copies = list[object]()
    for value in values:
        copy = _copy(value, 0)
        if copy is _MUST_WALK:
            return None
        copies.append(copy)
    return copies


def _common_shape(values: Sequence[object]) -> Shape | None:
    """Return the shape of the objects of one class whose fields hold atoms alone."""
    shape = shape_of_all(values)
    if shape is None or shape.has_more is not None:
        return None
    fields = chain.from_iterable(map(shape.values, values))
    return shape if ATOMS.issuperset(map(type, fields)) else None


def _copy(value: Any, depth: int) -> object:  # noqa: ANN401 (it asks for the type)
    """Return a value itself where it cannot change in place, a copy where only objects with shapes
    can, and else `_MUST_WALK`."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is tuple:
        return value if ATOMS.issuperset(map(type, value)) else _copy_tuple(value, depth)
    if kind is datetime:
        return value if _is_datetime(value) else _MUST_WALK
    shape = in_use().shapes.get(kind)
    if shape is None or (shape.has_more is not None and shape.has_more(value)):
        return _MUST_WALK
    fields = shape.values(value)
    if not ATOMS.issuperset(map(type, fields)) and _copy_tuple(fields, depth) is not fields:
        return _MUST_WALK
    return value if shape.fixed else shape.copy(value)


def _copy_tuple(items: tuple[object, ...], depth: int) -> object:
    if depth == _COPY_DEPTH:
        return _MUST_WALK
    if len(items) > 1 and (shape := _common_shape(items)) is not None:
        return items if shape.fixed else tuple(map(shape.copy, items))
    copies, same = list[object](), True
    for item in items:
        copy = _copy(item, depth + 1)
        if copy is _MUST_WALK:
            return copy
        same &= copy is item
        copies.append(copy)
    return items if same else tuple(copies)


def unseal(sealed: object) -> object:
    """Return the value of a sealed state: a new object where it could change in place.

    >>> unseal(seal([3]))
    [3]
    """
    if type(sealed) is SealedCopy:
        return sealed.value if sealed.fixed else _copy(sealed.value, 0)
    return decode(sealed.data) if type(sealed) is Sealed else sealed


def encode_sealed(sealed: object) -> bytes:
    """Return the bytes of a sealed state.

    >>> encode_sealed(seal([3])) == encode([3])
    True
    """
    if type(sealed) is Sealed:
        return sealed.data
    # `seal` has checked each state that is not bytes.
    return _local.pack(sealed.value if type(sealed) is SealedCopy else sealed)


def decode(data: bytes) -> object:
    """Return a new object that equals the encoded one.

    Raise ValueError or KeyError for bytes that `encode` did not write.

    >>> decode(encode((1, [2.0, None])))
    (1, [2.0, None])
    """
    return msgpack.unpackb(
        data, list_hook=_from_array, ext_hook=_builder,
        strict_map_key=False, unicode_errors="surrogatepass", timestamp=1,
    )  # fmt: skip


def verbatim(data: bytes) -> bytes | None:
    """Return the bytes of encoded text or bytes without decoding. Return None for other values, and
    for text that needs a check.

    >>> [verbatim(encode(value)) for value in ("N14228", b"raw", 7)]
    [b'N14228', b'raw', None]
    """
    head = data[0]
    if head in SHORT_TEXT:
        text = data[1:]
        return text if text.isascii() else None
    return data[2:] if head == SHORT_BYTES else None


def decode_strict(data: bytes) -> object:
    """Decode bytes of another process as `decode` does, but strictly: an empty extension may only
    stand where it builds a value. Raise ValueError for each other use of bytes.

    >>> decode_strict(encode([(1, 2)]))
    [(1, 2)]
    >>> decode_strict(msgpack.packb([5, _TUPLE]))
    Traceback (most recent call last):
    ValueError: 5 bytes hold no value: value[1]: it is of type ...Builder, which ...
    """
    try:
        value = decode(data)
        if any(mark in data for mark in _MARKS):
            _inspect(value, ())
    except Exception as error:  # The types that bytes build raise many types of errors.
        raise ValueError(f"{len(data)} bytes hold no value: {error}") from error
    return value


class PlainCodec:
    """The codec of plain states. Its name may carry the definition of the operator that wrote
    them, so that another one does not read them.

    >>> PlainCodec("msgpack, tumbling(60)").encode([3]) == encode([3])
    True
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def of(definition: str) -> PlainCodec:
        """Return the codec of an operator with a definition.

        >>> PlainCodec.of("tumbling(60)").name
        'msgpack of tumbling(60)'
        """
        return PlainCodec(f"{DEFINED}{definition}")

    def encode(self, state: object, /) -> bytes:
        """Return the bytes of a state."""
        return encode(state)

    def decode(self, data: bytes, /) -> object:
        """Return a new object that equals the encoded one."""
        return decode(data)


PLAIN: Final[StateCodec] = PlainCodec("msgpack")
DEFINED: Final = f"{PLAIN.name} of "
"""The begin of the name of a plain codec with a definition."""


def _is_flat(value: object) -> bool:
    """Return whether a value is an atom or a flat tuple, as most values are."""
    if type(value) is tuple:
        return ATOMS.issuperset(map(type, value))
    return type(value) in ATOMS


def _is_canonical(value: object) -> bool:
    """Return whether a value has one form only: an atom of a stable type, or a flat tuple of such
    atoms."""
    if type(value) is tuple:
        return STABLE.issuperset(map(type, value))
    return type(value) in STABLE


def _inspect(value: object, path: tuple[object, ...]) -> bool:
    """Raise UnencodableError for a value that is not plain; return whether it is immutable at every
    depth."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if len(path) >= MAX_DEPTH:
        raise UnencodableError(path, f"it nests more than {MAX_DEPTH} levels, or contains itself")
    if kind in _COLLECTIONS:
        return _inspect_items(cast(Collection[object], value), path)
    if type(value) is dict:
        if not ATOMS.issuperset(map(type, chain(value, value.values()))):
            for key, item in value.items():
                _inspect(key, (*path, key))
                _inspect(item, (*path, key))
        return False
    if type(value) is datetime and _is_datetime(value):
        return True
    return _inspect_form(value, path)


def _is_datetime(value: datetime) -> bool:
    """Return whether a datetime has a zone that the codec accepts, or none."""
    return value.tzinfo is None or type(value.tzinfo) is timezone or forms.is_zoned(value)


def _inspect_form(value: object, path: tuple[object, ...]) -> bool:
    if (form := named_types.form_of(type(value))) is None:
        raise _unencodable(type(value), path)
    if type(value) is defaultdict:
        try:
            named_types.factory_name(value)
        except ValueError as error:
            raise UnencodableError(path, str(error), "give it a class") from None
    shape = in_use().shapes.get(type(value))
    if shape is not None and (shape.has_more is None or not shape.has_more(value)):
        return _inspect_fields(shape, value, path)
    items = form.items(value)
    if not ATOMS.issuperset(map(type, chain(items, items.values()))):
        for label, item in items.items():
            _inspect(label, (*path, label))
            _inspect(item, (*path, label))
    return form.immutable


def _inspect_fields(shape: Shape, value: object, path: tuple[object, ...]) -> bool:
    fields, fixed = shape.values(value), shape.fixed
    if not ATOMS.issuperset(map(type, fields)):
        for name, field in zip(shape.names, fields, strict=True):
            fixed &= _inspect(field, (*path, name))
    return fixed


def _unencodable(kind: type, path: tuple[object, ...]) -> UnencodableError:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if named_types.describe(kind) is None:
        return UnencodableError(path, f"it is of type {name}, which would not come back as it was")
    return UnencodableError(
        path,
        f"it is of type {name}, which the flow does not name",
        f"name it in Flow(types=[{kind.__name__}]), or annotate the function that returns it",
    )


def _inspect_items(items: Collection[object], path: tuple[object, ...]) -> bool:
    fixed = type(items) in _FIXED
    if not ATOMS.issuperset(map(type, items)):
        ordered = isinstance(items, (list, tuple))
        for index, item in enumerate(items):
            fixed &= _inspect(item, (*path, index if ordered else item))
    return fixed


def _to_array(value: object) -> list[object]:
    """Return a value of a type that msgpack lacks as an array that starts with its builder."""
    if type(value) is tuple:
        return [_TUPLE, *value]
    if (form := named_types.form_of(type(value))) is not None:
        return [form.mark, *form.parts(value)]
    match value:
        case set() | frozenset():
            return [_SET if type(value) is set else _FROZENSET, *sorted(map(_packer().pack, value))]
        case int():
            return [_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)]
        case datetime() if forms.is_zoned(value):
            return [forms.ZONED.mark, *forms.zoned_parts(value)]
        case datetime():
            zone = value.tzinfo and (value.tzinfo.utcoffset(None), value.tzinfo.tzname(None))
            return [_DATETIME, zone, value.fold, *forms.moment_parts(value)]
        case date():
            return [_DATE, value.year, value.month, value.day]
        case timedelta():
            return [_TIMEDELTA, value.days, value.seconds, value.microseconds]
        case Decimal():
            return [_DECIMAL, str(value)]
    raise AssertionError(f"{type(value)} has passed the survey")


def _datetime(zone: tuple[timedelta, str] | None, fold: int, *parts: int) -> datetime:
    if zone is None:
        return datetime(*parts, fold=fold)  # type: ignore[arg-type]  # noqa: DTZ001 (was naive)
    unnamed = timezone(zone[0])
    tzinfo = unnamed if unnamed.tzname(None) == zone[1] else timezone(*zone)
    return datetime(*parts, fold=fold, tzinfo=tzinfo)  # type: ignore[arg-type,misc]


_TUPLE, _SET, _FROZENSET, _INT, _DATETIME, _DATE, _TIMEDELTA, _DECIMAL = (
    msgpack.ExtType(code, b"") for code in range(1, 9)
)
_BUILD: Final[dict[int, Callable[[list[Any]], object]]] = {
    _TUPLE.code: tuple,
    _SET.code: lambda rest: set(map(_element, rest)),
    _FROZENSET.code: lambda rest: frozenset(map(_element, rest)),
    _INT.code: lambda rest: int.from_bytes(rest[0], "big", signed=True),
    _DATETIME.code: lambda rest: _datetime(*rest),
    _DATE.code: lambda rest: date(*rest),
    _TIMEDELTA.code: lambda rest: timedelta(*rest),
    _DECIMAL.code: lambda rest: Decimal(rest[0]),
    forms.DEFAULTDICT.code: lambda rest: forms.default_of(rest, in_use().factories),
    forms.NAMED.code: lambda rest: in_use().build(*rest),
    **forms.BUILDERS,
}


class _Builder:
    """A builder, which no value is."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[list[Any]], object]) -> None:
        self.build = build


_BUILDERS: Final = {code: _Builder(build) for code, build in _BUILD.items()}


_MARKS: Final = (b"\xc7\0", b"\xc8\0\0", b"\xc9\0\0\0\0")
"""The bytes that may start an empty extension."""


def _builder(code: int, body: bytes) -> _Builder:
    if body:
        raise ValueError("an extension that is not empty")
    return _BUILDERS[code]


def _element(data: bytes) -> object:
    """Decode an element of a set. Each nested set costs a large stack frame in msgpack, so a limit
    prevents an overflow."""
    if _local.sets >= MAX_DEPTH:
        raise ValueError(f"sets nest more than {MAX_DEPTH} levels")
    _local.sets += 1
    try:
        return decode(data)
    finally:
        _local.sets -= 1


def _from_array(items: list[Any]) -> object:
    """Undo `_to_array`."""
    if items and type(items[0]) is _Builder:
        return items[0].build(items[1:])
    return items


def _packer() -> msgpack.Packer:
    return msgpack.Packer(default=_to_array, strict_types=True, unicode_errors="surrogatepass")


class _PerThread(threading.local):
    """A packer for each thread: its creation costs more than a typical call, and threads must not
    share it."""

    def __init__(self) -> None:
        self.pack: Callable[[object], bytes] = _packer().pack
        self.sets = 0


_local: Final = _PerThread()
