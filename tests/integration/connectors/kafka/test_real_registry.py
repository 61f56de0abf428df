"""A real registry takes what formats register, refuses what is incompatible, and knows it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from meander import Flow, KafkaSink, KafkaSource, Registry, SetupError
from meander.connectors.kafka.formats import Place, ValueFormat
from meander.testing import TestFlow
from tests.support.kafka.apicurio import apicurio
from tests.support.kafka.orders import (
    NEWER,
    ORDER,
    Order,
    dict_of,
    line_class,
    messages,
    order,
    writer,
)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with apicurio() as url:
        yield Registry(url)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    other = {**ORDER, "fields": [{"name": "size", "type": "long"}]}
    for name, schema in (("order", ORDER), ("newer", NEWER), ("other", other)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    return tmp_path


def place() -> Place:
    return Place(f"orders-{uuid4().hex}", "value", "sink")


def test_a_schema_evolves_and_an_incompatible_one_is_refused(
    registry: Registry, files: Path
) -> None:
    here = place()
    data = writer(registry.avro(files / "order.avsc"), here).encode(dict_of(order()))
    newer = registry.avro(files / "newer.avsc", Order)
    newer.check(here)
    assert newer.decode(data) == order()
    with pytest.raises(SetupError, match=f"{here}: registry .* answers 409: "):
        registry.avro(files / "other.avsc").check(here)
    with pytest.raises(ValueError, match="does not know schema id 2130706432"):
        newer.decode(b"\0\x7f\0\0\0abc")


def test_references_messages_and_json_schemas_come_back(registry: Registry, files: Path) -> None:
    basket = {
        "type": "record", "name": "Basket", "namespace": "shop",
        "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
    }  # fmt: skip
    (files / "basket.avsc").write_text(json.dumps(basket))
    names = {"shop.Order": files / "order.avsc"}
    form = writer(registry.avro(files / "basket.avsc", references=names), place())
    value = {"orders": [dict_of(order())]}
    assert registry.avro().decode(form.encode(value)) == value

    line = messages()["Line"]
    sent = writer(registry.protobuf(line), place())
    assert sent.decode(sent.encode(line(sku="a"))) == line(sku="a")

    page = {"title": "Page", "type": "object", "properties": {"url": {"type": "string"}}}
    (files / "page.json").write_text(json.dumps(page))
    written = writer(registry.json_schema(files / "page.json"), place())
    assert registry.json_schema().decode(written.encode({"url": "/"})) == {"url": "/"}


def through(source: Place, sink: Place, form: ValueFormat[Any], *records: object) -> TestFlow:
    """A flow that has taken records from one topic to another."""
    flow = Flow("copies")
    flow.source(KafkaSource(source.topic, form)).sink(KafkaSink(sink.topic, form))
    run = TestFlow(flow)
    run.feed(source.topic, *records)
    run.run()
    return run


@dataclass(frozen=True)
class Page:
    url: str
    by: str = "?"


def test_a_flow_reads_and_writes_json_of_a_schema_that_evolves(
    registry: Registry, tmp_path: Path
) -> None:
    def form(name: str, *, open: bool = False, **fields: str) -> Path:
        file = tmp_path / f"{name}.json"
        properties = {one: {"type": kind} for one, kind in fields.items()}
        file.write_text(json.dumps({
            "title": "Page", "type": "object", "required": ["url"], "properties": properties,
            "additionalProperties": open,
        }))  # fmt: skip
        return file

    source, sink = place(), place()
    older = registry.json_schema(form("older", url="string"))
    old = [writer(older, here).encode({"url": "/a"}) for here in (source, sink)]
    newer = registry.json_schema(form("newer", url="string", by="string"), Page)
    new = writer(newer, source).encode(Page("/b", "Ann"))
    wrong = new[:5] + b'{"url": 7}'
    with through(source, sink, newer, old[0], new, wrong) as run:
        assert run.values(sink.topic) == [Page("/a"), Page("/b", "Ann")]
        assert [letter.value for letter in run.dead_letters] == [wrong]
    assert len({old[0][:5], new[:5]}) == 2
    with pytest.raises(SetupError, match=f"{sink}: registry .* answers 409: "):
        through(source, sink, registry.json_schema(form("other", url="integer")))
    there = place()
    registry.json_schema(form("open", open=True, url="string")).check(there)
    with pytest.raises(SetupError, match=f"{there}: registry .* answers 409: "):
        registry.json_schema(form("wider", open=True, url="string", by="string")).check(there)


def test_a_flow_reads_and_writes_messages_of_a_class_that_evolves(registry: Registry) -> None:
    source, sink = place(), place()
    older, newer = line_class(sku=str, count=int), line_class(sku=str, count=int, colour=str)
    # The registry knows the older class at the source alone: Apicurio 3.0 compares no descriptors.
    old = writer(registry.protobuf(older), source).encode(older(sku="a", count=2))
    form = registry.protobuf(newer)
    new = writer(form, sink).encode(newer(sku="b", colour="red"))
    wrong = old[:-1]
    with through(source, sink, form, old, new, wrong) as run:
        assert run.values(sink.topic) == [newer(sku="a", count=2), newer(sku="b", colour="red")]
        assert [letter.value for letter in run.dead_letters] == [wrong]
    assert old[:5] != new[:5]
    with pytest.raises(SetupError, match=f"{sink}: registry .* answers "):
        through(source, sink, registry.protobuf(line_class(sku=int)))


def test_a_registry_that_may_not_register_expects_the_schema(
    registry: Registry, files: Path
) -> None:
    here = place()
    form = Registry(registry.url, register=False).avro(files / "order.avsc")
    with pytest.raises(SetupError, match="answers 404: .*; register the schema"):
        form.check(here)
    registry.avro(files / "order.avsc").check(here)
    form.check(here)
