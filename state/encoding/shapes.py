"""Shapes: how native code takes the objects of a class apart, builds and copies them.

Guarantees that the fields of an object say all about it. So an object that native code builds or
copies equals the one that its bytes would build. Invariant: a class has a shape only where none of
its own methods takes part in this. The word of a class that is frozen is taken. Cost: 40 to 400 ns
per object, where writing and reading its bytes takes 6,000.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, getattr_static, signature
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, Final, NamedTuple, cast

import msgspec

FieldValues = tuple[object, ...]
"""The values of an object's fields, in the order of the class."""


class _Field(NamedTuple):
    value: object


_TUPLE_FIELD: Final = type(getattr_static(_Field, "value"))
_ACCESS: Final = ("__getattribute__", "__getattr__", "__new__")
"""Methods by which the objects of a class can differ from their fields."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of the objects of one class.

    >>> class Bid(msgspec.Struct):
    ...     auction: int
    ...     price: float
    >>> shape = shape_of(Bid)
    >>> shape.values(Bid(7, 2.5)), shape.build((7, 2.5)), shape.fixed
    ((7, 2.5), Bid(auction=7, price=2.5), False)
    """

    names: tuple[str, ...]
    """The names of the fields."""
    values: Callable[[Any], FieldValues]
    build: Callable[[FieldValues], object]
    """Returns the object of some values. It must not be called for an Enum."""
    copy: Callable[[Any], object]
    """Returns a new object with the same values; the object itself where `fixed`."""
    fixed: bool
    """Whether no object can change in place, unless a value can."""
    has_more: Callable[[Any], bool] | None = None
    """Returns whether an object has other attributes than its fields, where it may have some."""


def shape_of(kind: type[Any]) -> Shape | None:
    """Return the shape of a class, or None for a class whose objects may be more than fields."""
    if issubclass(kind, Enum):
        return Shape((), lambda _: (), _member, _itself, fixed=True)
    if issubclass(kind, msgspec.Struct):
        return _struct(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if "__dataclass_params__" in vars(kind) and not hasattr(kind, "__pydantic_fields__"):
        return _dataclass(kind)
    return None


def _itself(value: object) -> object:
    return value


def _member(_: FieldValues) -> object:
    raise AssertionError("a member of an Enum has no fields")


def _inherits(kind: type[Any], base: type[Any], methods: Iterable[str]) -> bool:
    """Return whether a class has some methods from its base alone."""
    return all(getattr(kind, one, None) is getattr(base, one, None) for one in methods)


def _slots(kind: type[Any]) -> set[str]:
    """Return the names of the slots of a class and its bases."""
    found = (vars(one).items() for one in kind.__mro__)
    return {name for some in found for name, one in some if type(one) is MemberDescriptorType}


def _struct(kind: type[Any]) -> Shape | None:
    names: tuple[str, ...] = kind.__struct_fields__
    own = (*_ACCESS, "__init__", "__copy__", "__post_init__")
    slotted = _slots(kind) == {*names} and not kind.__dictoffset__
    if not slotted or not _inherits(kind, msgspec.Struct, own) or _hides(kind, names):
        return None
    kinds = {one.kind for one in signature(kind).parameters.values()}
    build: Callable[[FieldValues], object] = lambda values: kind(*values)  # noqa: E731
    if Parameter.KEYWORD_ONLY in kinds:
        build = lambda values: kind(**dict(zip(names, values, strict=True)))  # noqa: E731
    fixed: bool = kind.__struct_config__.frozen
    copy = _itself if fixed else cast(Any, msgspec.Struct).__copy__
    return Shape(names, msgspec.structs.astuple, build, copy, fixed)


def _hides(kind: type[Any], names: Iterable[str]) -> bool:
    """Return whether a class has something else in place of the slot of a field."""
    return any(type(getattr_static(kind, one)) is not MemberDescriptorType for one in names)


def _named_tuple(kind: type[Any]) -> Shape | None:
    fields = (getattr_static(kind, name) for name in kind._fields)
    own = ("__getattribute__", "__getattr__", "__iter__")
    if kind.__dictoffset__ or not _inherits(kind, tuple, own):
        return None
    if any(type(one) is not _TUPLE_FIELD for one in fields):
        return None
    new = cast(Callable[[type, FieldValues], object], tuple.__new__)
    return Shape(kind._fields, tuple, lambda values: new(kind, values), _itself, fixed=True)


def _dataclass(kind: type[Any]) -> Shape | None:
    names = tuple(one.name for one in dataclasses.fields(kind))
    if not names or not _inherits(kind, object, _ACCESS):
        return None
    fixed: bool = kind.__dataclass_params__.frozen
    values = cast(Callable[[Any], FieldValues], attrgetter(*names))
    if len(names) == 1:
        values = lambda value: (getattr(value, names[0]),)  # noqa: E731
    new, assign = cast(Callable[[type], Any], kind.__new__), object.__setattr__
    if not kind.__dictoffset__:
        if _slots(kind) - {"__weakref__"} != {*names} or _hides(kind, names):
            return None

        def slotted(found: FieldValues) -> object:
            made = new(kind)
            for name, value in zip(names, found, strict=True):
                assign(made, name, value)
            return made

        copy = _itself if fixed else lambda value: slotted(values(value))
        return Shape(names, values, slotted, copy, fixed)
    if _slots(kind) or any(hasattr(getattr_static(kind, one, None), "__set__") for one in names):
        return None
    known = {*names}

    def build(found: FieldValues) -> object:
        made = new(kind)
        vars(made).update(zip(names, found, strict=True))
        return made

    return Shape(
        names, values, build, _itself if fixed else lambda value: build(values(value)), fixed,
        lambda value: vars(value).keys() != known,
    )  # fmt: skip
