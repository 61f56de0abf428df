"""Objects of a flow's classes as values, states and keys: across workers, moves and a restart."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic
import pytest

from meander import Flow, SetupError
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.state.encoding.codec import decode, encode_key
from meander.testing import TestFlow

if TYPE_CHECKING:
    from fractions import Fraction as Ratio


class Colour(Enum):
    RED = 0
    BLUE = 1
    GREEN = 2


class Point(NamedTuple):
    n: int


@dataclass(frozen=True)
class Order:
    n: int
    colour: Colour = Colour.RED


class Page(TypedDict):
    n: int


class Customer(pydantic.BaseModel):
    n: int


class Click(msgspec.Struct):
    n: int


BERLIN = ZoneInfo("Europe/Berlin")
KINDS: dict[str, Callable[[int], Any]] = {
    "dataclass": Order,
    "NamedTuple": Point,
    "TypedDict": lambda n: Page(n=n),
    "pydantic": lambda n: Customer(n=n),
    "Struct": lambda n: Click(n=n),
    "Enum": Colour,
    "UUID": lambda n: UUID(int=n),
    "zoned": lambda n: datetime(2024, 1, 1 + n, tzinfo=BERLIN),
    "Decimal": Decimal,
    "numpy": np.int16,
    "float32": np.float32,
    "deque": lambda n: deque([n, Point(n)], 4),
    "Counter": lambda n: Counter({n: n + 1}),
    "defaultdict": lambda n: defaultdict(list, {n: [Order(n)]}),
}
TYPES = [Order, Point, Customer, Click, Colour]


COUNT = 90


def unnamed_order(n):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 (it names no type)
    return Order(n)


def counting(make: Callable[[int], Any], sink: ListSink, types: Sequence[type] = TYPES) -> Flow:
    """A flow whose keys, values and states are of one type."""
    flow = Flow("f", bins=2, types=types, delivery="exactly_once", max_inflight=2000)
    source = ListSource([[(n, n % 3) for n in range(start, COUNT, 2)] for start in (0, 1)])
    keyed = flow.source(source).map(make).key_by(lambda value: value)
    keyed.fold("seen", lambda: (None, 0), counted).sink(sink)
    return flow


def counted(state: tuple[Any, int], value: Any) -> tuple[Any, Any]:
    last, count = state
    return (value, count + 1), [value, last, count + 1]


def expected(make: Callable[[int], Any]) -> list[list[Any]]:
    return [[make(n % 3), make(n % 3) if n >= 3 else None, n // 3 + 1] for n in range(COUNT)]


@pytest.mark.parametrize("kind", KINDS)
def test_values_states_and_keys_of_a_type_pass_exchanges_and_moves(kind: str) -> None:
    make, sink = KINDS[kind], ListSink()
    with TestFlow(counting(make, sink), 3) as run:
        for worker in (1, 2):
            reach(run, sink, 20 * worker)
            run.control({"type": "migrate", "id": f"m{worker}", "bins": "all", "worker": worker})
        run.run()
        answers = [answer.state for id in ("m1", "m2") if (answer := run.answer(id))]
        states, letters = run.state()["seen"], run.dead_letters
    assert (answers, letters) == (["completed", "completed"], [])
    assert sorted(sink.values, key=place) == sorted(expected(make), key=place)
    assert {type(cast(Any, value)[0]) for value in sink.values} == {type(make(0))}
    keys, found = [*map(decode, states)], [*map(decode, states.values())]
    assert sorted(found, key=repr) == sorted(((make(n), 30) for n in range(3)), key=repr)
    assert sorted(keys, key=encode_key) == sorted(map(make, range(3)), key=encode_key)
    assert {type(key) for key in keys} == {type(make(0))}


@pytest.mark.parametrize("kind", KINDS)
def test_values_states_and_keys_of_a_type_return_from_a_checkpoint(kind: str) -> None:
    make, sink = KINDS[kind], ListSink()
    with TestFlow(counting(make, sink), 2, seed=3) as run:
        until(run, lambda: len(sink.values) > 20)
        run.inject(TakeCheckpoint())
        until(run, lambda: len(run.world.checkpoints) > 0)
        world = run.world
    assert len(sink.values) < COUNT
    with TestFlow(counting(make, sink), 3, world=world) as run:
        run.run()
    assert sorted(sink.values, key=place) == sorted(expected(make), key=place)


def test_an_object_of_a_class_without_a_name_ends_as_a_dead_letter_that_says_so() -> None:
    sink = ListSink()
    with TestFlow(counting(unnamed_order, sink, [])) as run:
        run.run()
        reasons = {letter.reason for letter in run.dead_letters}
    assert sink.values == []
    (reason,) = reasons
    assert "Order, which the flow does not name; name it in Flow(types=[Order])" in reason


def test_another_flow_of_the_process_names_no_types_for_this_one() -> None:
    one, other = ListSink(), ListSink()
    with (
        TestFlow(counting(Order, one)) as named,
        TestFlow(counting(unnamed_order, other, [])) as unnamed,
    ):
        named.run()
        unnamed.run()
        assert len(unnamed.dead_letters) == COUNT
    assert len(one.values) == COUNT
    assert other.values == []


def colour_of(order: Order) -> Colour:
    return order.colour


class Total(NamedTuple):
    records: int = 0


def add(total: Total, value: object) -> tuple[Total, object]:
    return Total(total.records + 1), value


def test_annotations_and_classes_among_the_functions_name_types() -> None:
    sink = ListSink()
    flow = Flow("f")
    orders = flow.source(ListSource([[(1, 1), (2, 2)]])).map(lambda n: Order(n)).inspect(print)
    orders.key_by(colour_of).fold("total", Total, add).sink(sink)
    with TestFlow(flow) as run:
        run.run()
        assert run.states("total") == {Colour.RED: Total(2)}
    assert sink.values == [Order(1), Order(2)]


class Holder(NamedTuple):
    ratio: Ratio
    order: Order


def held(ratio: Ratio) -> Holder:
    return Holder(ratio, Order(1))


def test_annotations_name_types_beside_those_of_a_type_checker_alone() -> None:
    flow = Flow("f")
    flow.source(ListSource([[]])).map(held).sink(ListSink())
    assert {*flow.named_types.by_type} == {Colour, Holder, Order}


def test_a_class_that_no_codec_takes_is_refused_at_the_start() -> None:
    flow = Flow("f", types=[Fraction])
    flow.source(ListSource([[]])).sink(ListSink())
    with pytest.raises(SetupError, match="type Fraction: it is none of a dataclass, NamedTuple"):
        TestFlow(flow)


def reach(run: TestFlow, sink: ListSink, count: int) -> None:
    until(run, lambda: len(sink.values) > count)


def until(run: TestFlow, done: Callable[[], bool]) -> None:
    while not done():
        assert not run.sim.done
        run.act()


def place(result: Any) -> tuple[int, str]:
    return result[2], repr(result[0])
