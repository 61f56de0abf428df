"""Shapes: native code builds and copies the objects that their bytes would build, and no others."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.state.encoding import codec
from meander.state.encoding.cells import weigh
from meander.state.encoding.codec import Sealed, SealedCopy, decode, encode, seal, unseal
from meander.state.encoding.named_types import NamedTypes, in_use, use
from meander.state.encoding.shapes import shape_of


class Colour(Enum):
    RED = "r"


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Bid(msgspec.Struct):
    auction: Any
    price: Any = None


class FrozenBid(msgspec.Struct, frozen=True, kw_only=True):
    auction: Any
    price: Any = None


@dataclass
class Line:
    item: Any
    count: Any = 1


@dataclass(slots=True)
class Slotted:
    item: Any
    count: Any = 1


@dataclass(frozen=True)
class Fixed:
    item: Any
    count: Any = 1


@dataclass(frozen=True, slots=True)
class Single:
    item: Any


WITH_SHAPES = [Pair, Bid, FrozenBid, Line, Slotted, Fixed, Single, Colour]


class Checked(msgspec.Struct):
    price: int

    def __post_init__(self) -> None:
        self.price += 1


class Open(msgspec.Struct, dict=True):
    price: int


class Base:
    __slots__ = ("hidden",)


@dataclass(slots=True)
class WithHidden(Base):
    price: int


@dataclass
class Guessing:
    price: int

    def __getattr__(self, name: str) -> int:
        return 7


class Renamed(Pair):
    """A named tuple with a dict of its own."""


class Turned(NamedTuple):
    price: int

    def __iter__(self) -> Iterator[Any]:
        return iter((0,))


class Half:
    """The price of an object is not its field."""

    @property
    def price(self) -> int:
        return 3

    @price.setter
    def price(self, value: int) -> None:
        """It keeps nothing."""


Derived: Any = dataclass(type("Derived", (Half,), {"__annotations__": {"price": int}}))


WITHOUT = [Checked, Open, WithHidden, Guessing, Renamed, Turned, Derived]


@pytest.fixture(autouse=True)
def _named() -> Iterator[None]:
    before = in_use()
    use(NamedTypes([*WITH_SHAPES, Checked, Tail]))
    yield
    use(before)


@dataclass
class Tail:
    items: list[Any] = field(default_factory=list)

    @cached_property
    def size(self) -> int:
        return len(self.items)


atoms = st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
zoned = st.just(datetime(2026, 1, 1, tzinfo=UTC))


def objects(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    made = [st.builds(one, items, items) for one in (Pair, Bid, Line, Slotted, Fixed)]
    return st.one_of(
        *made, st.builds(lambda a, b: FrozenBid(auction=a, price=b), items, items),
        st.builds(Single, items), st.just(Colour.RED),
    )  # fmt: skip


values = st.recursive(
    objects(atoms) | atoms | zoned,
    lambda inner: (
        objects(inner)
        | st.lists(inner, max_size=2)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=8,
)


def _within(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, dict):
        return [*value.values()]
    return [getattr(value, name) for name in ("auction", "item") if hasattr(value, name)]


def changed(value: Any) -> None:
    """Change in place what can be changed, at every depth."""
    for one in _within(value):
        changed(one)
    match value:
        case list():
            value.append("new")
        case dict():
            value["new"] = 1
        case Bid():
            value.auction = "new"
        case Line() | Slotted():
            value.item = "new"


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and encode(a) == encode(b)


@given(values)
def test_a_sealed_state_is_the_one_that_its_bytes_build_whatever_becomes_of_the_value(
    value: Any,
) -> None:
    """I4; a function that keeps a reference cannot change a stored state."""
    data, sealed = encode(value), seal(value)
    assert codec.encode_sealed(sealed) == data
    assert same(unseal(sealed), decode(data))
    changed(unseal(sealed))
    changed(value)
    assert codec.encode_sealed(sealed) == data
    assert same(unseal(sealed), decode(data))


@given(st.lists(values, max_size=4) | st.lists(st.builds(Bid, atoms, atoms), min_size=1))
def test_own_copies_are_those_that_bytes_build_whatever_becomes_of_the_values(
    found: list[Any],
) -> None:
    copies, data = codec.own_copies(found), encode(found)
    if copies is not None:
        assert same(copies, decode(data))
        for one in found:
            changed(one)
        assert same(copies, decode(data))


@given(values)
def test_a_value_without_a_copy_cannot_change(value: Any) -> None:
    data, fixed = encode(value), codec.is_immutable(value)
    assert fixed == codec._inspect(value, ())
    if fixed:
        changed(value)
        assert encode(value) == data


@given(values)
def test_a_sealed_copy_weighs_at_least_what_python_reports_of_its_parts(value: Any) -> None:
    """I6: states in memory have a bound."""
    if isinstance(sealed := seal(value), SealedCopy):
        assert weigh(sealed) >= weigh(sealed.value) > 0
        assert weigh(sealed) == weigh(sealed)


def test_the_weight_of_a_state_covers_the_text_in_its_objects() -> None:
    for made in (Fixed("x" * 5000), Pair("x" * 5000), Bid("x" * 5000), (1, (Single("x" * 5000),))):
        assert weigh(seal(made)) > 5000


def test_objects_of_atoms_have_no_bytes_in_memory_and_frozen_ones_no_copy() -> None:
    bid = Bid(1, 2)
    assert isinstance(sealed := seal(bid), SealedCopy) and unseal(sealed) is not bid
    assert isinstance(seal((None, (Line("a"), Slotted("b")))), SealedCopy)
    frozen = [Pair(1), Fixed("a"), Single((1, 2)), FrozenBid(auction=1), (Fixed(1), Colour.RED)]
    assert all(unseal(seal(one)) is one for one in frozen)
    assert isinstance(seal(Bid([1])), Sealed) and isinstance(seal(Fixed([1])), Sealed)


@pytest.mark.parametrize("kind", WITH_SHAPES)
def test_a_class_that_is_its_fields_has_a_shape(kind: type) -> None:
    assert shape_of(kind) is not None


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_class_whose_methods_or_attributes_take_part_has_none(kind: type) -> None:
    assert shape_of(kind) is None


def test_an_object_with_further_attributes_keeps_its_fields_alone() -> None:
    """Results must not depend on moves, so a state loses them where it does not move too."""
    line = Line("a")
    cast(Any, line).more = 1
    assert not hasattr(unseal(seal(line)), "more")
    tail = Tail([1])
    assert tail.size == 1
    assert unseal(seal(tail)) == tail and "size" not in vars(unseal(seal(tail)))


def test_a_struct_that_checks_itself_does_so_whenever_it_is_read() -> None:
    assert cast(Checked, unseal(seal(Checked(1)))).price == copy.copy(Checked(1)).price + 1
