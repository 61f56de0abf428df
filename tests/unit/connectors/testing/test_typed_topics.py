"""Typed values on several topics: schemas of a registry per topic, and records with metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, Record, Registry, SetupError, field, typed
from meander.connectors.kafka.formats import Place
from meander.dataflow.api.type_names import classes_in
from meander.testing import At, Control, TestFlow
from tests.support.kafka.orders import NEWER, Order, order, writer
from tests.support.kafka.schema_registry import SchemaRegistry, schema_registry

BY_COUNT = [f"out-{count}" for count in (1, 2)]


@pytest.fixture
def served() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    (tmp_path / "order.avsc").write_text(json.dumps(NEWER))
    return tmp_path / "order.avsc"


def by_count(order: Order) -> str:
    return f"out-{order.count}"


def test_each_topic_of_a_list_has_its_subject_on_both_ends(
    served: SchemaRegistry, schema: Path
) -> None:
    form = Registry(served.url).avro(schema, Order)
    flow = Flow("orders")
    source = KafkaSource[Any](["a", "b"], form, time=field("at"))
    keyed = flow.source(source).key_by(lambda order: order)
    sink = KafkaSink(by_count, form, key=form, topics=BY_COUNT)
    keyed.fold("last", lambda: None, lambda last, order: (order, order)).sink(sink)
    with TestFlow(flow, workers=2) as run:
        run.feed("a", order(1))
        run.feed("b", order(2), b"{}")
        run.run()
        assert [run.values(topic) for topic in BY_COUNT] == [[order(1)], [order(2)]]
        assert [letter.value for letter in run.dead_letters] == [b"{}"]
        (record,) = run.records("out-1")
    assert record.key is not None
    assert form.decode(record.key) == order(1)
    sinks = {f"{topic}-{part}" for topic in BY_COUNT for part in ("key", "value")}
    assert sinks <= served.subjects.keys()


def test_a_record_has_the_id_that_the_subject_of_its_topic_has(
    served: SchemaRegistry, schema: Path
) -> None:
    form = Registry(served.url).avro(schema, Order)
    for topic in BY_COUNT:
        form.check(Place(topic, "value", "sink"))
    wanted = [form.at(Place(topic, "value", "sink")).encode(order(1)) for topic in BY_COUNT]
    flow = Flow("orders")
    flow.source(KafkaSource("in", form)).sink(KafkaSink(by_count, form, topics=BY_COUNT))
    with TestFlow(flow) as run:
        run.feed("in", order(1), order(3))
        run.run()
        (record,) = run.records("out-1")
        (letter,) = run.dead_letters
    assert record.value in wanted
    assert "topic 'out-3' is none of" in letter.reason


def test_a_pattern_of_a_sink_needs_subjects_that_no_topic_names(
    served: SchemaRegistry, schema: Path
) -> None:
    def flow(registry: Registry) -> Flow:
        form = registry.avro(schema, Order)
        flow = Flow("orders")
        flow.source(KafkaSource("in", form)).sink(KafkaSink(by_count, form, topics="out-."))
        return flow

    wrong = r"sink topics 'out-.', value: a subject has the name of one topic, .*; list the topics"
    for subjects in ("topic", "topic_record"):
        with pytest.raises(SetupError, match=wrong):
            TestFlow(flow(Registry(served.url, subjects)))
    registry = Registry(served.url, "record")
    with TestFlow(flow(registry)) as run:
        run.feed("in", writer(registry.avro(schema, Order)).encode(order(2)))
        run.run()
        assert run.values("out-2") == [order(2)]
    assert [*served.subjects] == ["shop.Order"]


def test_topics_of_a_pattern_share_the_format_of_their_source(
    served: SchemaRegistry, schema: Path
) -> None:
    form = Registry(served.url).avro(schema, columns=["count", "country"])
    data = writer(Registry(served.url).avro(schema, Order)).encode(order(2))
    flow = Flow("counts")
    source = KafkaSource[Record[tuple[int, str]]](pattern="in-.", value=form, metadata=True)
    flow.source(source).map(lambda one: [one.topic, *one.value]).sink(KafkaSink("out"))
    with TestFlow(flow, topics=["in-a", "in-b", "other"]) as run:
        run.feed("in-a", data, b"{}")
        run.feed("in-b", data)
        run.run()
        assert sorted(run.values("out")) == [["in-a", 2, "CH"], ["in-b", 2, "CH"]]  # type: ignore[type-var]
        assert len(run.dead_letters) == 1


def keep(last: Record[Order] | None, record: Record[Order]) -> tuple[Record[Order], int]:
    return record, record.value.count


@pytest.mark.parametrize("seed", range(4))
def test_a_record_of_an_object_is_a_value_a_state_and_a_key(seed: int) -> None:
    flow = Flow("orders", bins=2)
    source = KafkaSource[Any](["a", "b"], typed(Order), time=field("at"), metadata=True)
    keyed = flow.source(source).key_by(lambda record: record)
    keyed.fold("last", lambda: None, keep).sink(KafkaSink("out"))
    moves = [
        At(Control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1}), records=2),
        At(Control({"type": "migrate", "id": "m2", "bins": "all", "worker": 0}), records=5),
    ]
    with TestFlow(flow, workers=2, seed=seed, faults=moves) as run:
        run.feed("a", order(1), order(1), order(2), ms=7, partition=0)
        run.feed("b", order(1), order(2), order(3), ms=7, partition=0, key=b"k")
        run.run()
        assert sorted(run.values("out")) == [1, 1, 1, 2, 2, 3]  # type: ignore[type-var]
        states = run.states("last")
    assert all(key == state for key, state in states.items())
    assert Record(order(3), "k", "b", 0, 2, 7, ()) in states.values()
    assert len(states) == 6


def test_a_flow_names_the_class_within_a_record_and_may_have_a_record_of_its_own() -> None:
    assert [*classes_in(Record[Order])] == [Order]
    own: type[object] = dataclass(type("Record", (), {}))
    flow = Flow("f", types=[own, Record[Order], Record])
    assert {*flow.named_types.by_type} >= {own, Order}
