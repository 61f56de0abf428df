"""JSON with the id of a JSON Schema.

Guarantees that a value that does not fit the schema raises an error, when read and when written.
Records are checked by the reader's schema, or without one by the writer's. Cost: 20 us or more to
check a record, as the checks run in Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import from_json, to_json

from meander.connectors.kafka.conversion import Conversion, plain
from meander.connectors.kafka.registry.client import split
from meander.connectors.kafka.registry.schema import SchemaFormat, Subject
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

T = TypeVar("T")


class JsonSchemaFormat(SchemaFormat[T]):
    """Values as JSON that fits a schema."""

    def __init__(self, subject: Subject, conversion: Conversion[T] | None) -> None:
        """Raise SetupError for a text that is no schema."""
        super().__init__(subject, conversion)
        self._own: Validator | None = None
        self._writers: dict[int, Validator] = {}
        if subject.schema is not None:
            others = [(one.name, one.text) for one in subject.references]
            try:
                self._own = _validator(subject.schema.text, others)
            except Exception as error:  # jsonschema raises many types of errors
                raise SetupError(
                    f"schema {subject.schema.file}", f"it is no JSON Schema: {error}", "correct it"
                ) from error

    def decode(self, data: bytes) -> T:
        """Return the value of a record."""
        id, payload = split(data)
        writer = self._writer(id)
        value = from_json(payload, allow_inf_nan=False)
        (self._own or writer).validate(value)
        return self._object(value)

    def encode(self, value: T) -> bytes:
        """Return the record of a value."""
        given = plain(value) if self._conversion is None else self._conversion.to_plain(value)
        data = to_json(given, inf_nan_mode="constants")
        assert self._own is not None, "`at` has expected a schema"
        self._own.validate(from_json(data, allow_inf_nan=False))
        return self._head + data

    def _writer(self, id: int) -> Validator:
        if id not in self._writers:
            client = self.subject.client
            schema = client.schema(id)
            if schema.schema_type != "JSON":
                raise ValueError(f"schema {id} is {schema.schema_type}, not JSON")
            others = [
                (one.name or "", client.referenced(one.subject or "", one.version or 0).schema_str)
                for one in schema.references or ()
            ]
            self._writers[id] = _validator(
                schema.schema_str or "", ((name, text or "") for name, text in others)
            )
        return self._writers[id]


def _validator(text: str, others: Iterable[tuple[str, str]]) -> Validator:
    # These take 0.1 s to load.
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(text)
    kind = validator_for(schema)
    kind.check_schema(schema)
    contents = ((name, json.loads(other)) for name, other in others)
    known: Any = Registry().with_resources(
        (name, Resource.from_contents(content, default_specification=DRAFT202012))
        for name, content in contents
    )
    return kind(schema, registry=known)


def title_of(text: str) -> str:
    """Return the title of a schema, or ''.

    >>> title_of('{"title": "Order"}')
    'Order'
    """
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return str(found.get("title", "")) if isinstance(found, dict) else ""
