"""Typed values where something fails: dead letters, calls again, coroutines and sinks of several
topics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from meander import DeadLetters, Flow, KafkaSink, KafkaSource, Record, Retry, typed
from meander.connectors.kafka.formats import encoder
from meander.connectors.kafka.origins import Origin, origins_of
from meander.dataflow.api.plan import Plan
from meander.schemas.errors import MeanderError
from meander.testing import At, Control, TestFlow


@dataclass
class Order:
    n: int
    seen: int = 0


@dataclass
class Answer:
    n: int


def refuse_two(order: Order) -> Order:
    if order.n == 2:
        raise ValueError("two")
    return order


def test_an_object_that_a_function_refuses_is_a_dead_letter_beside_unreadable_records() -> None:
    flow = Flow("f", dead_letters=DeadLetters(limit=3))
    orders = flow.source(KafkaSource[Order](["a", "b"], typed(Order)))
    orders.map(refuse_two).sink(KafkaSink("out", typed(Order)))
    with TestFlow(flow) as run:
        run.feed("a", Order(1), b'{"n": "x"}')
        run.feed("b", Order(2), b"{}")
        run.run()
        assert run.values("out") == [Order(1)]
        letters = {one.value for one in run.dead_letters if isinstance(one.value, bytes)}
        assert letters == {b'{"n": "x"}', b"{}"}
        (refused,) = [one for one in run.dead_letters if one.operator == "map"]
    assert (refused.value, refused.reason) == (Order(2), "ValueError: two")


def test_unreadable_records_of_all_topics_count_in_the_bound() -> None:
    flow = Flow("f", dead_letters=DeadLetters(limit=1), types=[Answer])
    flow.source(KafkaSource(["a", "b"], typed(Order))).sink(KafkaSink("out"))
    with TestFlow(flow, dead_letters="allow") as run:
        run.feed("a", b"{}")
        run.feed("b", b"{}")
        with pytest.raises(MeanderError, match="2 dead letters within 60 s, and its limit is 1"):
            run.run()


def test_a_dead_letter_names_the_topic_of_its_record_whatever_the_order_of_the_sources() -> None:
    flow = Flow("f")
    keyed = flow.source(KafkaSource(pattern="in-.", value=typed(Order))).key_by(lambda one: one.n)
    keyed.fold("n", int, lambda n, _: (n + 1, n)).sink(KafkaSink("out"))
    ids = {"in-a": "A", "in-b": "B"}
    origins = origins_of(Plan(flow, ["source:in-b", "source:in-a"]), ids)
    assert origins == {
        0: Origin("source:in-b", "in-b", "B"),
        1: Origin("source:in-a", "in-a", "A"),
        2: Origin("n"),
    }


def test_a_record_of_an_object_is_json_in_a_dead_letter() -> None:
    record = Record(Order(1), "k", "in", 0, 7, 5, (("h", b"x"),))
    wanted = b'[{"n":1,"seen":0},"k","in",0,7,5,[["h","x"]]]'
    assert encoder("json")(record) == wanted


@pytest.mark.parametrize("metadata", [True, False])
def test_each_call_on_an_object_gets_a_copy_that_no_failed_call_has_changed(metadata: bool) -> None:
    seen = list[int]()

    def fail_twice(value: Any) -> int:
        order: Order = value.value if metadata else value
        order.seen += 1
        seen.append(order.seen)
        if len(seen) < 3:
            raise ConnectionError
        return order.n

    flow = Flow("f")
    source = KafkaSource[Any](["a"], typed(Order), metadata=metadata)
    flow.source(source).map(fail_twice, on_error=Retry(times=2)).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("a", Order(7))
        run.run()
        assert (run.values("out"), seen) == ([7], [1, 1, 1])


async def ask(record: Record[Order]) -> Answer:
    await asyncio.sleep(0.01 * record.value.n)
    return Answer(record.value.n)


@pytest.mark.parametrize("seed", range(3))
def test_a_coroutine_names_the_class_of_its_answers(seed: int) -> None:
    flow = Flow("f", bins=2)
    source = KafkaSource[Any](["a", "b"], typed(Order), metadata=True)
    answers = flow.source(source).map_async("ask", ask).key_by(lambda answer: answer.n)
    answers.fold("last", lambda: None, lambda _, one: (one, one)).sink(KafkaSink("out"))
    move = At(Control({"type": "migrate", "id": "m", "bins": "all", "worker": 1}), records=2)
    with TestFlow(flow, seed=seed, faults=[move]) as run:
        run.feed("a", Order(1), Order(2))
        run.feed("b", Order(3))
        run.run()
        assert run.states("last") == {n: Answer(n) for n in (1, 2, 3)}


def test_a_result_outside_the_format_of_its_topic_is_a_dead_letter() -> None:
    flow = Flow("f")
    sink = KafkaSink(lambda one: f"out-{one.n}", typed(Order), topics=["out-1", "out-2"])
    flow.source(KafkaSource("in", typed(Order))).map(mixed).sink(sink)
    with TestFlow(flow) as run:
        run.feed("in", Order(1), Order(2), Order(3))
        run.run()
        assert (run.values("out-1"), run.values("out-2")) == ([Order(1)], [])
        reasons = [one.reason for one in run.dead_letters]
    assert "it takes Order, not Answer" in reasons[0]
    assert "topic 'out-3' is none of" in reasons[1]


def mixed(order: Order) -> Order | Answer:
    return Answer(order.n) if order.n == 2 else order


def test_a_collection_names_the_class_of_its_rows() -> None:
    flow = Flow("f")
    rows = flow.source(KafkaSource("in")).collection(
        lambda n: (n, Frozen(n), 1), value=Frozen
    )  # fmt: skip
    rows.changes().map(lambda change: change["value"].n).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1, 2)
        run.run()
        assert sorted(run.values("out")) == [1, 2]  # type: ignore[type-var]


@dataclass(frozen=True)
class Frozen:
    n: int
