"""Formats: encodings of values and keys on a topic, and the location of a record's time.

Guarantees that a decoder or extractor raises ValueError for input outside its format and never
guesses. A user's function raises its own errors. A null value is None in every format. Times are
milliseconds since 1970. Cost: JSON runs in native code, about half a microsecond per record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec
from pydantic_core import from_json, to_json

from meander.connectors.kafka.conversion import plain
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.option_values import checked_text
from meander.state.encoding import codec
from meander.state.encoding.value_columns import Values
from meander.state.times.time import checked_millis

Format = Literal["json", "bytes", "str"]
Decoder = Callable[[bytes], object]
Encoder = Callable[[object], bytes]
Headers = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")
U = TypeVar("U")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a format is used: the values or the keys of a topic, or of all topics that
    match a pattern."""

    topic: str
    part: str
    """"value" or "key"."""
    end: Literal["source", "sink"]
    is_pattern: bool = False

    def __str__(self) -> str:
        topics = "topics" if self.is_pattern else "topic"
        return f"{self.end} {topics} {self.topic!r}, {self.part}"


class FormatUnavailableError(MeanderError):
    """An error that reports that a format cannot be used at present, whatever the record."""


class ValueFormat(Generic[T]):
    """A format that is an object, such as `typed(Order)` or one of a registry. A null is None.

    `decode` raises ValueError for bytes that are no value, and FormatUnavailableError where it
    cannot tell. `encode` raises TypeError or ValueError for a value outside the format.
    """

    @property
    def types(self) -> Sequence[object]:
        """Return the types that the format names."""
        return ()

    @property
    def files(self) -> Sequence[Path]:
        """Return the files that workers need for it, besides those of the flow's module."""
        return ()

    def check(self, place: Place) -> None:
        """Prepare a flow that uses the format there. Raise SetupError where that cannot work."""

    def at(self, place: Place) -> ValueFormat[T]:
        """Return the format as a worker uses it there. Raise SetupError where that fails."""
        return self

    def decode(self, data: bytes) -> T:
        """Return the value of some bytes."""
        raise NotImplementedError

    def decode_batch(self, data: Sequence[bytes]) -> Values:
        """Return the values of many records, perhaps as columns. Raise the error of one."""
        return list(map(self.decode, data))

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns, where values are tuples of columns."""
        return ()

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value."""
        raise NotImplementedError

    def __call__(self, data: bytes) -> T:
        """Return the value of some bytes, as other functions that decode do."""
        return self.decode(data)


@dataclass(frozen=True, slots=True)
class HeaderTime:
    """A time extractor that reads decimal milliseconds since 1970 from a header."""

    name: str

    def millis(self, headers: Headers | None) -> int:
        """Return the time of a record with these headers. The last of several headers with the name
        counts.

        >>> HeaderTime("time").millis([("time", b"1357034400000")])
        1357034400000
        """
        for name, value in reversed(headers or ()):
            if name == self.name:
                if value is None:
                    raise ValueError(f"header {name!r} is null")
                return checked_millis(int(value))
        raise ValueError(f"there is no header {self.name!r}")


@dataclass(frozen=True, slots=True)
class FieldTime:
    """A time extractor that reads a field of the value, in milliseconds since 1970 or as a datetime
    with a zone."""

    name: str

    def millis(self, value: object) -> int:
        """Return the time of a record with this value.

        >>> FieldTime("at").millis({"at": 5})
        5
        """
        if isinstance(value, dict) and self.name in value:
            found: object = value[self.name]
        elif isinstance(value, dict) or not hasattr(value, self.name):
            raise ValueError(f"there is no field {self.name!r}")
        else:
            found = getattr(value, self.name)
        if isinstance(found, datetime):
            if found.tzinfo is None:
                raise ValueError(f"field {self.name!r} is a time without a zone")
            found = (found - _EPOCH) // _MILLISECOND
        return checked_millis(found)


TimeExtractor = HeaderTime | FieldTime | Callable[[object], int]
"""A function receives the decoded value and returns milliseconds since 1970."""


def header(name: str) -> HeaderTime:
    """Read a record's time from this header: decimal milliseconds since 1970.

    >>> header("time")
    HeaderTime(name='time')
    """
    return HeaderTime(checked_text("header", "name", name))


def field(name: str) -> FieldTime:
    """Read a record's time from this field of its value, of a dict or an object: whole milliseconds
    since 1970, or a datetime with a zone.

    >>> field("at")
    FieldTime(name='at')
    """
    return FieldTime(checked_text("field", "name", name))


def check_format(what: str, form: object, names: Sequence[str] = get_args(Format)) -> None:
    """Raise SetupError for a value that is no format."""
    if form not in names and not callable(form):
        named = ", ".join(map(repr, names))
        raise SetupError(what, f"it is {form!r}", f"give {named} or a function")


