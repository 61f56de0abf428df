"""Classes that a flow names: their objects come back, and bytes build nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Any, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.schemas.errors import SetupError
from meander.state.encoding import forms
from meander.state.encoding.codec import (
    UnencodableError,
    decode,
    decode_strict,
    encode,
    encode_key,
    is_immutable,
    seal,
    unseal,
)
from meander.state.encoding.named_types import NamedTypes, in_use, use


class Colour(Enum):
    RED = "r"
    BLUE = "b"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Mode(StrEnum):
    FAST = "fast"


class Access(IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Line:
    price: Decimal
    count: int = 1
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    at: datetime
    lines: list[Line]
    colour: Colour = Colour.RED

    def __call__(self) -> None:
        """An object that can be called must not count as a builder."""


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    size: Size = Size.SMALL
    _seen: int = pydantic.PrivateAttr(default=0)


class Click(msgspec.Struct, frozen=True, kw_only=True):
    page: str
    where: Point | None = None


KINDS = [Colour, Size, Mode, Access, Point, Line, Order, Customer, Click]


@pytest.fixture(autouse=True)
def _named() -> Iterator[None]:
    before = in_use()
    use(NamedTypes(KINDS))
    yield
    use(before)


scalars = st.sampled_from([*forms.SCALARS.values()]).flatmap(
    lambda kind: (
        st.text(max_size=4).map(np.str_)
        if kind is np.str_
        else st.binary(max_size=4).map(np.bytes_)
        if kind is np.bytes_
        else st.booleans().map(np.bool_)
        if kind is np.bool_
        else st.integers(0, 127).map(kind)
        if np.dtype(kind).kind in "iu"
        else st.floats(width=16).map(kind)
    )
)
zoned = st.datetimes(
    min_value=datetime(1980, 1, 1),  # noqa: DTZ001 (hypothesis wants it naive)
    timezones=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]).map(ZoneInfo),
)
members = st.sampled_from([Colour.BLUE, Size.LARGE, Mode.FAST, Access.READ | Access.WRITE])
points = st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False))
lines = st.builds(Line, st.decimals(allow_nan=False), st.integers(), st.sets(st.text(max_size=3)))
orders = st.builds(Order, st.uuids(), zoned, st.lists(lines, max_size=2), st.sampled_from(Colour))
customers = st.builds(
    lambda name, size, more: Customer(name=name, size=size, **more),
    st.text(), st.sampled_from(Size), st.dictionaries(st.just("vip"), st.booleans()),
)  # fmt: skip
clicks = st.builds(Click, page=st.text(), where=st.none() | points)
counts = st.dictionaries(st.text(max_size=2), st.integers(-3, 3), max_size=3)
leaves = scalars | zoned | members | points | st.uuids()
objects = leaves | orders | customers | clicks | counts.map(Counter)
values = st.recursive(
    objects,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: deque(items, 5))
        | st.lists(inner, max_size=3)
        | st.dictionaries(leaves, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.dictionaries(leaves, inner, max_size=3).map(
            lambda items: defaultdict(cast(Any, Line), items)
        )
        | st.tuples(inner)
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type at every depth."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.floating):
        return bool(a.tobytes() == b.tobytes())
    if isinstance(a, datetime):
        return (a.replace(tzinfo=None), a.fold, a.tzinfo) == (
            b.replace(tzinfo=None), b.fold, b.tzinfo,
        )  # fmt: skip
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and same([*a], [*b])
    if isinstance(a, defaultdict):
        return a.default_factory is b.default_factory and same(dict(a), dict(b))
    if isinstance(a, dict):
        return same([*a.items()], [*b.items()])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Order):
        return all(same(getattr(a, name), getattr(b, name)) for name in Order.__slots__)
    return bool(a == b)


@given(values)
def test_a_value_comes_back_equal_in_value_and_type(value: object) -> None:
    assert same(decode(encode(value)), value)
    assert same(decode_strict(encode(value)), value)
    assert encode(decode(encode(value))) == encode(value)


@given(values)
def test_a_key_comes_back_with_its_own_bytes(value: object) -> None:
    key = encode_key(value)
    assert encode_key(decode(key)) == key == encode_key(decode(encode(value)))


@given(values, st.integers(0), st.integers(0, 255))
def test_an_altered_byte_is_refused_as_a_value_error_or_gives_a_value(
    value: object, at: int, byte: int
) -> None:
    encoded = bytearray(encode(value))
    encoded[at % len(encoded)] = byte
    with suppress(ValueError):
        encode(decode_strict(bytes(encoded)))


@given(st.binary(max_size=40))
def test_random_bytes_behind_a_mark_are_refused_as_a_value_error_or_give_a_value(
    data: bytes,
) -> None:
    for mark in (*(one.mark for one in forms.FORMS.values()), forms.DEFAULTDICT, forms.NAMED):
        with suppress(ValueError):
            encode(decode_strict(b"\x93" + msgpack.packb(mark) + data))


@given(values)
def test_a_sealed_state_is_a_copy_unless_it_cannot_change(value: object) -> None:
    assert same(unseal(seal(value)), value)
    if not is_immutable(value):
        assert unseal(seal(value)) is not value


@pytest.mark.parametrize("name", ["Line", "Missing", "os.system", "builtins.eval"])
def test_bytes_build_no_class_that_the_flow_does_not_name(name: str) -> None:
    use(NamedTypes([Colour]))
    data = msgpack.packb([forms.NAMED, name, {"price": "1"}])
    with pytest.raises(ValueError, match=f"the flow names no type '{name}'"):
        decode_strict(data)


def test_bytes_build_no_factory_that_the_flow_does_not_name() -> None:
    data = msgpack.packb([forms.DEFAULTDICT, "Missing", {}])
    with pytest.raises(ValueError, match="Missing"):
        decode_strict(data)


def test_an_object_of_an_unnamed_class_is_refused_with_object_cause_and_remedy() -> None:
    use(NamedTypes([]))
    with pytest.raises(
        UnencodableError,
        match=r"value\['by'\]\[0\]: it is of type .*Line, which the flow does not name; name it in "
        r"Flow\(types=\[Line\]\), or annotate",
    ):
        encode({"by": [Line(Decimal(1))]})


def test_a_factory_without_a_name_is_refused() -> None:
    with pytest.raises(UnencodableError, match="its default_factory is <function .* a class"):
        encode([defaultdict(lambda: 0)])


def test_a_field_that_no_codec_takes_is_refused_by_its_path() -> None:
    with pytest.raises(UnencodableError, match=r"value\['tags'\]: it is of type builtins.object"):
        encode(Line(Decimal(1), tags=object()))  # type: ignore[arg-type]


def test_equal_keys_have_equal_bytes_however_they_were_built() -> None:
    berlin = datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    pairs: list[tuple[object, object]] = [
        (Point(0.0, 1.0), Point(-0.0, 1.0)),
        (Line(Decimal("1.50")), Line(Decimal("1.5"))),
        (berlin, berlin.astimezone(ZoneInfo("America/New_York"))),
        (Counter(a=1, b=0), Counter(a=1)),
        (deque([1], 3), deque([1])),
        (defaultdict(int, a=1, b=2), defaultdict(None, b=2, a=1)),
        (np.float64(0.0), np.float64(-0.0)),
    ]
    for one, other in pairs:
        assert one == other
        assert encode_key(one) == encode_key(other)


def test_values_of_other_types_are_other_keys() -> None:
    keys = [1, Size.SMALL, np.int64(1), np.int32(1), "SMALL", Point(1, 2), (1, 2), np.float64(1)]
    assert len({encode_key(key) for key in keys}) == len(keys)


def test_a_new_field_takes_its_default_and_a_removed_one_stays_behind() -> None:
    @dataclass
    class Order:
        id: int
        colour: str

    use(NamedTypes([Order]))
    data = encode([Order(7, "red")])

    def changed() -> type:
        @dataclass
        class Order:
            id: int
            lines: list[int] = field(default_factory=list)

        return Order

    kind = changed()
    use(NamedTypes([kind]))
    assert decode_strict(data) == [kind(7, [])]


def test_a_new_field_without_a_default_is_an_error_that_names_it() -> None:
    @dataclass
    class Order:
        id: int

    use(NamedTypes([Order]))
    data = encode([Order(7)])

    def changed() -> type:
        @dataclass
        class Order:
            id: int
            customer: str

        return Order

    use(NamedTypes([changed()]))
    with pytest.raises(ValueError, match="Order has no value of its field 'customer'"):
        decode_strict(data)


def test_a_model_keeps_its_private_attributes() -> None:
    customer = Customer(name="Ann")
    customer._seen = 7
    back = decode(encode(customer))
    assert isinstance(back, Customer)
    assert (back, back._seen) == (customer, 7)


def test_two_classes_of_one_name_are_refused() -> None:
    def other() -> type:
        class Colour(Enum):
            GREEN = 1

        return Colour

    with pytest.raises(SetupError, match="type 'Colour': .* both define one; rename one of them"):
        NamedTypes([Colour, other()])


@pytest.mark.parametrize("value", [np.str_("a\0"), np.str_("\0"), np.bytes_(b"a\0")], ids=repr)
def test_a_text_of_numpy_keeps_the_zeros_at_its_end(value: Any) -> None:
    found, shorter = decode(encode(value)), type(value)(value[:-1])
    assert type(found) is type(value)
    assert found == value
    assert encode(found) == encode(value) != encode(shorter)
