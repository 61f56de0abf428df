"""Orders of a shop as schemas, objects and messages, for tests of registries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from meander.connectors.kafka.formats import Place, ValueFormat

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "count", "type": "int"},
    ],
}  # fmt: skip
OLDER = {**ORDER, "fields": ORDER["fields"][:-1]}
NEWER = {**ORDER, "fields": [
    *ORDER["fields"], {"name": "country", "type": "string", "default": "CH"},
]}  # fmt: skip
SINK = Place("orders", "value", "sink")


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    price: Decimal
    count: int
    country: str = "CH"


def order(count: int = 1) -> Order:
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    return Order(UUID(int=count), at, Decimal("9.95"), count)


def dict_of(order: Order) -> dict[str, object]:
    """The fields that the schema has."""
    return {"id": order.id, "at": order.at, "price": order.price, "count": order.count}


def writer(form: ValueFormat[Any], place: Place = SINK) -> ValueFormat[Any]:
    form.check(place)
    return form.at(place)


def messages() -> dict[str, Any]:
    """The classes of a file of Protobuf with a message in another one."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{uuid4()}.proto", package="shop")
    file.syntax = "proto3"
    file.message_type.add(name="First")
    outer = file.message_type.add(name="Outer")
    line = outer.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    line.field.add(name="count", number=2, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call, unused-ignore]
    found = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {**found, "Line": message_factory.GetMessageClass(
        pool.FindMessageTypeByName("shop.Outer.Line"))}  # fmt: skip


def line_class(**fields: type[str | int]) -> Any:
    """A class of messages `shop.Line` with these fields, numbered from 1 on."""
    file = descriptor_pb2.FileDescriptorProto(name="line.proto", package="shop", syntax="proto3")
    line = file.message_type.add(name="Line")
    for number, (name, kind) in enumerate(fields.items(), 1):
        line.field.add(name=name, number=number, type=9 if kind is str else 5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call, unused-ignore]
    return message_factory.GetMessageClassesForFiles([file.name], pool)["shop.Line"]
