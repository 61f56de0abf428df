"""Named types: the classes of a flow whose objects its records, states and keys may contain.

Guarantees that bytes build objects of these classes alone, and that they run no other code: bytes
name a class, and the table of the flow has it or refuses them. An object is its class's name and
its fields by name, so a class may get a field with a default, or lose one, between two runs.
Invariant: equal objects of one class have equal bytes as keys. Cost: 2 to 3 us to write or
read an object of four fields, where a dict takes 0.9.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum, Flag
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from meander.schemas.errors import SetupError
from meander.state.encoding.forms import DEFAULTDICT, FACTORIES, FORMS, NAMED, Canonical, Form
from meander.state.encoding.shapes import Shape, shape_of

if TYPE_CHECKING:
    from pydantic import BaseModel

Fields = dict[str, Any]
SUPPORTED: Final = (
    "a dataclass, NamedTuple, Enum, pydantic model, msgspec.Struct or message of Protobuf"
)


class _Message(Protocol):
    """A message of Protobuf."""

    def SerializeToString(self, *, deterministic: bool) -> bytes:  # noqa: N802 (Protobuf's name)
        """Return its bytes."""


@dataclass(frozen=True, slots=True)
class NamedType:
    """A class with the functions that take its objects apart and build them."""

    name: str
    kind: type[Any]
    parts: Callable[[Any], object]
    """Returns the fields of an object by name, or a text or bytes that stand for it."""
    build: Callable[[Any], object]
    """Returns the object of such parts. Raises ValueError, and what the class raises."""
    form: Form


class NamedTypes:
    """A table of the classes that one flow names.

    >>> from fractions import Fraction
    >>> class Size(Enum):
    ...     SMALL = 1
    >>> NamedTypes([Size]).build("Size", "SMALL")
    <Size.SMALL: 1>
    >>> NamedTypes([Fraction])
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: type Fraction: it is none of ...
    """

    def __init__(self, kinds: Iterable[type] = ()) -> None:
        """Raise SetupError for a class that no form describes, or two classes of one name."""
        self.by_type: dict[type, NamedType] = {}
        self.shapes: dict[type, Shape] = {}
        """The shapes of those classes that have one."""
        self._by_name: dict[str, NamedType] = {}
        self.factories: dict[str, type] = {}
        """The classes by name."""
        for kind in dict.fromkeys(kinds):
            named = describe(kind)
            if named is None:
                raise SetupError(
                    f"type {kind.__qualname__}",
                    f"it is none of {SUPPORTED}",
                    "turn its objects into such, or give the operator a codec",
                )
            other = self._by_name.setdefault(named.name, named)
            if other is not named:
                raise SetupError(
                    f"type {named.name!r}",
                    f"{other.kind.__module__} and {kind.__module__} both define one",
                    "rename one of them, as records carry the name alone",
                )
            self.by_type[kind], self.factories[named.name] = named, kind
            if (shape := shape_of(kind)) is not None:
                self.shapes[kind] = shape

    def form(self, kind: type) -> Form | None:
        """Return the form of a class, or None for an unnamed one."""
        named = self.by_type.get(kind)
        return None if named is None else named.form

    def build(self, name: str, parts: object) -> object:
        """Return the object of a class and its parts. Raise ValueError for an unknown class."""
        named = self._by_name.get(name)
        if named is None:
            raise ValueError(f"the flow names no type {name!r}")
        return named.build(parts)


@dataclass(slots=True)
class _InUse:
    types: NamedTypes


_in_use: Final = _InUse(NamedTypes())


def use(types: NamedTypes) -> None:
    """Let the codec of this process know the classes of a flow, and no others."""
    _in_use.types = types


def in_use() -> NamedTypes:
    """Return the classes that the codec knows."""
    return _in_use.types


def shape_of_all(values: Collection[object]) -> Shape | None:
    """Return the shape of values that are objects of one class, or None for other values."""
    kinds = {*map(type, values)}
    return _in_use.types.shapes.get(kinds.pop()) if len(kinds) == 1 else None


def form_of(kind: type) -> Form | None:
    """Return how values of a type become arrays, or None where no form describes it."""
    form = FORMS.get(kind) or _in_use.types.form(kind)
    return _DEFAULTDICT if form is None and kind is defaultdict else form


def factory_name(value: defaultdict[Any, Any]) -> str | None:
    """Return the name of a defaultdict's factory. Raise ValueError for a factory without one."""
    factory = value.default_factory
    if factory is None:
        return None
    if isinstance(factory, type):
        name: str = factory.__name__
        if FACTORIES.get(name) is factory:
            return name
        if (named := _in_use.types.by_type.get(factory)) is not None:
            return named.name
    raise ValueError(
        f"its default_factory is {factory!r}, and only a plain type or one of the flow's returns"
    )


_DEFAULTDICT: Final = Form(
    DEFAULTDICT,
    lambda value: [factory_name(value), dict(value)],
    # Equal ones may have other factories.
    lambda value, canonical: defaultdict(None, canonical(dict(value))),
    lambda value: value,
)