def check_extractor(what: str, time: object) -> None:
    """Raise SetupError for a value that is no time extractor, and not None."""
    if not (time is None or isinstance(time, HeaderTime | FieldTime) or callable(time)):
        remedy = "give header('name'), field('name') or a function of the value"
        raise SetupError(what, f"it is {time!r}", remedy)


def decode_all(
    decode: Callable[[bytes | None], object], data: Iterable[bytes | None]
) -> list[object]:
    """Decode many values or keys with a built-in decoder."""
    return list(data if decode is _identity else map(decode, data))


def is_user_code(form: object) -> bool:
    """Return whether a format is a function of the user, which may take long."""
    return callable(form) and not isinstance(form, ValueFormat)


def decoder(form: Format | Decoder) -> Callable[[bytes | None], object]:
    """Return the function that decodes a record's value or key.

    >>> decoder("json")(b'{"a": 1}'), decoder("str")(b"a"), decoder(len)(b"abc")
    ({'a': 1}, 'a', 3)
    """
    if form == "bytes":
        return _identity
    decode = _DECODERS[form] if isinstance(form, str) else form
    return lambda data: None if data is None else decode(data)


def types_of(*forms: object) -> list[object]:
    """Return the types that some formats name."""
    return [kind for form in forms if isinstance(form, ValueFormat) for kind in form.types]


def at_place(form: U, place: Place) -> U:
    """Return a format as a worker uses it at a place. Raise SetupError where that fails."""
    return cast(U, form.at(place)) if isinstance(form, ValueFormat) else form


def encoder(form: Format | Encoder | ValueFormat[Any]) -> Callable[[object], bytes | None]:
    """Return the function that encodes a record's value.

    >>> encoder("json")({"a": (1, None)}), encoder("str")("a"), encoder("str")(None)
    (b'{"a":[1,null]}', b'a', None)
    >>> encoder("json")(float("nan"))
    Traceback (most recent call last):
    ValueError: Out of range float values are not JSON compliant...
    """
    if isinstance(form, str):
        return _ENCODERS[form]
    encode = form.encode if isinstance(form, ValueFormat) else form
    return lambda value: None if value is None else encode(value)


def plain_key(key: bytes) -> bytes:
    """Return a key of the engine (`codec`) for other readers: text and bytes unchanged, else JSON.

    >>> [plain_key(codec.encode(key)) for key in ("N14228", b"raw", 7, ("AA", 1))]
    [b'N14228', b'raw', b'7', b'["AA",1]']
    """
    if (verbatim := codec.verbatim(key)) is not None:
        return verbatim
    value = codec.decode(key)
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else _to_json(value)


def encode_all(encode: Callable[[T], bytes | None], values: Sequence[T]) -> list[bytes | None]:
    """Encode many values with a built-in encoder, in native code where possible.

    >>> encode_all(encoder("json"), [1, 22]), encode_all(plain_key, [codec.encode("N14228")])
    ([b'1', b'22'], [b'N14228'])
    """
    if encode is _to_bytes and _BYTES.issuperset(map(type, values)):
        return cast(list[bytes | None], list(values))
    if encode is _to_json and _WHOLE.issuperset(map(type, values)):
        return list(map(b"%d".__mod__, values))
    if encode is plain_key:
        keys = cast(Sequence[bytes], values)
        heads = set(map(_HEAD, keys))
        if heads == {codec.SHORT_BYTES}:
            return [key[2:] for key in keys]
        if codec.SHORT_TEXT.issuperset(heads):
            texts = [key[1:] for key in keys]
            if b"".join(texts).isascii():
                return [*texts]
    return list(map(encode, values))


def _identity(data: bytes | None) -> object:
    return data


def _from_str(data: bytes) -> object:
    return data.decode()


def _to_json(value: object) -> bytes:
    data = to_json(value, fallback=_other)
    # Python writes NaN and Infinity, which JSON lacks; most readers refuse such a record.
    if b"NaN" in data or b"Infinity" in data:
        json.dumps(from_json(data), allow_nan=False)
    return data


def _other(value: object) -> object:
    """Return the plain form of a value that JSON's encoder does not know."""
    found = plain(value)
    if found is value:
        raise ValueError(f"Unable to serialize unknown type: {type(value)}")
    return found


def _to_bytes(value: object) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the format 'bytes' takes bytes, not {type(value).__name__}")
    return value


def _to_str(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"the format 'str' takes str, not {type(value).__name__}")
    return value.encode()


_WHOLE = {int}
_BYTES = {bytes, type(None)}
_HEAD = itemgetter(0)
_DECODERS: dict[str, Decoder] = {"json": msgspec.json.Decoder().decode, "str": _from_str}
_ENCODERS: dict[Format, Callable[[object], bytes | None]] = {
    "json": _to_json, "bytes": _to_bytes, "str": _to_str,
}  # fmt: skip
