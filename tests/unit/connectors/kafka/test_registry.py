"""Formats of a registry: schema ids, evolution, subjects, references, refusals and outages."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from meander import Flow, KafkaSink, KafkaSource, Registry, SetupError, field
from meander.connectors.kafka.formats import FormatUnavailableError, Place
from meander.testing import TestFlow
from tests.support.kafka.orders import (
    NEWER,
    OLDER,
    ORDER,
    SINK,
    Order,
    dict_of,
    messages,
    order,
    writer,
)
from tests.support.kafka.schema_registry import SchemaRegistry, schema_registry

SOURCE = Place("orders", "value", "source")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, schema in (("older", OLDER), ("order", ORDER), ("newer", NEWER)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    return tmp_path


@pytest.fixture
def registry() -> Registry:
    return Registry(f"mock://{uuid4()}")


@pytest.fixture
def served() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


def test_an_object_comes_back_behind_the_id_of_its_schema(registry: Registry, files: Path) -> None:
    form = writer(registry.avro(files / "newer.avsc", Order))
    data = form.encode(order())
    assert data[:5] == b"\0\0\0\0\1"
    assert registry.avro(files / "newer.avsc", Order).decode(data) == order()


def test_a_value_without_a_type_is_a_dict_of_logical_types(registry: Registry, files: Path) -> None:
    form = writer(registry.avro(files / "order.avsc"))
    value = dict_of(order())
    assert form.decode(form.encode(value)) == value
    assert registry.avro().decode(form.encode(value)) == value


def test_a_reader_gets_its_own_schema_whatever_the_writers(registry: Registry, files: Path) -> None:
    data = writer(registry.avro(files / "order.avsc")).encode(dict_of(order()))
    newer = registry.avro(files / "newer.avsc").decode(data)
    older = registry.avro(files / "older.avsc").decode(data)
    assert (newer["country"], "count" in older) == ("CH", False)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "begin with no schema id"), (b"{}aaaa", "begin with no schema id"),
        (b"\0\0\0\0\x63abc", "does not know schema id 99"), (b"\0\0\0\0\1", None),
        (b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
    ],
)  # fmt: skip
def test_bytes_that_are_no_record_of_a_known_schema_are_refused(
    registry: Registry, files: Path, data: bytes, cause: str | None
) -> None:
    form = writer(registry.avro(files / "order.avsc"))
    with pytest.raises(Exception, match=cause or ".*") as caught:
        form.decode(data)
    assert not isinstance(caught.value, FormatUnavailableError)


def test_bytes_behind_a_record_are_refused(registry: Registry, files: Path) -> None:
    form = writer(registry.avro(files / "newer.avsc", Order))
    with pytest.raises(ValueError, match="2 bytes are left behind a record of schema 1"):
        form.decode(form.encode(order()) + b"ab")


def test_a_value_that_does_not_fit_the_schema_is_refused(registry: Registry, files: Path) -> None:
    form = writer(registry.avro(files / "order.avsc"))
    for value in ({"id": UUID(int=1)}, {**ORDER, "more": 1}, 7):
        with pytest.raises((TypeError, ValueError, AttributeError, KeyError)):
            form.encode(value)
    with pytest.raises(TypeError, match="it takes Order, not dict"):
        writer(registry.avro(files / "newer.avsc", Order)).encode({})


@pytest.mark.parametrize(
    ("subjects", "subject"),
    [("topic", "orders-value"), ("record", "shop.Order"), ("topic_record", "orders-shop.Order")],
)
def test_a_strategy_names_the_subject(
    served: SchemaRegistry, files: Path, subjects: Any, subject: str
) -> None:
    writer(Registry(served.url, subjects).avro(files / "order.avsc"))
    assert [*served.subjects] == [subject]


def test_a_compatible_schema_is_registered_and_another_one_is_refused_at_the_start(
    served: SchemaRegistry, files: Path
) -> None:
    registry = Registry(served.url)
    registry.avro(files / "order.avsc").check(SINK)
    registry.avro(files / "newer.avsc").check(SINK)
    assert served.subjects == {"orders-value": [1, 2]}
    (files / "other.avsc").write_text(json.dumps({**ORDER, "fields": [
        {"name": "size", "type": "long"}]}))  # fmt: skip
    with pytest.raises(
        SetupError,
        match="sink topic 'orders', value: registry http.* answers 409: .*incompatible; change the",
    ):
        registry.avro(files / "other.avsc").check(SINK)


def test_a_schema_that_may_not_be_registered_must_be_there(
    served: SchemaRegistry, files: Path
) -> None:
    form = Registry(served.url, register=False).avro(files / "order.avsc")
    with pytest.raises(SetupError, match="answers 404: Schema not found; register the schema"):
        form.check(SINK)
    Registry(served.url).avro(files / "order.avsc").check(SINK)
    form.check(SINK)
    assert served.subjects == {"orders-value": [1]}


def test_a_worker_asks_for_the_id_and_registers_nothing(
    served: SchemaRegistry, files: Path
) -> None:
    form = Registry(served.url).avro(files / "order.avsc")
    with pytest.raises(SetupError, match="404"):
        form.at(SINK)
    assert served.subjects == {}


def test_references_are_registered_first_and_read_again(
    served: SchemaRegistry, files: Path
) -> None:
    basket = {
        "type": "record", "name": "Basket", "namespace": "shop",
        "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
    }  # fmt: skip
    (files / "basket.avsc").write_text(json.dumps(basket))
    names = {"shop.Order": files / "order.avsc"}
    form = writer(Registry(served.url).avro(files / "basket.avsc", references=names))
    value = {"orders": [dict_of(order())]}
    assert [*served.subjects] == ["shop.Order", "orders-value"]
    assert Registry(served.url).avro().decode(form.encode(value)) == value


def test_a_registry_that_does_not_answer_refuses_the_start_but_is_no_fault_of_a_record(
    files: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    form = Registry(url, settings={"max.retries": 0}).avro(files / "order.avsc")
    for place in (SOURCE, SINK):
        with pytest.raises(SetupError, match=f"{place}: registry {url} does not answer: Conn"):
            form.check(place)
    with pytest.raises(FormatUnavailableError, match="as schema id 7 is needed"):
        form.decode(b"\0\0\0\0\7abc")


def test_an_unknown_id_is_asked_for_once_in_a_while(served: SchemaRegistry, files: Path) -> None:
    form = writer(Registry(served.url).avro(files / "order.avsc"))
    for _ in range(10):
        with pytest.raises(ValueError, match="does not know schema id 99"):
            form.decode(b"\0\0\0\0\x63abc")
    assert served.requests.count("GET /schemas/ids/99") == 1


def test_a_login_of_the_environment_is_used_and_never_shown(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with schema_registry(login="me:hidden") as served:
        wrong = Registry(served.url, settings={"basic.auth.user.info": "me:other"})
        with pytest.raises(SetupError, match="answers 401: .*MEANDER_REGISTRY__BASIC") as caught:
            wrong.avro(files / "order.avsc").check(SINK)
        monkeypatch.setenv("MEANDER_REGISTRY__BASIC__AUTH__USER__INFO", "me:hidden")
        registry = Registry(served.url, settings={"timeout": 7})
        registry.avro(files / "order.avsc").check(SINK)
    form = registry.avro(files / "order.avsc")
    shown = f"{caught.value} {wrong!r} {registry!r} {form!r} {form.subject!r}"  # type: ignore[attr-defined]
    assert "hidden" not in shown
    assert "other" not in shown
    with pytest.raises(SetupError, match="its URL contains a login") as refused:
        Registry("http://me:hidden@registry:8081")
    assert "hidden" not in str(refused.value)


def test_a_registry_without_a_url_has_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MEANDER_REGISTRY__URL", raising=False)
    with pytest.raises(SetupError, match="it has no URL; .*set MEANDER_REGISTRY__URL"):
        Registry()
    monkeypatch.setenv("MEANDER_REGISTRY__URL", "mock://environment")
    assert Registry().url == "mock://environment"
    assert Registry("mock://own").url == "mock://own"
    monkeypatch.setenv("MEANDER_REGISTRY__URL", "http://me:hidden@registry:8081")
    with pytest.raises(SetupError, match="its URL contains a login") as refused:
        Registry()
    assert "hidden" not in str(refused.value)


def test_a_schema_that_cannot_be_read_is_refused_by_its_file(
    registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match="none.avsc: it cannot be read: .*; put it beside"):
        registry.avro(tmp_path / "none.avsc")
    (tmp_path / "bad.avsc").write_text('{"type": "strange"}')
    with pytest.raises(SetupError, match=r"schema .*bad.avsc: it is no Avro schema"):
        registry.avro(tmp_path / "bad.avsc")
    with pytest.raises(SetupError, match="its format has no schema; name the file of one"):
        registry.avro().check(SINK)


def test_values_of_json_schema_are_checked_when_read_and_written(
    registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "page.json").write_text(json.dumps({
        "title": "Page", "type": "object", "required": ["url"],
        "properties": {"url": {"type": "string"}, "by": {"$ref": "person"}},
    }))  # fmt: skip
    (tmp_path / "person.json").write_text('{"type": "object", "required": ["name"]}')
    names = {"person": tmp_path / "person.json"}
    form = writer(registry.json_schema(tmp_path / "page.json", references=names))
    value = {"url": "/", "by": {"name": "Ann"}}
    assert form.decode(form.encode(value)) == value
    assert registry.json_schema().decode(form.encode(value)) == value
    for wrong in ({}, {"url": 7}, {"url": "/", "by": {}}):
        with pytest.raises(Exception, match="required property|is not of type"):
            form.encode(wrong)
        head = form.encode(value)[:5]
        with pytest.raises(Exception, match="required property|is not of type"):
            form.decode(head + json.dumps(wrong).encode())


def test_open_json_schema_lets_further_fields_into_dicts_and_keeps_them_out_of_objects(
    registry: Registry, tmp_path: Path
) -> None:
    @dataclass
    class Page:
        url: str

    class Row(NamedTuple):
        url: str

    schema = {"title": "Page", "type": "object", "properties": {"url": {"type": "string"}}}
    (tmp_path / "page.json").write_text(json.dumps(schema))
    form = writer(registry.json_schema(tmp_path / "page.json"))
    data = form.encode({"url": "/", "by": "Ann"})
    assert form.decode(data) == {"url": "/", "by": "Ann"}
    assert registry.json_schema(tmp_path / "page.json", Page).decode(data) == Page("/")
    with pytest.raises(ValueError, match="by\n.*not permitted"):
        registry.json_schema(tmp_path / "page.json", Row).decode(data)


def test_messages_come_back_whatever_their_place_in_the_file(registry: Registry) -> None:
    classes = messages()
    line = classes["Line"](sku="a", count=2)
    form = writer(registry.protobuf(classes["Line"]))
    data = form.encode(line)
    assert data[5:8] == b"\4\2\0"
    assert form.decode(data) == line
    for wrong in (data[:6], data[:-1], data[:5] + b"\xff" * 12):
        with pytest.raises(Exception, match="ends before|Error parsing|names a message"):
            form.decode(wrong)
    with pytest.raises(TypeError, match="it takes Line, not First"):
        form.encode(classes["shop.First"]())
    with pytest.raises(SetupError, match="it is no class of Protobuf messages"):
        registry.protobuf(Order)


def test_a_flow_reads_and_writes_avro_and_messages_keep_their_type(
    registry: Registry, files: Path
) -> None:
    flow = Flow("orders")
    source = KafkaSource("orders", registry.avro(files / "newer.avsc", Order), time=field("at"))
    keyed = flow.source(source).key_by(lambda order: order.country)
    keyed.fold("sum", Decimal, lambda sum, order: (sum + order.price, order)).sink(
        KafkaSink("out", registry.avro(files / "newer.avsc", Order))
    )
    with TestFlow(flow) as run:
        run.feed("orders", order(1), order(2), b"\0\0\0\0\x63abc", b"{}")
        run.run()
        assert run.values("out") == [order(1), order(2)]
        assert [letter.value for letter in run.dead_letters] == [b"\0\0\0\0\x63abc", b"{}"]
        assert run.states("sum") == {"CH": Decimal("19.90")}


def test_messages_are_values_states_and_keys(registry: Registry) -> None:
    line = messages()["Line"]
    flow = Flow("lines")
    keyed = flow.source(KafkaSource("lines", registry.protobuf(line))).key_by(lambda one: one)
    keyed.fold("last", lambda: None, lambda last, one: (one, one)).sink(
        KafkaSink("out", registry.protobuf(line))
    )
    with TestFlow(flow) as run:
        run.feed("lines", line(sku="a"), line(sku="b"), line(sku="a"))
        run.run()
        assert run.values("out") == [line(sku="a"), line(sku="b"), line(sku="a")]
        assert len(run.state()["last"]) == 2
        assert run.dead_letters == []


def test_a_registry_that_fails_later_ends_the_flow_and_sets_no_record_aside(files: Path) -> None:
    with schema_registry() as served:
        registry = Registry(served.url, settings={"max.retries": 0})
        flow = Flow("f")
        flow.source(KafkaSource("orders", registry.avro())).sink(KafkaSink("out"))
        data = writer(registry.avro(files / "order.avsc")).encode(dict_of(order()))
        run = TestFlow(flow)
    with run:
        run.feed("orders", data)
        with pytest.raises(FormatUnavailableError, match="as schema id 1 is needed; start it"):
            run.run()
        assert run.dead_letters == []
