"""A column holds each value of its sample, and refuses a value that it would change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pytest

from meander.connectors.spark.column_types import type_of


@dataclass
class Order:
    id: int
    price: float | None = None


class Place(NamedTuple):
    city: str
    zip: int


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sample", "kind", "held"),
    [
        ([1, None, 2], "int64", [1, None, 2]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([True, 1], "string", ["true", "1"]),
        ([1 << 63], "string", ["9223372036854775808"]),
        ([NOON], "timestamp[us, tz=UTC]", [NOON]),
        ([date(2026, 3, 1)], "date32[day]", [date(2026, 3, 1)]),
        ([Decimal("1.50")], "string", ['"1.50"']),
        ([b"\xff"], "binary", [b"\xff"]),
        ([(1, "a"), (2, "b")], "struct<_1: int64, _2: string>", None),
        ([(1,), (1, 2)], "list<item: int64>", [[1], [1, 2]]),
        ([{3, 1}], "list<item: int64>", None),
        ([Order(1), Order(2, 0.5)], "struct<id: int64, price: double>", None),
        ([Place("Wil", 9500)], "struct<city: string, zip: int64>", [{"city": "Wil", "zip": 9500}]),
        ([{"n": 1}, {"n": 2, "m": "x"}, {}], "struct<n: int64, m: string>", None),
        ([Counter(a=1), Counter(b=2)], "map<string, int64>", [[("a", 1)], [("b", 2)]]),
        ([{"a": 1}, {"b": "x"}], "string", ['{"a":1}', '{"b":"x"}']),
        ([{1: 2}], "string", ['{"1":2}']),
        ([{"n": [{"m": 1}, {"m": None}]}], "struct<n: list<item: struct<m: int64>>>", None),
        ([None], "string", [None]),
        ([], "string", []),
    ],
)  # fmt: skip
def test_a_column_holds_its_sample(
    sample: list[object], kind: str, held: list[object] | None
) -> None:
    column = type_of(sample)
    array = column.array(sample)
    assert str(array.type) == kind
    assert array.equals(pa.array([column.convert(value) for value in sample], column.arrow))
    if held is not None:
        assert array.to_pylist() == held


@pytest.mark.parametrize(
    ("sample", "value", "reason"),
    [
        (1, "a", "'a' is no bigint"),
        (1, True, "True is no bigint"),
        (1, 1.0, "1.0 is no bigint"),
        (1, 1 << 63, "9223372036854775808 is no bigint"),
        (0.5, (1 << 53) + 1, "9007199254740993 is no double"),
        ({"n": 1}, {"n": 1, "m": 2}, "field 'm' is none of its column's"),
        ({"n": 1}, [1], "is no struct"),
        ((1, 2), (1, 2, 3), "is no tuple of 2"),
        ([1], 1, "1 is no array"),
        ([1], ["a"], "'a' is no bigint"),
    ],
)
def test_a_column_refuses_a_value_that_it_would_change(
    sample: object, value: object, reason: str
) -> None:
    column = type_of([sample])
    with pytest.raises(ValueError, match=reason):
        column.convert(value)
    with pytest.raises(ValueError):
        column.array([sample, value])
