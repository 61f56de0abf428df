"""Equal keys are one group: I2 and I3 hold per key, so what is equal has the same bytes, and only
that."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow, KafkaSink, KafkaSource, columns
from meander.state.encoding.codec import decode, encode_key, encode_keys
from meander.testing import TestFlow

ZONES = [UTC, *(timezone(timedelta(hours=hours), name)
                for hours, name in ((1, "CET"), (1, "here"), (-5, "EST"), (0, "GMT")))]  # fmt: skip
MOMENTS = [datetime(2020, 1, 1, 6, tzinfo=UTC) + timedelta(hours=n) for n in range(2)]
EAST, FAR_EAST, WEST, FAR_WEST = (timezone(timedelta(hours=n)) for n in (1, 2, -1, -2))
ENDS = [
    datetime(1, 1, 1, 0, tzinfo=EAST),
    datetime(1, 1, 1, 1, tzinfo=FAR_EAST),
    datetime(9999, 12, 31, 23, tzinfo=WEST),
    datetime(9999, 12, 31, 22, tzinfo=FAR_WEST),
]
"""In UTC they lie before the first day that there is, or behind the last."""
FORMS = """
    0 -0 0.00 0E+7 1 1.0 1E0 10 1E+1 10.0 0.1 0.10 1E-1 1E+40 10E+39 100E+38 Infinity -Infinity
    123456789012345678901234567890.10 123456789012345678901234567890.1 NaN sNaN NaN7
"""
DECIMALS = list(map(Decimal, FORMS.split()))

atoms = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 2, 10, 1 << 70, "", "a", "1", b"", b"a", b"1"]),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 10.0, math.inf, math.nan, -math.nan]),
    st.sampled_from([date(2020, 1, 1), timedelta(0), timedelta(hours=24), timedelta(days=1)]),
    st.sampled_from(DECIMALS),
    st.builds(datetime.astimezone, st.sampled_from(MOMENTS), st.sampled_from(ZONES)),
    st.builds(lambda fold: datetime(2020, 1, 1, fold=fold), st.integers(0, 1)),  # noqa: DTZ001
    st.sampled_from(ENDS),
)
hashables = st.recursive(
    atoms.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    atoms | hashables,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(hashables, max_size=3)
        | st.dictionaries(hashables, inner, max_size=3)
    ),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equal as docs/concepts/bins.md says of keys: as Python has it, but of the same types at
    every depth, and NaN is one key."""
    if type(a) is not type(b):
        return False
    match a:
        case Decimal() | float() if nan(a) or nan(b):
            return nan(a) and nan(b)
        case tuple() | list():
            return len(a) == len(b) and all(map(same, a, b))
        case set() | frozenset():
            return matched(a, b)
        case dict():
            return matched(a.items(), b.items())
    return bool(a == b)


def nan(number: float | Decimal) -> bool:
    return number.is_nan() if isinstance(number, Decimal) else math.isnan(number)


def matched(a: Iterable[object], b: Iterable[object]) -> bool:
    """Whether each of one has its like in the other."""
    left = [*b]
    for item in a:
        like = next((n for n, other in enumerate(left) if same(item, other)), None)
        if like is None:
            return False
        left.pop(like)
    return not left


def other_form(value: Any, rng: random.Random) -> Any:
    """A value equal to another, of the same types, as different as it can be."""
    match value:
        case float() if value == 0:
            return -value
        case Decimal() if value.is_finite() and value.adjusted() < 50:
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            return Decimal((sign, (*digits, 0, 0), exponent - 2))
        case datetime() if value.tzinfo is not None and MOMENTS[0] <= value <= MOMENTS[1]:
            return value.astimezone(rng.choice(ZONES))
        case datetime() if value.tzinfo is None:
            return value.replace(fold=1 - value.fold)
        case tuple() | list():
            return type(value)(other_form(item, rng) for item in value)
        case set() | frozenset():
            return type(value)(shuffled((other_form(item, rng) for item in value), rng))
        case dict():
            pairs = ((other_form(k, rng), other_form(v, rng)) for k, v in value.items())
            return dict(shuffled(pairs, rng))
    return value


def shuffled(items: Iterable[Any], rng: random.Random) -> Iterator[Any]:
    many = [*items]
    rng.shuffle(many)
    return iter(many)


@given(values, values)
def test_two_values_have_the_same_bytes_only_where_they_are_equal(a: object, b: object) -> None:
    assert (encode_key(a) == encode_key(b)) == same(a, b)


@given(values, st.randoms(use_true_random=False))
def test_equal_values_have_the_same_bytes_in_whatever_form(a: object, rng: random.Random) -> None:
    b = other_form(a, rng)
    assert same(a, b) and encode_key(a) == encode_key(b)


@given(st.lists(values, max_size=5))
def test_what_a_user_sees_of_a_key_is_equal_to_it_and_the_same_for_all(many: list[object]) -> None:
    for value, key in zip(many, encode_keys(many), strict=True):
        assert key == encode_key(value)
        seen = decode(key)
        assert same(seen, value) and encode_key(seen) == key


APART: dict[str, tuple[object, object]] = {
    "true and one": (True, 1),
    "one and a float": (1, 1.0),
    "a float and a decimal": (1.0, Decimal(1)),
    "text and bytes": ("a", b"a"),
    "a list and a tuple": ([1], (1,)),
    "a set and a frozen one": ({1}, frozenset({1})),
    "in a tuple": ((1, 2), (True, 2)),
    "a moment with a zone and without": (datetime(2020, 1, 1), MOMENTS[0]),  # noqa: DTZ001
}


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_keys_of_different_types_stay_apart(one: object, other: object) -> None:
    assert encode_key(one) != encode_key(other)


# -- in a flow

PAIRS: dict[str, tuple[Any, Any]] = {
    "zero": (0.0, -0.0),
    "decimals": (Decimal(1), Decimal("1.0")),
    "moments": (MOMENTS[0], MOMENTS[0].astimezone(ZONES[3])),
    "dicts": ({"city": "Rome", "zip": 1}, {"zip": 1, "city": "Rome"}),
    "in a tuple": (("a", Decimal("2.50")), ("a", Decimal("2.5"))),
    "in a list of dicts": ([{"a": 0.0, "b": 1}], [{"b": 1, "a": -0.0}]),
}
FOLDS: dict[str, Callable[[Any], Any]] = {
    "fold": lambda keyed: keyed.fold("n", int, lambda n, _: (n + 1, n + 1)),
    "columns": lambda keyed: keyed.fold("n", columns.count()),
}


@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_equal_keys_are_one_group_also_from_given_states(one: Any, other: Any, fold: Any) -> None:
    """I3: in whatever form a record's function, or a table of states, has a key."""
    flow = Flow("f", bins=8)
    keyed = flow.source(KafkaSource("in")).key_by(lambda n: one if n % 2 else other)
    fold(keyed).sink(KafkaSink("out", key=lambda _: None))
    hashable = isinstance(other, (float, Decimal, datetime))
    states: dict[str, dict[object, object]] | None = {"n": {other: 5}} if hashable else None
    first = 5 if hashable else 0
    with TestFlow(flow, workers=2, states=states) as run:
        run.feed("in", 1, 2, 3)
        run.run()
        assert sorted(map(int, map(str, run.values("out")))) == [first + n for n in (1, 2, 3)]
        assert len(run.state()["n"]) == 1
        assert run.owner(one) == run.owner(other)
