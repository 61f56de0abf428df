"""Schemas of a registry: their texts, references and subjects, and the format of their records.

Guarantees that a flow whose sink has a schema that the registry refuses does not start, and that no
worker registers one. Invariant: a record is a zero, the id of its writer's schema, and a payload.
Cost: one request per schema and place at a start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from meander.connectors.kafka.conversion import Conversion
from meander.connectors.kafka.formats import Place, ValueFormat
from meander.connectors.kafka.registry.client import Address, RegistryClient, client_of, head
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

T = TypeVar("T")
Kind = Literal["AVRO", "PROTOBUF", "JSON"]
Subjects = Literal["topic", "record", "topic_record"]
"""The strategy for names of subjects: the topic and the part of the record, the name of the
record, or both names."""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a schema, by the name under which others refer to it."""

    name: str
    text: str
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A schema as a flow uses it in a registry."""

    address: Address
    subjects: Subjects
    register: bool
    kind: Kind
    schema: Text | None
    references: Sequence[Text] = field(default=())
    """The schemas to which it refers, each behind those that it refers to itself."""

    def name_at(self, place: Place) -> str:
        """Return the name of the subject at a place. Raise SetupError where it has none."""
        record = self._expect_schema(place).name
        if place.is_pattern and self.subjects != "record":
            raise SetupError(
                str(place), "a subject has the name of one topic, and topics may come later",
                "list the topics in place of the pattern, or choose subjects='record'",
            )  # fmt: skip
        if self.subjects == "topic":
            return f"{place.topic}-{place.part}"
        if not record:
            raise SetupError(str(place), "its schema has no name, which is that of its subject",
                             "name it, or choose subjects='topic'")  # fmt: skip
        return record if self.subjects == "record" else f"{place.topic}-{record}"

    def prepare(self, place: Place) -> None:
        """Register the schema for a sink, or expect it there. Raise SetupError where it is
        refused."""
        client = self.client
        if place.end == "source":
            client.expect_reachable(str(place))
        elif self.register:
            for subject, schema in self._in_order(place):
                client.register(str(place), subject, schema)
        else:
            self.id_at(place)

    def id_at(self, place: Place) -> int:
        """Return the id of the registered schema. Raise SetupError where there is none."""
        *_, (subject, schema) = self._in_order(place)
        return self.client.id_of(str(place), subject, schema)

    @property
    def client(self) -> RegistryClient:
        """Return the client of this process."""
        return client_of(self.address)

    def _in_order(self, place: Place) -> Iterator[tuple[str, Schema]]:
        """Yield the subject and schema of each reference, then of the schema itself. The caller
        registers one before it asks for the next."""
        from confluent_kafka.schema_registry import Schema, SchemaReference

        own, known = self._expect_schema(place), list[SchemaReference]()
        for one in self.references:
            schema = Schema(one.text, self.kind, [*known])
            yield one.name, schema
            found = self.client.version_of(str(place), one.name, schema)
            known.append(SchemaReference(one.name, one.name, found))
        yield self.name_at(place), Schema(own.text, self.kind, known)

    def _expect_schema(self, place: Place) -> Text:
        if self.schema is None:
            raise SetupError(str(place), "its format has no schema", "name the file of one")
        return self.schema


class SchemaFormat(ValueFormat[T]):
    """A format of records with the id of a schema. Each kind of schema has a subclass."""

    def __init__(self, subject: Subject, conversion: Conversion[T] | None) -> None:
        self.subject, self._conversion = subject, conversion
        self._head = b""

    def __repr__(self) -> str:
        return f"{self.subject.kind.lower()} of {self.subject.address}"

    @property
    def types(self) -> Sequence[object]:
        """Return the type of its values."""
        return () if self._conversion is None else (self._conversion.kind,)

    @property
    def files(self) -> Sequence[Path]:
        """Return the files of its schemas."""
        used = (*self.subject.references, self.subject.schema)
        return [one.file for one in used if one is not None and one.file is not None]

    def check(self, place: Place) -> None:
        """Register the schema of a sink, and expect a registry that answers."""
        self.subject.prepare(place)

    def at(self, place: Place) -> Self:
        """Return the format with the id of its schema, where it writes."""
        if place.end == "source":
            return self
        bound = copy(self)
        bound._head = head(self.subject.id_at(place))
        return bound

    def _object(self, plain: Any) -> T:  # noqa: ANN401 (T itself where there is no conversion)
        if self._conversion is None:
            found: T = plain
            return found
        return self._conversion.from_plain(plain)


def text_of(name: str, file: Path) -> Text:
    """Return the text of a file. Raise SetupError where it cannot be read."""
    try:
        return Text(name, file.read_text("utf-8"), file)
    except (OSError, ValueError) as error:
        raise SetupError(
            f"schema {file}", f"it cannot be read: {error}", "put it beside the flow's module"
        ) from error
