"""A registry of schemas, as a flow names it.

Guarantees that a sink's schema is registered or refused before a flow starts, and that a source
whose registry does not answer refuses the start. Each process has its own client. A record with an
unknown id, or with bytes that do not fit, becomes a dead letter. Cost: see each kind of schema.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args, overload

from meander.connectors.kafka.conversion import Conversion
from meander.connectors.kafka.formats import ValueFormat
from meander.connectors.kafka.registry.avro import AvroFormat, name_of
from meander.connectors.kafka.registry.client import VARIABLES, Address
from meander.connectors.kafka.registry.json_schema import JsonSchemaFormat, title_of
from meander.connectors.kafka.registry.protobuf import ProtobufFormat, described
from meander.connectors.kafka.registry.schema import Kind, Subject, Subjects, Text, text_of
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_flag
from meander.state.encoding.value_columns import Row

T = TypeVar("T")
M = TypeVar("M")
File = str | Path
"""The path of a file, below the folder of the module that names it."""
Fields = dict[str, Any]
NONE: Mapping[str, Any] = MappingProxyType({})
_URL = "give one such as http://registry:8081"


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry of schemas, with the interface of Confluent's over HTTP.

    `subjects` names the subject of a schema: "topic" by the topic and the part of the record, such
    as `orders-value`; "record" by the full name of the record; "topic_record" by both. With
    `register=False`, a sink's schema must be registered already. `settings` are those of
    confluent-kafka's `SchemaRegistryClient`; environment variables such as
    `MEANDER_REGISTRY__BASIC__AUTH__USER__INFO` override them. Without a URL the registry has that
    of `MEANDER_REGISTRY__URL`. A URL such as "mock://tests" names a registry in the memory of one
    process, for tests.

    >>> Registry("http://registry:8081", settings={"basic.auth.user.info": "me:secret"})
    Registry(url='http://registry:8081', subjects='topic', register=True)
    """

    url: str = ""
    subjects: Subjects = "topic"
    register: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        if not isinstance(self.url, str):
            raise SetupError(f"registry {self.url!r}", "it is no URL", _URL)
        if not self.url:
            object.__setattr__(self, "url", os.environ.get(f"{VARIABLES}URL", ""))
        if not self.url:
            raise SetupError("registry", "it has no URL", f"{_URL}, or set {VARIABLES}URL")
        name, known = f"registry {self.url.rpartition('@')[2]!r}", get_args(Subjects)
        if self.subjects not in known:
            raise SetupError(name, f"its subjects are {self.subjects!r}",
                             f"choose one of {', '.join(map(repr, known))}")  # fmt: skip
        if "@" in self.url:
            raise SetupError(
                name, "its URL contains a login, which messages would show",
                "set MEANDER_REGISTRY__BASIC__AUTH__USER__INFO=user:password",
            )  # fmt: skip
        if "://" not in self.url:
            raise SetupError(name, "it is no URL", _URL)
        checked_flag(name, "register", self.register)
        if not isinstance(self.settings, Mapping):
            raise SetupError(name, f"its settings are {self.settings!r}", "give a dict of settings")

    @overload
    def avro(
        self, schema: File | None = None, *, references: Mapping[str, File] = NONE
    ) -> ValueFormat[Fields]: ...
    @overload
    def avro(
        self,
        schema: File,
        *,
        columns: Sequence[str],
        references: Mapping[str, File] = NONE,
    ) -> ValueFormat[Row]: ...
    @overload
    def avro(
        self, schema: File, type: type[T], *, references: Mapping[str, File] = NONE
    ) -> ValueFormat[T]: ...
    def avro(
        self,
        schema: File | None = None,
        type: type[Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
        references: Mapping[str, File] = NONE,
    ) -> ValueFormat[Any]:
        """Return the format of Avro records with the id of a schema.

        The file `schema` is the reader's schema of a source, and the schema of a sink. A source
        without one reads each record as it was written. Values are dicts, or objects of `type`.
        `references` names the files of schemas to which it refers, by full name. With `columns`, a
        source's values are tuples of these fields of numbers and texts, which travel as columns.
        Raise SetupError for a file that is no schema.
        """
        folder = _folder()
        text = _text(schema, folder, name_of)
        subject = self._subject("AVRO", text, _texts(references, folder))
        if columns is not None:
            # It loads numba, which takes half a second that other formats do without.
            from meander.connectors.kafka.registry.avro_columns import AvroColumns

            return AvroColumns(subject, columns)
        return AvroFormat(subject, None if type is None else Conversion(type))

    @overload
    def json_schema(
        self, schema: File | None = None, *, references: Mapping[str, File] = NONE
    ) -> ValueFormat[Any]: ...
    @overload
    def json_schema(
        self, schema: File, type: type[T], *, references: Mapping[str, File] = NONE
    ) -> ValueFormat[T]: ...
    def json_schema(
        self,
        schema: File | None = None,
        type: type[Any] | None = None,
        *,
        references: Mapping[str, File] = NONE,
    ) -> ValueFormat[Any]:
        """Return the format of JSON records with the id of a JSON Schema, as `avro` does. The title
        of a schema is its name."""
        folder = _folder()
        text = _text(schema, folder, title_of)
        subject = self._subject("JSON", text, _texts(references, folder))
        return JsonSchemaFormat(subject, None if type is None else Conversion(type))

    def protobuf(self, message: type[M]) -> ValueFormat[M]:
        """Return the format of Protobuf messages with the id of a schema. `message` is a class that
        `protoc` has made. Raise SetupError for another class."""
        schema, references = described(message)
        return ProtobufFormat(self._subject("PROTOBUF", schema, references), message)

    def _subject(self, kind: Kind, schema: Text | None, references: list[Text]) -> Subject:
        address = Address(self.url, self.settings)
        return Subject(address, self.subjects, self.register, kind, schema, references)


def _folder() -> Path:
    """Return the folder of the module that calls a method of a registry."""
    file = sys._getframe(2).f_globals.get("__file__")
    return Path(file).parent if file else Path.cwd()


def _text(file: File | None, folder: Path, name: Callable[[str], str]) -> Text | None:
    if file is None:
        return None
    found = text_of("", folder / file)
    return Text(name(found.text), found.text, found.file)


def _texts(files: Mapping[str, File], folder: Path) -> list[Text]:
    return [text_of(name, folder / file) for name, file in files.items()]
