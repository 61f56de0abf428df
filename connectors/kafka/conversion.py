"""Conversion between objects of a type and the plain values of JSON or Avro.

Guarantees that an object is built from fields that fit the type, or ValueError is raised. Types of
msgspec are read strictly, and those that need pydantic as pydantic reads them. Cost: msgspec reads
or writes an object in about 0.5 us, pydantic in 2 us.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar, cast, get_origin, is_typeddict
from uuid import UUID

import msgspec
import numpy as np
from msgspec import inspect as types

from meander.schemas.errors import SetupError

T = TypeVar("T")
_KEPT = (bytes, datetime, date, time, timedelta, Decimal, UUID)
"""The types besides those of JSON that Avro has too."""


def plain(value: object) -> object:
    """Return the plain form of an object, at every depth. A value without one stays as it is.

    >>> plain({"at": np.int64(5), "seen": {(1, 2)}})
    {'at': 5, 'seen': [[1, 2]]}
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [plain(item) for item in value]
    return _fields_of(value)


def _fields_of(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "__pydantic_fields__") and hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    return value


class Conversion(Generic[T]):
    """A conversion of one type: a class, or such as `list[Order]`.

    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     id: int
    ...     price: float = 1.5
    >>> order = Conversion(Order).from_json(b'{"id": 7}')
    >>> order, Conversion(Order).to_json(order)
    (Order(id=7, price=1.5), b'{"id":7,"price":1.5}')
    """

    def __init__(self, kind: type[T]) -> None:
        """Raise SetupError for a type that neither msgspec nor pydantic knows."""
        self.kind = kind
        self._class = None if is_typeddict(kind) or get_origin(kind) else kind
        self._plain = False
        """Whether objects become plain by our own function, field by field."""
        self._is_native = _is_native(kind)
        if self._is_native:
            self.from_json: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
            self._encode = msgspec.json.Encoder(order="deterministic").encode
        else:
            self._encode = lambda value: cast(bytes, self._adapter.dump_json(value))
            if _has_rows(kind):
                self._encode = lambda value: msgspec.json.encode(plain(value))
            self.from_json = self._adapter.validate_json

    @cached_property
    def _adapter(self) -> Any:  # noqa: ANN401 (pydantic is loaded late)
        # pydantic takes 0.2 s to load, which types of msgspec do without.
        from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

        try:
            return TypeAdapter(self.kind)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise SetupError(
                f"type {self.kind!r}",
                f"no JSON describes it: {str(error).splitlines()[0]}",
                "give a dataclass, NamedTuple, TypedDict, pydantic model or msgspec.Struct",
            ) from error

    def to_json(self, value: T) -> bytes:
        """Return an object as JSON. Raise TypeError for an object of another type."""
        self._expect(value)
        return self._encode(value)

    def from_plain(self, value: object, *, strict: bool = True) -> T:
        """Return the object of plain values, of which `strict=False` converts texts."""
        if self._is_native:
            return msgspec.convert(value, self.kind, strict=strict, builtin_types=_KEPT)
        return cast(T, self._adapter.validate_python(value))

    def to_plain(self, value: T) -> object:
        """Return the plain values of an object. Raise TypeError for an object of another type."""
        self._expect(value)
        return plain(value)

    def _expect(self, value: object) -> None:
        if self._class is not None and not isinstance(value, self._class):
            raise TypeError(f"it takes {self._class.__name__}, not {type(value).__name__}")


def _is_native(kind: object) -> bool:
    """Return whether msgspec reads and writes a type as an object with named fields."""
    try:
        left: list[object] = [types.type_info(kind)]
    except (TypeError, NameError):
        return False
    seen = set[int]()
    while left:
        one = left.pop()
        if isinstance(one, types.CustomType | types.NamedTupleType):
            return False
        if isinstance(one, types.Type) and id(one) not in seen:
            seen.add(id(one))
            for name in one.__struct_fields__:
                part = getattr(one, name)
                left += part if isinstance(part, tuple) else (part,)
        elif isinstance(one, types.Field):
            left.append(one.type)
    return True


def _has_rows(kind: object) -> bool:
    """Return whether a type may contain a NamedTuple, which pydantic writes without names."""
    try:
        info = repr(types.type_info(kind))
    except (TypeError, NameError):
        return True
    return "NamedTupleType" in info
