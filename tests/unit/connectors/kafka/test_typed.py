"""Typed values and CSV: records as objects of a class, with an error for what does not fit."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypedDict, assert_type, cast
from uuid import UUID

import msgspec
import numpy as np
import pydantic
import pytest

from meander import Flow, KafkaSink, KafkaSource, SetupError, Stream, csv, typed
from meander import field as at_field
from meander.connectors.kafka.formats import encoder
from meander.testing import TestFlow


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int = 5


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    price: Decimal
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)


@dataclass
class Track:
    points: list[Point]


class Page(TypedDict):
    url: str
    seen: int


class Customer(pydantic.BaseModel):
    name: str
    age: int = 7


class Click(msgspec.Struct):
    page: str


@dataclass
class Tally:
    by: Counter[str]
    last: deque[int]
    seen: defaultdict[str, list[int]]


ORDER = Order(UUID(int=7), datetime(2024, 5, 1, tzinfo=UTC), Decimal("9.95"), tags=["a"])
ORDER_JSON = (
    b'{"id":"00000000-0000-0000-0000-000000000007","at":"2024-05-01T00:00:00Z",'
    b'"price":"9.95","colour":"red","tags":["a"]}'
)
VALUES: list[tuple[Any, object, bytes]] = [
    (Order, ORDER, ORDER_JSON),
    (Point, Point(1), b'{"x":1,"y":5}'),
    (Track, Track([Point(1, 2)]), b'{"points":[{"x":1,"y":2}]}'),
    (Page, Page(url="/", seen=1), b'{"seen":1,"url":"/"}'),
    (Customer, Customer(name="Ann"), b'{"name":"Ann","age":7}'),
    (Click, Click("/"), b'{"page":"/"}'),
    (list[Click], [Click("/")], b'[{"page":"/"}]'),
    (Tally, Tally(Counter(a=1), deque([2]), defaultdict(list, b=[3])),
     b'{"by":{"a":1},"last":[2],"seen":{"b":[3]}}'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "data"), VALUES)
def test_a_value_is_written_as_json_and_read_as_an_object(
    kind: type[Any], value: object, data: bytes
) -> None:
    assert typed(kind).encode(value) == data
    back = typed(kind).decode(data)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize("data", [b"{}", b'{"id": 7}', b"[]", b"x", b'{"x": "1"}'])
def test_json_that_does_not_fit_is_refused_as_a_value_error(data: bytes) -> None:
    for kind in (Order, Page, Customer, Click):
        with pytest.raises(ValueError, match="."):
            typed(kind).decode(data)


def test_an_object_of_another_class_is_refused() -> None:
    with pytest.raises(TypeError, match="it takes Click, not Point"):
        typed(Click).encode(Point(1))  # type: ignore[arg-type]


def test_a_row_of_csv_is_a_dict_of_texts_or_an_object() -> None:
    rows = csv(["id", "city"])
    assert rows.decode(b'7,"a,""b"""') == {"id": "7", "city": 'a,"b"'}
    assert rows.encode({"id": 7, "city": 'a,"b"'}) == b'7,"a,""b"""'  # type: ignore[dict-item]
    points = csv(Point, delimiter=";")
    assert points.decode(b"1;2") == Point(1, 2)
    assert points.encode(Point(3)) == b"3;5"


@pytest.mark.parametrize("data", [b"", b"1", b"1,2,3", b"1,2\n3,4", b"a,b", b'1,"', b"\xff,1"])
def test_a_row_that_does_not_fit_is_refused_as_an_error_of_the_record(data: bytes) -> None:
    with pytest.raises(Exception, match="."):
        csv(Point).decode(data)


def test_wrong_columns_are_refused() -> None:
    for columns in ([], ["a", "a"], "ab", [1]):
        with pytest.raises(SetupError, match="format csv: its columns are"):
            csv(cast(Any, columns))
    with pytest.raises(SetupError, match="its delimiter is '::'; give one character"):
        csv(["a"], delimiter="::")


def test_json_of_a_sink_takes_objects() -> None:
    value = [Click("/"), np.int64(7), ORDER.id, Colour.RED, Customer(name="A"), deque([1])]
    assert encoder("json")(value) == (
        b'[{"page":"/"},7,"00000000-0000-0000-0000-000000000007","red",{"name":"A","age":7},[1]]'
    )


def test_type_checkers_see_the_type_of_a_source() -> None:
    flow = Flow("f")
    source = KafkaSource("orders", value=typed(Order))
    assert_type(source, KafkaSource[Order])
    assert_type(flow.source(source), Stream[Order])
    assert_type(flow.source(KafkaSource("clicks", csv(Click)), "b"), Stream[Click])
    assert_type(flow.source(KafkaSource("any"), "c"), Stream[Any])


def test_a_typed_flow_reads_objects_and_their_times_and_writes_them() -> None:
    flow = Flow("f")
    orders = flow.source(KafkaSource("orders", value=typed(Order), time=at_field("at")))
    keyed = orders.key_by(lambda order: order.id)
    keyed.fold("last", lambda: None, lambda last, order: (order, order)).sink(
        KafkaSink("out", value=typed(Order), key=key_bytes)
    )
    with TestFlow(flow) as run:
        run.feed("orders", ORDER, b'{"id": 7}', None)
        run.run()
        assert run.values("out") == [ORDER]
        assert run.states("last") == {ORDER.id: ORDER}
        assert [record.key for record in run.records("out")] == [ORDER.id.bytes]
        letters = [(one.value, one.reason) for one in run.dead_letters]
    assert letters[0][0] == b'{"id": 7}'
    assert "its value cannot be read: ValidationError: Expected" in letters[0][1]


def key_bytes(order: Order) -> bytes:
    return order.id.bytes


def test_a_naive_time_of_a_record_is_refused() -> None:
    flow = Flow("f")
    flow.source(KafkaSource("orders", typed(Order), time=at_field("at"))).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("orders", Order(ORDER.id, datetime(2024, 5, 1), Decimal(1)))  # noqa: DTZ001
        run.run()
        (letter,) = run.dead_letters
    assert "field 'at' is a time without a zone" in letter.reason