def describe(kind: type) -> NamedType | None:
    """Return a class with its functions, or None for a class that is none of those supported."""
    name = kind.__qualname__.rpartition("<locals>.")[2]
    if issubclass(kind, Enum):
        return _enum(name, kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        fields = _FieldNames(name, kind._fields, kind._field_defaults)  # type: ignore[attr-defined]
        return _of_fields(
            name, kind, fields, lambda value: {one: getattr(value, one) for one in fields.order},
            lambda found: tuple.__new__(kind, [found[one] for one in fields.names]),
        )  # fmt: skip
    if issubclass(kind, msgspec.Struct):
        return _struct(name, kind)
    if isinstance(model := getattr(kind, "__pydantic_fields__", None), dict):
        return _model(name, kind, model)
    if dataclasses.is_dataclass(kind):
        return _dataclass(name, kind)
    if hasattr(kind, "DESCRIPTOR") and hasattr(kind, "FromString"):
        return _message(kind)
    return None


class _FieldNames:
    """The fields of a class and the defaults of those that bytes may lack."""

    def __init__(
        self,
        owner: str,
        names: Iterable[str],
        defaults: Mapping[str, object],
        factories: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    ) -> None:
        self.owner, self.names = owner, tuple(names)
        self.order = tuple(sorted(self.names))
        """The names in the order of the bytes, which does not depend on that of the class."""
        self._defaults, self._factories = defaults, factories
        self._known = frozenset(self.names)

    def complete(self, parts: object) -> Fields:
        """Return the fields of parts. Raise ValueError where one is missing."""
        if type(parts) is not dict:
            raise ValueError(f"{self.owner} has fields, and not a {type(parts).__name__}")
        if parts.keys() == self._known:
            return parts
        # The class has changed since: fields that are gone stay behind.
        return {name: parts[name] if name in parts else self._default(name) for name in self.names}

    def _default(self, name: str) -> object:
        if name in self._factories:
            return self._factories[name]()
        if name in self._defaults:
            return self._defaults[name]
        raise ValueError(f"{self.owner} has no value of its field {name!r}, nor a default")


def _of_fields(
    name: str,
    kind: type,
    fields: _FieldNames,
    parts: Callable[[Any], Fields],
    build: Callable[[Fields], object],
) -> NamedType:
    def rebuilt(found: object) -> object:
        return build(fields.complete(found))

    def canonical(value: object, of_part: Canonical) -> object:
        return build({field: of_part(part) for field, part in parts(value).items()})

    form = Form(
        NAMED,
        lambda value: [name, parts(value)],
        canonical,
        parts,
    )
    return NamedType(name, kind, parts, rebuilt, form)


def _dataclass(name: str, kind: type[Any]) -> NamedType:
    known = dataclasses.fields(kind)
    fields = _FieldNames(
        name,
        (one.name for one in known),
        {one.name: one.default for one in known if one.default is not MISSING},
        {one.name: one.default_factory for one in known if one.default_factory is not MISSING},
    )
    order, assign = fields.order, object.__setattr__
    new = cast(Callable[[type], Any], kind.__new__)

    def build(found: Fields) -> object:
        # The bytes are of a whole object, so `__init__` and `__post_init__` have run before.
        made = new(kind)
        for field, value in found.items():
            assign(made, field, value)
        return made

    return _of_fields(
        name, kind, fields, lambda value: {one: getattr(value, one) for one in order}, build
    )


def _struct(name: str, kind: type[Any]) -> NamedType:
    known = msgspec.structs.fields(kind)
    none = msgspec.NODEFAULT
    fields = _FieldNames(
        name,
        kind.__struct_fields__,
        {one.name: one.default for one in known if one.default is not none},
        {one.name: one.default_factory for one in known if one.default_factory is not none},
    )
    order = fields.order
    return _of_fields(
        name, kind, fields, lambda value: {one: getattr(value, one) for one in order},
        lambda found: kind(**found),
    )  # fmt: skip


def _model(name: str, kind: type[Any], known: Mapping[str, Any]) -> NamedType:
    fields = _FieldNames(
        name,
        known,
        {n: one.default for n, one in known.items()
         if one.default_factory is None and not one.is_required()},
        {n: one.default_factory for n, one in known.items() if one.default_factory is not None},
    )  # fmt: skip
    new = cast(Callable[[type], Any], kind.__new__)
    more = kind.model_config.get("extra") == "allow"
    hidden = frozenset(kind.__private_attributes__)

    def parts(value: BaseModel) -> Fields:
        found = value.__dict__ | (value.__pydantic_extra__ or {})
        private = value.__pydantic_private__ or {}
        found |= {one: private[one] for one in hidden & private.keys()}
        return {one: found[one] for one in sorted(found)}

    def build(found: Fields) -> object:
        made, assign = new(kind), object.__setattr__
        assign(made, "__dict__", {one: found[one] for one in fields.names})
        assign(made, "__pydantic_fields_set__", set(fields.names))
        rest = {one: found[one] for one in found.keys() - known.keys() - hidden}
        assign(made, "__pydantic_extra__", rest if more else None)
        private = {one: found[one] for one in found.keys() & hidden}
        assign(made, "__pydantic_private__", private if hidden else None)
        return made

    def complete(found: object) -> object:
        known_parts = fields.complete(found)
        return build({**found, **known_parts} if isinstance(found, dict) else known_parts)

    of_fields = _of_fields(name, kind, fields, parts, build)
    return dataclasses.replace(of_fields, build=complete)


def _enum(name: str, kind: type[Enum]) -> NamedType:
    def build(part: object) -> object:
        if issubclass(kind, Flag):
            return kind(part)
        if type(part) is not str:
            raise ValueError(f"{name} has no member {part!r}")
        return kind[part]

    def part(value: Enum) -> object:
        return value.value if isinstance(value, Flag) else value.name

    form = Form(NAMED, lambda value: [name, part(value)], immutable=True)
    return NamedType(name, kind, part, build, form)


def _message(kind: type[Any]) -> NamedType:
    name: str = kind.DESCRIPTOR.full_name

    def part(value: _Message) -> object:
        return value.SerializeToString(deterministic=True)

    return NamedType(
        name, kind, part, kind.FromString, Form(NAMED, lambda value: [name, part(value)])
    )


def supported(kinds: Iterable[object]) -> Iterator[type]:
    """Yield the classes among some objects whose values the codec can encode by name."""
    for kind in kinds:
        if isinstance(kind, type) and describe(kind) is not None:
            yield kind
