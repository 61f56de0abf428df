"""Records at rest in Avro: a byte with the format's version, then the record without its schema.

A format is `<name>.avsc` in this folder; its attribute `version` goes up with every change, and a
golden test holds its bytes. Cost: an array of byte strings is written at about 0.2 us an item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from io import BytesIO
from typing import Generic, TypeVar, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.errors import MeanderError

Record = TypeVar("Record", bound=Mapping[str, object])


class Format(Generic[Record]):
    """One type of record; `Record` is the TypedDict of its fields.

    >>> format = Format[dict[str, object]]("manifest")
    >>> format.encode({"operator": "per_plane", "bin": 3, "epoch": 0, "layers": []}).hex()
    '01127065725f706c616e65060000'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        schema = json.loads(files("schemas").joinpath(f"{name}.avsc").read_text("utf-8"))
        self.version = int(schema["version"])
        self._schema = parse_schema(schema)

    def encode(self, record: Record) -> bytes:
        """The bytes of a record."""
        out = BytesIO(bytes([self.version]))
        out.seek(1)
        schemaless_writer(out, self._schema, record)
        return out.getvalue()

    def decode(self, data: bytes) -> Record:
        """The record of some bytes. Raises MeanderError when another version wrote them."""
        version = data[0] if data else None
        if version != self.version:
            raise MeanderError(
                f"a record of format '{self.name}'",
                f"its version is {version}, where this program reads {self.version}",
                "read it with the release that wrote it",
            )
        source = BytesIO(data)
        source.seek(1)
        return cast(Record, schemaless_reader(source, self._schema, None))
