"""I4 for values: what `decode` gives back is what `encode` took, in value and in type."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from threading import Thread

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meander.state.encoding.codec import (
    MAX_DEPTH,
    UnencodableError,
    decode,
    decode_strict,
    encode,
    encode_sealed,
    seal,
    unseal,
)

any_text = st.text(st.characters(exclude_categories=()))
zones = st.none() | st.builds(
    timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), st.just("here")
)
atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats()
    | any_text
    | st.binary()
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=zones | st.just(UTC))
)
hashables = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=6,
)
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=4)
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    """Equal in value and type at every depth; NaN is itself, -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)) and isinstance(b, (set, frozenset)):
        return same(sorted(a, key=encode), sorted(b, key=encode))
    if isinstance(a, datetime) and isinstance(b, datetime):
        return (a.replace(tzinfo=None), a.fold, a.tzinfo, a.tzname()) == (
            b.replace(tzinfo=None), b.fold, b.tzinfo, b.tzname(),
        )  # fmt: skip
    return a == b


@given(values)
def test_a_value_comes_back_equal_in_value_and_type(value: object) -> None:
    assert same(decode(encode(value)), value)


@given(values)
def test_encoding_what_came_back_gives_the_same_bytes(value: object) -> None:
    assert encode(decode(encode(value))) == encode(value)


@given(values, st.integers(0), st.integers(0, 255))
@example(b"", 0, 0xC1)
@example((None, None), 3, 0)  # An extension without a builder.
@example((None, None), 3, 2)  # A set with wrong elements.
def test_an_altered_byte_is_refused_as_a_value_error_or_gives_a_value(
    value: object, at: int, byte: int
) -> None:
    encoded = bytearray(encode(value))
    encoded[at % len(encoded)] = byte
    with suppress(ValueError):
        encode(decode_strict(bytes(encoded)))


@given(st.lists(hashables, max_size=8))
def test_equal_sets_give_equal_bytes_however_they_were_built(items: list[object]) -> None:
    forwards = set(items)
    backwards = dict.fromkeys(reversed(list(forwards)))
    assert encode(forwards) == encode(set(backwards))
    assert encode(frozenset(forwards)) == encode(frozenset(backwards))


@pytest.mark.parametrize("many", [[8, 0, 16], [-1, -2], ["a", "b", "c"]])
def test_sets_that_iterate_in_different_orders_give_equal_bytes(many: list[object]) -> None:
    grown = set(range(1000)) | set(many)
    for item in range(1000):
        if item not in many:
            grown.discard(item)
    assert encode(grown) == encode(set(many))


@pytest.mark.parametrize(
    "value",
    [
        True, 1, 1.0, -0.0, math.nan, math.inf, 2**63, 2**64, -(2**63) - 1, 10**400, "\ud800", "",
        b"", (), [], {}, set(), frozenset(), ((),), [()], {(): []}, {1: "a", "1": "b", 1.5: None},
        {"z": 1, "a": 2}, (1, [2, (3, {4: {5}})]), Decimal("-0"), Decimal("1E+400"),
        Decimal("NaN7"), date.min, timedelta.min,
        datetime(2013, 1, 1, fold=1),  # noqa: DTZ001 (users have naive ones)
        datetime(2013, 1, 1, tzinfo=timezone(timedelta(seconds=1), "odd")),
    ],
)  # fmt: skip
def test_the_corners_of_each_type_come_back(value: object) -> None:
    back = decode(encode(value))
    if isinstance(value, Decimal):
        assert isinstance(back, Decimal) and back.as_tuple() == value.as_tuple()
    else:
        assert same(back, value)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 (it is what users have)


@dataclass(frozen=True)
class Point:
    x: int


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED, Pair(1, 2), OrderedDict(a=1), np.complex64(1), np.array([1]),
        Point(1), Text("a"), bytearray(b"a"), memoryview(b"a"), msgpack.ExtType(1, b""),
        msgpack.Timestamp(1), object(), range(3), 1j, int, len,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_would_come_back_as_another_type_is_refused_by_name(value: object) -> None:
    holder: object
    for holder in ([value], (0, value), {"k": [value]}, value):
        for refuse in (encode, seal):
            with pytest.raises(UnencodableError, match=type(value).__qualname__):
                refuse(holder)


def test_a_refusal_names_the_path_to_the_offender() -> None:
    with pytest.raises(
        UnencodableError, match=r"^value\['seen'\]\[1\]: it is of type numpy.complex"
    ):
        encode({"seen": (1, np.complex128(2))})
    with pytest.raises(UnencodableError, match=r"\['a'\]\[3\].*Colour"):
        encode({"a": [0, 1, 2, Colour.RED, object()]})


def test_every_element_is_looked_at_even_after_one_that_can_change() -> None:
    with pytest.raises(UnencodableError):
        seal(([], object()))


def test_a_value_that_contains_itself_is_refused() -> None:
    knot: list[object] = []
    knot.append(knot)
    with pytest.raises(UnencodableError, match="contains itself"):
        encode(knot)


def test_nesting_comes_back_up_to_the_limit_and_is_refused_beyond() -> None:
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {0: v}, lambda v: frozenset([v])):
        value: object = 1
        for _ in range(MAX_DEPTH):
            value = wrap(value)
        assert same(decode(encode(value)), value)
        with pytest.raises(UnencodableError):
            encode(wrap(wrap(value)))


def test_what_can_change_in_place_is_sealed_as_it_was() -> None:
    state = {"seen": [1]}
    sealed = seal(state)
    state["seen"].append(2)
    first, second = unseal(sealed), unseal(sealed)
    assert first == second == {"seen": [1]}
    assert first is not second


@given(values)
def test_sealing_keeps_the_value_and_its_bytes(value: object) -> None:
    sealed = seal(value)
    assert same(unseal(sealed), value)
    assert encode_sealed(sealed) == encode(value)


@given(hashables)
def test_what_cannot_change_is_sealed_without_a_copy(value: object) -> None:
    assert unseal(seal(value)) is value


def test_threads_do_not_mix_their_bytes() -> None:
    value = [tuple(range(50)), {"k": (1, (2, (3,)))}] * 50
    expected = encode(value)
    wrong: list[bytes] = []

    def run() -> None:
        wrong.extend(data for data in (encode(value) for _ in range(50)) if data != expected)

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
