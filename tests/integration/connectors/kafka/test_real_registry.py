"""A real registry takes what formats register, refuses what is incompatible, and knows it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from meander import Registry, SetupError
from meander.connectors.kafka.formats import Place
from tests.support.kafka.apicurio import apicurio
from tests.support.kafka.orders import (
    NEWER,
    ORDER,
    Order,
    dict_of,
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


def test_a_registry_that_may_not_register_expects_the_schema(
    registry: Registry, files: Path
) -> None:
    here = place()
    form = Registry(registry.url, register=False).avro(files / "order.avsc")
    with pytest.raises(SetupError, match="answers 404: .*; register the schema"):
        form.check(here)
    registry.avro(files / "order.avsc").check(here)
    form.check(here)
